"""`outrider generate`: one prompt, one answer."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import options
from outrider.core.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from outrider import LLM
    from outrider.cli.stream import Answer


def generate(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The prompt.", show_default=False)
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(help="Read the prompt from a file, - for stdin; follows PROMPT if both."),
    ] = None,
    system: options.System = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text: no chat template.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    color: options.Color = None,
    model: options.Model = options.DEFAULT_MODEL,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
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
    outrider generate "def fibonacci(n):" --raw --stop "def "
    outrider generate "Tell a story." --temperature 0.8 --seed 7 --drafter none
    git diff | outrider generate "Write a commit message." --file - --json
    """
    # All that can be wrong without a model is checked before one is loaded.
    text = read_prompt(prompt, file)
    if raw and system is not None:
        raise ConfigError("--system needs the chat template; leave out --raw")
    speculation = options.speculative_config(drafter, num_speculative_tokens, speculative_config)
    params = options.sampling_params(
        temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed,
        max_tokens=max_tokens, stop=stop,
    )  # fmt: skip
    engine = {"device": device, "dtype": dtype, "reproducible": reproducible}
    llm = options.load(model, speculation, **engine)
    request = text if raw else llm.chat_prompt(_messages(text, system))
    if as_json:
        _print_json(llm, request, params)
    else:
        _print_text(llm, request, params, color)


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


def _messages(text: str, system: str | None) -> list[dict[str, str]]:
    messages = [{"role": "user", "content": text}]
    return messages if system is None else [{"role": "system", "content": system}, *messages]


def _print_text(llm: "LLM", request: str | list[int], params: Any, color: bool | None) -> None:
    from outrider.cli.render import Screen, closing_line
    from outrider.cli.stream import follow

    screen = Screen(color)
    screen.legend(llm.model_name, llm.drafter_name)
    try:
        answer = follow(llm, request, params, screen.write)
    finally:
        screen.end()  # also after Ctrl-C, or the shell's prompt would hang on the text
    screen.note(("\n" if screen.terminal else "") + closing_line(answer))


def _print_json(llm: "LLM", request: str | list[int], params: Any) -> None:
    from outrider.cli.stream import follow

    answer = follow(llm, request, params, lambda text, drafted: None)
    print(json.dumps(_as_object(llm, answer)))


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
    }
