"""`outrider generate`: one prompt, one answer."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import options
from outrider.core.errors import ConfigError, InvalidRequest

LONGEST_TOKEN = 16  # characters, on the average of any text

if TYPE_CHECKING:
    from outrider import LLM, SamplingParams
    from outrider.cli.stream import Answer


def generate(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The prompt.", show_default=False)
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(help="Read the prompt from a file, - for stdin; follows PROMPT if both."),
    ] = None,
    document: Annotated[
        list[str] | None,
        typer.Option(
            help="A text to answer from: read by the model where it fits, drafted from, and its "
            "quotations shown; may be repeated."
        ),
    ] = None,
    system: options.System = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text: no chat template.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Say why so much was drafted: costs, chances, lengths."),
    ] = False,
    color: options.Color = None,
    model: options.Model = options.DEFAULT_MODEL,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = None,
    reproducible: options.Reproducible = False,
    drafter: options.Drafter = None,
    num_speculative_tokens: options.DraftLength = None,
    speculative_config: options.SpeculativeConfig = None,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    seed: options.Seed = None,
    max_tokens: options.MaxTokens = 256,
    stop: options.Stop = None,
) -> None:
    """Answer one prompt.

    The text streams to stdout, figures about it follow in a closing line.
    On a terminal, tokens that came from a draft are coloured.

    Examples:

    outrider generate "Why is the sky blue?"
    outrider generate "Summarise this." --file report.txt --max-tokens 100
    outrider generate "When does it open?" --document rules.txt --document prices.txt
    outrider generate "Correct the spelling." --file letter.txt --explain
    outrider generate "def fibonacci(n):" --raw --stop "def "
    outrider generate "Tell a story." --temperature 0.8 --seed 7 --drafter none
    git diff | outrider generate "Write a commit message." --file - --json
    """
    # All that can be wrong without a model is checked before one is loaded.
    text = read_prompt(prompt, file)
    if raw and system is not None:
        raise ConfigError("--system needs the chat template; leave out --raw")
    documents = read_documents(document or [])
    speculation = options.speculative_config(drafter, num_speculative_tokens, speculative_config)
    params = options.sampling_params(
        temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed,
        max_tokens=max_tokens, stop=stop, documents=documents or None,
    )  # fmt: skip
    llm = options.load(
        model, speculation, device=device, dtype=dtype, quantization=quantization,
        reproducible=reproducible,
    )  # fmt: skip
    request = _prompt(llm, text, documents, system, raw, max_tokens)
    if as_json:
        _print_json(llm, request, params, explain)
    else:
        _print_text(llm, request, params, color, explain)


def read_prompt(prompt: str | None, file: str | None) -> str:
    if prompt is None and file is None:
        raise ConfigError('no prompt: give one ("…"), a file (--file PATH) or stdin (--file -)')
    if prompt is not None and any("\ud800" <= char <= "\udfff" for char in prompt):
        raise ConfigError("the prompt is not valid UTF-8 text")
    parts = [] if prompt is None else [prompt]
    if file is not None:
        parts.append(_read_file(file))
    text = "\n\n".join(parts)
    if not text:
        raise InvalidRequest("the prompt is empty")
    return text


def _read_file(file: str) -> str:
    name = "stdin" if file == "-" else file
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        where = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise ConfigError(f"{name} is not UTF-8 text ({where}); convert it first") from None


def read_documents(files: list[str]) -> list[dict[str, str]]:
    documents = []
    for file in files:
        name, text = "stdin" if file == "-" else file, _read_file(file)
        if not text.strip():
            raise ConfigError(f"{name} holds no text; leave out this --document")
        documents.append({"name": name, "text": text})
    return documents


def _prompt(
    llm: "LLM",
    text: str,
    documents: list[dict[str, str]],
    system: str | None,
    raw: bool,
    answer: int,
) -> str | list[int]:
    """The documents stand before the question, if all of them and the answer fit."""
    from outrider.model.quiet import quiet_transformers

    def asked(body: str) -> str | list[int]:
        return body if raw else llm.chat_prompt(_messages(body, system))

    if not documents:
        return asked(text)
    parts = [f"{document['name']}:\n{document['text'].strip()}" for document in documents]
    body = "\n\n".join([*parts, text])
    room = llm.engine.max_model_len - answer
    if len(body) <= room * LONGEST_TOKEN:  # else counting its tokens would only take time
        with quiet_transformers():  # a text that is too long is our business
            prompt = asked(body)
            ids = llm.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        if len(ids) <= room:
            return prompt
    print(
        f"the documents do not fit into the {llm.engine.max_model_len} tokens of the model's "
        "context: it answers without reading them; they only serve drafting and quotations",
        file=sys.stderr,
    )
    return asked(text)


def _messages(text: str, system: str | None) -> list[dict[str, str]]:
    messages = [{"role": "user", "content": text}]
    return messages if system is None else [{"role": "system", "content": system}, *messages]


def _print_text(
    llm: "LLM", request: str | list[int], params: Any, color: bool | None, explain: bool
) -> None:
    from outrider.cli.render import Screen, closing_line
    from outrider.cli.stream import follow

    screen = Screen(color)
    screen.legend(llm.model_name, llm.drafter_name)
    try:
        answer = follow(llm, request, params, screen.write)
    finally:
        screen.end()  # also after Ctrl-C, or the shell's prompt would hang on the text
    for line in _quotations(answer, params):
        screen.note(line)
    screen.note(("\n" if screen.terminal else "") + closing_line(answer))
    if explain:
        screen.note(f"\n{llm.explain()}")


def _quotations(answer: "Answer", params: "SamplingParams") -> list[str]:
    if answer.result is None or not params.document_list:
        return []
    from outrider.cli.footnotes import footnotes

    texts: dict[str | int, str] = {
        str(document.name): document.text for document in params.document_list
    }
    return ["", *footnotes(answer.result.outputs[0], texts)]


def _print_json(llm: "LLM", request: str | list[int], params: Any, explain: bool) -> None:
    from outrider.cli.stream import follow

    answer = follow(llm, request, params, lambda text, drafted: None)
    said = {"explanation": llm.explain().to_dict()} if explain else {}
    print(json.dumps(_as_object(llm, answer) | said))


def _as_object(llm: "LLM", answer: "Answer") -> dict[str, Any]:
    assert answer.result is not None
    output = answer.result.outputs[0]
    counts = answer.result.speculation.to_dict()
    keys = ("drafter", "steps", "drafted", "accepted", "mean_acceptance_length")
    return {
        "model": llm.model_name,
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "seed": answer.result.seed,
        "seconds": answer.seconds,
        "tokens_per_second": answer.tokens_per_second,
        "speculation": {key: counts[key] for key in keys},
        "grounding": None
        if output.grounding is None
        else [asdict(span) for span in output.grounding],
    }
