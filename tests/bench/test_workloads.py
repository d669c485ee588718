import json
from collections import Counter
from pathlib import Path

import pytest

from outrider.bench.workloads import Prompt, categories, load_prompts
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
