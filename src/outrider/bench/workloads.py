"""What is asked of the systems: our own prompts by category, or any file of the same shape."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from outrider.core.errors import ConfigError

BUILT_IN = Path(__file__).with_name("prompts.jsonl")
TASKS = Path(__file__).with_name("agents.jsonl")
OVERALL = "overall"  # all categories together; no prompt may claim it
STANDARD, REPEATED = WORKLOADS = ("standard", "agents")


@dataclass(frozen=True)
class Prompt:
    """A conversation seen from the user's side: each turn follows the answer to the one before."""

    id: str
    category: str
    turns: tuple[str, ...]


def load_workload(
    name: str, path: str | Path | None = None, limit: int | None = None
) -> tuple[list[Prompt], list[str]]:
    """As `load_prompts` gives them."""
    return (load_rounds(limit), []) if name == REPEATED else load_prompts(path, limit)


def load_prompts(
    path: str | Path | None = None, limit: int | None = None
) -> tuple[list[Prompt], list[str]]:
    """The prompts of a JSONL file (ours by default), at most `limit` of each category, and what is
    wrong with the lines that had to be left out."""
    if limit is not None and limit < 1:
        raise ConfigError(f"limit={limit} must be at least 1 prompt per category")
    file = BUILT_IN if path is None else Path(path)
    prompts: dict[str, Prompt] = {}
    problems: list[str] = []
    for number, line in enumerate(_read(file).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            prompt = _parse(line)
            if prompt.id in prompts:
                raise ValueError(f"id {prompt.id!r} is used twice")
            prompts[prompt.id] = prompt
        except ValueError as error:
            problems.append(f"{file}:{number}: {error}")
    if not prompts:
        why = f"none of its lines is a prompt, first {problems[0]}" if problems else "it is empty"
        raise ConfigError(f"no prompts in {file}: {why}")
    return _limited(list(prompts.values()), limit), problems


def load_rounds(limit: int | None = None) -> list[Prompt]:
    """Repeated traffic: the same tasks in every round, with other names and numbers. A round is
    a category."""
    lines = TASKS.read_text(encoding="utf-8").splitlines()
    tasks = [json.loads(line) for line in lines]
    rounds = range(len(tasks[0]["rounds"]))
    prompts = [
        Prompt(
            f"{task['id']}/{number + 1}",
            f"round-{number + 1}",
            (Template(task["text"]).substitute(task["rounds"][number]),),
        )
        for number in rounds
        for task in tasks
    ]
    return _limited(prompts, limit)


def categories(prompts: list[Prompt]) -> list[str]:
    """In the order of their first prompt."""
    return list(dict.fromkeys(prompt.category for prompt in prompts))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise ConfigError(f"cannot read the prompts {file}: {error.strerror}") from None


def _parse(line: bytes) -> Prompt:
    """ValueError says what is wrong with the line."""
    try:
        entry = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text (byte {error.start + 1} of the line)") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from None
    if not isinstance(entry, dict):
        raise ValueError("not a JSON object with id, category and turns")
    # Spec-Bench numbers its questions under another name.
    name = entry.get("id", entry.get("question_id"))
    if isinstance(name, bool) or not isinstance(name, (int, str)) or name == "":
        raise ValueError("needs an 'id' (or 'question_id') that is a text or a number")
    category, turns = entry.get("category"), entry.get("turns")
    if not _is_text(category):
        raise ValueError("needs a 'category' that is a text")
    if category == OVERALL:
        raise ValueError(f"category {OVERALL!r} stands for all categories together; rename it")
    if not isinstance(turns, list) or not turns or not all(_is_text(turn) for turn in turns):
        raise ValueError("needs 'turns', a list of at least one text, none of them empty")
    return Prompt(str(name), str(category), tuple(turns))


def _is_text(value: Any) -> bool:
    """Half a surrogate pair is legal in JSON, but no tokenizer takes it."""
    if not isinstance(value, str) or not value.strip():
        return False
    return not any("\ud800" <= char <= "\udfff" for char in value)


def _limited(prompts: list[Prompt], limit: int | None) -> list[Prompt]:
    if limit is None:
        return prompts
    taken: Counter[str] = Counter()
    kept = []
    for prompt in prompts:
        if taken[prompt.category] < limit:
            taken[prompt.category] += 1
            kept.append(prompt)
    return kept
