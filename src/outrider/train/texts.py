"""What a drafter learns from: texts that its target has written."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider import LLM, SamplingParams
from outrider.core.errors import ConfigError

MARK = "\u2063mark\u2063"  # stands for a user's words in a chat template
LONGEST_PROMPT = 96  # tokens of a prompt that the target makes up


@dataclass(frozen=True)
class Text:
    tokens: list[int]
    prompt: int  # tokens that it starts with and that are not learned


def self_written(
    llm: LLM, count: int, longest: int, temperature: float, seed: int
) -> Iterator[Text]:
    """The target makes up what a user might say, and answers it: no data are needed."""
    before, after = _users_words(llm.tokenizer)
    asked = SamplingParams(
        temperature=1.0,
        max_tokens=min(LONGEST_PROMPT, max(1, longest // 4)),
        stop=[after] if after else None,
    )
    starts: list[Any] = [before or [_start(llm.tokenizer)]] * count
    prompts = llm.generate(
        starts,
        [replace(asked, seed=seed + i) for i in range(count)],
    )
    words = [output.outputs[0].text.strip() for output in prompts]
    if before:
        yield from answered(llm, [w for w in words if w], longest, temperature, seed)
    else:  # no chat template: what it writes is the text
        yield from _continued(llm, [w for w in words if w], longest, temperature, seed)


def answered(
    llm: LLM, prompts: list[str], longest: int, temperature: float, seed: int
) -> Iterator[Text]:
    """Prompts of a user, answered by the target."""
    ids = [llm.chat_prompt([{"role": "user", "content": prompt}]) for prompt in prompts]
    yield from _written(llm, ids, longest, temperature, seed)


def _continued(
    llm: LLM, texts: list[str], longest: int, temperature: float, seed: int
) -> Iterator[Text]:
    ids = [llm.tokenizer(text)["input_ids"] for text in texts]
    yield from _written(llm, ids, longest, temperature, seed)


def _written(
    llm: LLM, ids: list[list[int]], longest: int, temperature: float, seed: int
) -> Iterator[Text]:
    fitting = [prompt for prompt in ids if 0 < len(prompt) <= longest // 2]
    params = [
        SamplingParams(temperature=temperature, max_tokens=longest - len(prompt), seed=seed + i)
        for i, prompt in enumerate(fitting)
    ]
    asked: list[Any] = list(fitting)
    for prompt, result in zip(fitting, llm.generate(asked, params), strict=True):
        answer = result.outputs[0].token_ids
        if len(answer) > 1:
            yield Text([*prompt, *answer], len(prompt))


def _users_words(tokenizer: Any) -> tuple[str, str]:
    """What stands before and after a user's words in the chat template; "" where there is none."""
    if tokenizer is None:
        raise ConfigError("the target has no tokenizer, and so nothing that it could be asked")
    if tokenizer.chat_template is None:
        return "", ""
    talk = [{"role": "user", "content": MARK}]
    text: str = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=False)
    before, _, after = text.partition(MARK)
    return before, after.strip()


def _start(tokenizer: Any) -> int:
    found = tokenizer.bos_token_id
    return int(tokenizer.eos_token_id if found is None else found)


def read_prompts(file: Path) -> list[str]:
    """JSONL with "prompt", "text", or "turns" (whose first counts)."""
    prompts = []
    for number, line in enumerate(file.read_text().rstrip("\n").split("\n"), 1):
        try:
            entry = json.loads(line)
            prompts.append(entry.get("prompt") or entry.get("text") or entry["turns"][0])
        except (ValueError, KeyError, IndexError, AttributeError) as error:
            raise ConfigError(
                f'{file}, line {number}: each line must be a JSON object with "prompt", "text" or '
                '"turns"'
            ) from error
    return prompts


def save_texts(texts: Iterable[Text], file: Path) -> None:
    """Token ids are small, and written once for all runs that go on with them."""
    partial = file.with_suffix(".partial")
    with partial.open("w") as out:
        for text in texts:
            out.write(json.dumps({"tokens": text.tokens, "prompt": text.prompt}) + "\n")
    partial.replace(file)


def load_texts(file: Path) -> list[Text]:
    return [Text(**json.loads(line)) for line in file.read_text().splitlines()]
