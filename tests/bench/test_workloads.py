import json
import tomllib
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path

import pytest

from outrider.bench import workloads
from outrider.bench.workloads import Prompt, categories, load_prompts, load_rounds, load_workload
from outrider.core.errors import ConfigError

BUILT_IN = [
    "chat",
    "code",
    "code_editing",
    "extraction",
    "summarising",
    "document_qa",
    "translation",
    "mathematics",
]


def lines(path: Path, *entries: object) -> Path:
    texts = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_the_built_in_prompts() -> None:
    prompts, problems = load_prompts()
    assert problems == []
    assert categories(prompts) == BUILT_IN
    assert len(prompts) >= 48 and min(Counter(p.category for p in prompts).values()) >= 6
    assert len({p.turns[0] for p in prompts}) == len(prompts)
    assert sum(len(p.turns) > 1 for p in prompts) >= 6
    for prompt in prompts:
        if prompt.category == "document_qa":
            assert 150 <= len(prompt.turns[0].split()) <= 400


def test_the_limit_counts_per_category() -> None:
    prompts, _ = load_prompts(limit=2)
    assert Counter(p.category for p in prompts) == dict.fromkeys(BUILT_IN, 2)
    assert prompts[0] == load_prompts()[0][0]
    with pytest.raises(ConfigError, match="limit=0"):
        load_prompts(limit=0)


def test_repeated_traffic() -> None:
    """The same 20 tasks three times round, with small changes."""
    prompts = load_rounds()
    assert categories(prompts) == ["round-1", "round-2", "round-3"]
    assert [p.category for p in prompts] == [f"round-{n}" for n in (1, 2, 3) for _ in range(20)]
    assert len({p.turns for p in prompts}) == len({p.id for p in prompts}) == 60
    by_task: dict[str, list[str]] = {}
    for prompt in prompts:
        (text,) = prompt.turns
        assert "$" not in text and 300 <= len(text) <= 900, prompt.id
        by_task.setdefault(prompt.id.rsplit("/")[0], []).append(text)
    assert len(by_task) == 20
    for name, (first, *others) in by_task.items():
        for other in others:
            alike = SequenceMatcher(None, first.split(), other.split(), autojunk=False).ratio()
            assert 0.6 <= alike < 1, name
    assert [p.id for p in load_rounds(limit=2)] == [
        f"{task}/{number}" for number in (1, 2, 3) for task in list(by_task)[:2]
    ]


def test_workloads_by_name() -> None:
    assert load_workload("standard", limit=1) == load_prompts(limit=1)
    assert load_workload("agents", limit=3) == (load_rounds(3), [])


def test_both_files_are_part_of_the_package() -> None:
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    files = settings["tool"]["setuptools"]["package-data"]["outrider.bench"]
    assert sorted(files) == sorted(path.name for path in workloads.BUILT_IN.parent.glob("*.jsonl"))


def test_spec_bench_reads_as_it_is(tmp_path: Path) -> None:
    file = lines(
        tmp_path / "question.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."]},
        {"question_id": 82, "category": "qa", "turns": ["Who?"], "reference": ["Me."]},
    )
    assert load_prompts(file) == (
        [Prompt("81", "writing", ("Write.", "Rewrite.")), Prompt("82", "qa", ("Who?",))],
        [],
    )


def test_a_malformed_line_is_named_and_the_rest_is_kept(tmp_path: Path) -> None:
    good = {"id": "x", "category": "c", "turns": ["t"]}
    bad = [
        "{not json",
        "[1, 2]",
        {**good, "id": None},
        {**good, "id": True},
        {**good, "category": 3},
        {**good, "category": "overall"},
        {**good, "turns": "t"},
        {**good, "turns": []},
        {**good, "turns": ["t", ""]},
        {**good, "turns": ["\ud800"]},
        good,  # once more
    ]
    file = lines(tmp_path / "p.jsonl", good, *bad, "", {**good, "id": 7})
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes() + b'{"id": "\xff"}\n')
    prompts, problems = load_prompts(file)
    assert [prompt.id for prompt in prompts] == ["x", "7"]
    numbers = [*range(2, 13), 15]
    assert [p.split(": ")[0] for p in problems] == [f"{file}:{number}" for number in numbers]
    expected = ["not JSON", "object", "'id'", "'id'", "category", "overall"]
    expected += ["turns"] * 4 + ["twice", "UTF-8"]
    for problem, part in zip(problems, expected, strict=True):
        assert part in problem and "\n" not in problem


@pytest.mark.parametrize("content", ["", "\n  \n"])
def test_an_empty_file_is_one_error(tmp_path: Path, content: str) -> None:
    file = tmp_path / "empty.jsonl"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"empty\.jsonl: it is empty"):
        load_prompts(file)


def test_a_file_without_prompts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none of its lines.*p:1: not JSON"):
        load_prompts(lines(tmp_path / "p", "hello", "there"))
    with pytest.raises(ConfigError, match="cannot read the prompts"):
        load_prompts(tmp_path / "missing")
