"""What a drafter learns from: texts that its target has written, and their file."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from outrider.core.errors import ConfigError
from outrider.train.disk import not_written, safely


@dataclass(frozen=True)
class Text:
    tokens: list[int]
    prompt: int  # tokens that it starts with and that are not learned


@dataclass(frozen=True)
class Written:
    texts: list[Text]
    used: int = 0  # prompts so far, those included that were too long or had no answer
    seconds: float = 0.0  # spent


def save_texts(written: Written, file: Path) -> None:
    """Token ids are small, and written once for all runs that go on with them."""
    with safely("the texts", file) as partial:
        partial.write_text(_lines(written))


def add_texts(more: Written, file: Path) -> None:
    """Behind those in the file; `used` and `seconds` are of all. What a kill leaves half written is
    passed over by `load_texts`."""
    size = file.stat().st_size
    try:
        with file.open("a") as out:
            out.write(_lines(more))
    except OSError as error:
        os.truncate(file, size)
        raise not_written("the texts", file, error) from error


def _lines(written: Written) -> str:
    entries = [*map(vars, written.texts), {"used": written.used, "seconds": written.seconds}]
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def load_texts(file: Path) -> Written:
    found = Written([])
    open_: list[Text] = []
    for line in file.read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:  # the last, where a run was killed
            break
        if "used" in entry:
            found = Written(found.texts + open_, **entry)
            open_ = []
        else:
            open_.append(Text(**entry))
    return found if found.used else Written(open_, len(open_))  # a file that was never counted


def read_prompts(file: Path) -> list[str]:
    """JSONL with "prompt", "text", or "turns" (whose first counts)."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--data {file} cannot be read ({error}); give a JSONL file") from error
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            prompt = entry.get("prompt") or entry.get("text") or entry["turns"][0]
        except (ValueError, KeyError, IndexError, AttributeError, TypeError):
            prompt = None
        if not isinstance(prompt, str):
            raise ConfigError(
                f'{file}, line {number}: each line must be a JSON object with "prompt", "text" or '
                '"turns", in words'
            )
        prompts.append(prompt)
    if not prompts:
        raise ConfigError(f"{file} holds no prompts")
    return prompts
