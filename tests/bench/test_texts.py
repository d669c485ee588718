"""Benchmarks in which all drafters write the same texts."""

import json
from pathlib import Path

import pytest
from tests.bench.helpers import PROMPTS, Silent, measurement, tiny_model, tiny_options

from outrider.bench.options import BenchOptions, parse_drafters
from outrider.bench.runner import Engines
from outrider.bench.session import Session
from outrider.bench.texts import FILE, Texts
from outrider.core.dictation import Dictation
from outrider.core.errors import ConfigError, InvalidRequest

NGRAM = "ngram:prompt_lookup_min=1"


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> BenchOptions:
    model = tiny_model(tmp_path_factory.mktemp("bench") / "tiny")
    return tiny_options(model, same_texts=True, temperatures=(0.0, 1.0))


@pytest.fixture(scope="module")
def engines(options: BenchOptions) -> Engines:
    return Engines.load(options)


def test_plain_decoding_writes_them_once(engines: Engines, options: BenchOptions) -> None:
    texts = Texts.written_by(engines.base, options, PROMPTS)
    # Two turns of a1, one of a2; a batch of three is filled with copies.
    chat = ["a1/0/0", "a1/0/1", "a1/1/0", "a1/1/1", "a2/0/0"]
    assert sorted(texts.at(0.0)) == [*chat, "b1/0/0", "b1/1/0", "b1/2/0"]
    assert texts.at(0.0) != texts.at(1.0)
    for batch_size in options.batch_sizes:
        asked = [measurement(name, "chat", batch_size) for name in ("none", NGRAM)]
        runs = engines.measure(asked, PROMPTS, options.max_tokens, 0, texts=texts)
        assert [run.overruled for run in runs] == [0, 0]
        assert runs[0].tokens == runs[1].tokens


def test_another_text_is_written_all_the_same(engines: Engines, options: BenchOptions) -> None:
    texts = Texts.written_by(engines.base, options, PROMPTS)
    for text in texts.at(0.0).values():
        text[:] = [1 + token % 50 for token in range(2, 8)]
    runs = engines.measure(
        [measurement(name, "chat", 1) for name in ("none", NGRAM)], PROMPTS, 6, 0, texts=texts
    )
    assert [run.tokens for run in runs] == [18, 18]
    assert runs[0].overruled == runs[1].overruled > 9


def test_a_benchmark_that_goes_on_dictates_the_same(options: BenchOptions, tmp_path: Path) -> None:
    results = Session(options, tmp_path, Silent()).run(PROMPTS)
    written = json.loads((tmp_path / FILE).read_text())
    assert set(written) == {"0", "1"}
    tokens = {
        (cell["category"], cell["batch_size"], cell["temperature"]): set()
        for cell in results.data["cells"]
    }
    for cell in results.data["cells"]:
        tokens[cell["category"], cell["batch_size"], cell["temperature"]].add(cell["tokens"])
        assert cell["overruled"] == 0
    assert all(len(counts) == 1 for counts in tokens.values())
    more = tiny_options(options.model, same_texts=True, temperatures=(0.0, 1.0), repeat=3)
    (tmp_path / FILE).write_text(json.dumps({t: {} for t in written}))
    with pytest.raises(KeyError):  # it does not write them anew
        Session(more, tmp_path, Silent(), resume=True).run(PROMPTS)
    (tmp_path / FILE).unlink()
    with pytest.raises(ConfigError, match=r"cannot go on: .*texts\.json is needed"):
        Session(more, tmp_path, Silent(), resume=True).run(PROMPTS)


@pytest.mark.parametrize("drafter", ["lookahead", '{"method":"ngram","verification":"traversal"}'])
def test_who_takes_no_dictation(options: BenchOptions, drafter: str, tmp_path: Path) -> None:
    changed = tiny_options(options.model, same_texts=True, drafters=parse_drafters([drafter]))
    with pytest.raises(ConfigError, match=r"--same-texts cannot dictate to drafter '(look|ngram)"):
        Session(changed, tmp_path, Silent()).run(PROMPTS)
    engine = list(Engines.load(changed).llms.values())[1].engine
    with pytest.raises(InvalidRequest, match="a text is dictated on a CPU only"):
        engine.add([1, 2], dictation=Dictation([1]))
