"""The target writes texts; nothing is asked twice, and nothing is lost."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.tiny import make_tiny, make_tokenizer

from outrider import LLM
from outrider.core.errors import ConfigError, OutriderError
from outrider.train import tasks, writer, writing
from outrider.train.display import Display, WritingBar, span
from outrider.train.ranks import ALONE
from outrider.train.settings import Settings
from outrider.train.texts import Text, Written, add_texts, load_texts, read_prompts, save_texts
from outrider.train.writer import KINDS, Writer
from outrider.train.writing import write_texts

SHORT, LONG = "The outrider rides.", "The outrider rides ahead of the party. " * 40


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = make_tiny("llama", tmp_path_factory.mktemp("target"))
    make_tokenizer(folder)
    return LLM(str(folder), None, device="cpu", dtype="float32")


@pytest.fixture
def same_llm(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    monkeypatch.setattr(writing, "LLM", lambda *_, **__: llm)
    return llm


def asked(out: Path, **changes: Any) -> Settings:
    given: dict[str, Any] = {
        "kind": "medusa", "target": "tiny", "out": out, "data": ("self",), "texts": 4,
        "longest": 60, "temperature": 1.0, "steps": 1, "texts_per_step": 1, "vocabulary": 100,
        "layers": None, "start": None, "normed": False, "learning_rate": 1e-3, "seed": 3,
        "device": "cpu", "dtype": "float32",
    }  # fmt: skip
    return Settings(**(given | changes))


def written(settings: Settings) -> Written:
    return write_texts(settings, ALONE, Display(quiet=True))


@contextmanager
def full_disk(after: int) -> Iterator[None]:
    """No file may grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_text_depends_on_its_number_alone(llm: LLM) -> None:
    told: list[float] = []
    whole = Writer(llm, 60, 1.0, seed=0, tell=told.append).self_written(range(6))
    assert whole and all(0 < text.prompt < len(text.tokens) <= 60 for _, text in whole)
    assert len(told) > 6 and len(whole) - 1e-9 <= sum(told) <= 6 + 1e-9
    writer = Writer(llm, 60, 1.0, seed=0)
    parts = writer.self_written(range(1, 6, 2)) + writer.self_written(range(0, 6, 2))
    assert sorted(parts, key=lambda each: each[0]) == whole


def test_texts_are_free_talk_second_answers_and_tasks(llm: LLM) -> None:
    writer = Writer(llm, 600, 1.0, seed=0)
    found = dict(writer.self_written(range(24)))
    prompts = {i: llm.tokenizer.decode(t.tokens[: t.prompt]) for i, t in found.items()}
    assert {KINDS[i % len(KINDS)] for i in found} == set(KINDS)
    for i, prompt in prompts.items():
        follow_up = writer._next_question(i)
        kind = KINDS[i % len(KINDS)]
        assert (follow_up in prompt) == (kind == "followed up")
        if kind == "task":
            task = writer._task(i)
            before, _, after = task.give.partition("{material}")
            assert before in prompt and after.strip() in prompt
            assert task.ask not in prompt  # only what came of it
    assert all(len(text.tokens) <= 600 for text in found.values())


def test_tasks_differ_for_a_long_time() -> None:
    every = [tasks.task_of(i) for i, kind in zip(range(20_000), KINDS * 5000) if kind == "task"]
    assert len({task.ask for task in every}) > 0.95 * len(every)
    assert len({task.give for task in every[:40]}) >= 8
    assert not any("{topic}" in part for task in every for part in task)
    assert len(set(tasks.TOPICS)) == len(tasks.TOPICS)


def test_no_prompt_is_asked_twice(
    same_llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where some were too long, and across runs."""
    monkeypatch.setattr(writing, "AT_ONCE", 2)
    monkeypatch.setattr(writing, "AT_LEAST", 2)
    file = tmp_path / "prompts.jsonl"
    words = [LONG, LONG, SHORT + " 2", LONG, LONG, LONG, *(f"{SHORT} {i}" for i in range(6, 12))]
    first = Writer(same_llm, 60, 1.0, asked(tmp_path).seed).first % len(words)
    in_file = words[-first:] + words[:-first]  # the seed says which is asked first
    file.write_text("".join(json.dumps({"prompt": each}) + "\n" for each in in_file))
    seen: list[str] = []
    real = Writer._ids

    def spy(self: Writer, prompt: str) -> list[int]:
        seen.append(prompt)
        return real(self, prompt)

    monkeypatch.setattr(Writer, "_ids", spy)
    some = written(asked(tmp_path, data=(str(file),), texts=2))
    assert len(some.texts) == 2 and 6 < some.used < 12
    more = written(asked(tmp_path, data=(str(file),), texts=8))
    assert more.used > 12 and more.texts[:2] == some.texts
    assert seen == (words + words)[: more.used]  # after the last the first, with another seed
    assert len({tuple(text.tokens) for text in more.texts}) == 8
    assert written(asked(tmp_path, data=(str(file),), texts=2)).texts == some.texts


def test_another_seed_asks_for_other_things(same_llm: LLM, tmp_path: Path) -> None:
    """Processes that write side by side would otherwise answer the same prompts."""
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{SHORT} {i}"}) + "\n" for i in range(12)))

    def texts(seed: int) -> list[Text]:
        given = asked(
            tmp_path / str(seed), data=(str(file), "self"), texts=8, longest=500, seed=seed
        )
        given.out.mkdir()
        return written(given).texts

    found = [texts(seed) for seed in (0, 1, 12)]  # neighbours, and as many apart as prompts
    assert len({tuple(text.tokens) for run in found for text in run}) == 24
    firsts = {Writer(same_llm, 60, 1.0, seed).first % 12 for seed in range(24)}
    assert len(firsts) > 6


def test_more_of_its_own_texts_are_others(same_llm: LLM, tmp_path: Path) -> None:
    few = written(asked(tmp_path, texts=3))
    more = written(asked(tmp_path, texts=6))
    assert more.texts[:3] == few.texts
    assert len({tuple(text.tokens) for text in more.texts}) == 6


def test_several_sources_take_turns(same_llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{SHORT} {i}"}) + "\n" for i in range(3)))
    texts = written(asked(tmp_path, data=(str(file), "self"), texts=10, longest=500)).texts
    prompts = [same_llm.tokenizer.decode(text.tokens[: text.prompt]) for text in texts]
    given = [prompt for prompt in prompts if SHORT in prompt]
    assert 5 <= len(given) <= 7 and len(set(given)) == 3
    made_up = [text for text, prompt in zip(texts, prompts) if SHORT not in prompt]
    alone = [text for _, text in Writer(same_llm, 500, 1.0, seed=3).self_written(range(8))]
    assert made_up == alone[: len(made_up)]


def test_a_target_without_chat_template_goes_on_with_plain_text(
    same_llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(same_llm.tokenizer, "chat_template", None)
    found = write_texts(asked(tmp_path), ALONE, Display())
    assert len(found.texts) == 4
    assert "no chat template" in capsys.readouterr().err
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"text": SHORT}) + "\n" + json.dumps({"turns": [SHORT + "!"]}))
    (tmp_path / "other").mkdir()
    answered = written(asked(tmp_path / "other", data=(str(file),), texts=2))
    starts = [text.tokens[: text.prompt] for text in answered.texts]
    prompts = [same_llm.tokenizer(w)["input_ids"] for w in (SHORT, SHORT + "!")]
    assert sorted(starts) == sorted(prompts)


def test_what_cannot_be_asked_is_said(
    same_llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="longest"):
        written(asked(tmp_path, longest=4))
    file = tmp_path / "prompts.jsonl"
    file.write_text((json.dumps({"prompt": LONG}) + "\n") * 20)
    with pytest.raises(ConfigError, match="longest"):
        written(asked(tmp_path, data=(str(file),)))
    with pytest.raises(ConfigError, match="--data FILE"):
        writer._start(SimpleNamespace(bos_token_id=None, eos_token_id=None))
    monkeypatch.setattr(LLM, "tokenizer", None)
    with pytest.raises(ConfigError, match="no tokenizer"):
        written(asked(tmp_path))


@pytest.mark.parametrize("line", ["{", "[]", '{"prompt": 3}', '{"turns": []}', '"words"'])
def test_lines_that_are_no_prompts_are_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": SHORT}) + "\n\n" + line)
    with pytest.raises(ConfigError, match="line 3"):
        read_prompts(file)


def test_a_file_of_prompts_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.jsonl"):
        read_prompts(tmp_path / "nothing.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="no prompts"):
        read_prompts(tmp_path / "empty.jsonl")


def some_texts(count: int) -> list[Text]:
    return [Text(list(range(i, i + 20)), 2) for i in range(count)]


def test_half_of_a_line_is_passed_over(tmp_path: Path) -> None:
    file, texts = tmp_path / "texts.jsonl", some_texts(4)
    save_texts(Written(texts[:2], 3, 1.5), file)
    add_texts(Written(texts[2:3], 5, 2.5), file)
    kept = file.read_text()
    add_texts(Written(texts[3:], 9, 3.5), file)
    assert load_texts(file) == Written(texts, 9, 3.5)
    whole = file.read_text()
    for cut in range(len(kept), len(whole) - 2):
        file.write_text(whole[:cut])
        assert load_texts(file) == Written(texts[:3], 5, 2.5)


def test_a_full_disk_loses_no_texts(tmp_path: Path) -> None:
    file, texts = tmp_path / "texts.jsonl", some_texts(300)
    save_texts(Written(texts[:5], 5), file)
    kept = file.read_bytes()
    for write in (add_texts, save_texts):
        with full_disk(after=4096), pytest.raises(OutriderError, match=r"Make room.*--resume"):
            write(Written(texts, 300), file)
        assert file.read_bytes() == kept
    assert [each.name for each in tmp_path.iterdir()] == ["texts.jsonl"]


def test_time_left_is_told_where_there_is_no_terminal(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("outrider.train.display.time.monotonic", lambda: now)
    with Display().writing(10, 100) as bar:
        assert isinstance(bar, WritingBar)
        now = 60.0
        bar.add(3.5)
        bar.reached(20)
    assert "20 of 100 texts written, about 8 min left" in capsys.readouterr().err
    assert [span(x) for x in (42, 180, 9000)] == ["42 s", "3 min", "2.5 h"]
