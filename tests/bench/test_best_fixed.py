import pytest
from tests.bench.helpers import a_run, spec

from outrider.bench.best_fixed import against_best_fixed
from outrider.bench.cells import Run

SPECS = [spec(name) for name in ("none", "auto", "ngram", "ngram:k=2", "ngram:k=8")]
CATEGORIES = ["chat", "code"]


def runs(repeats: int = 6, **speeds: tuple[float, float]) -> list[Run]:
    """Speeds in chat and code; the machine slows down from repeat to repeat."""
    names = {"auto": "auto", "two": "ngram:k=2", "eight": "ngram:k=8", "free": "ngram"}
    both = {"none": (10.0, 10.0)} | {names[name]: pair for name, pair in speeds.items()}
    return [
        a_run(name, category, repeat, speed / (1 + repeat))
        for repeat in range(repeats)
        for name, pair in both.items()
        for category, speed in zip(CATEGORIES, pair)
    ]


def test_the_best_is_found_anew_for_every_category() -> None:
    measured = runs(auto=(18.0, 19.0), two=(15.0, 20.0), eight=(20.0, 12.0), free=(99.0, 99.0))
    found = {entry.category: entry for entry in against_best_fixed(measured, CATEGORIES, SPECS)}
    assert list(found) == ["chat", "code", "overall"]
    chat, code = found["chat"], found["code"]
    assert (chat.drafter, chat.best, code.best) == ("auto", "ngram:k=8", "ngram:k=2")
    assert (chat.drafter_ratio, chat.best_ratio) == pytest.approx((1.8, 2.0))
    assert (chat.ratio, chat.ratio_low, chat.ratio_high) == pytest.approx((0.9, 0.9, 0.9))
    assert code.ratio == pytest.approx(0.95)
    # Harmonic means: 18.47 against 17.14 (k=2) and 15 (k=8).
    assert found["overall"].best == "ngram:k=2"
    assert found["overall"].ratio == pytest.approx(18.4865 / 17.1429, rel=1e-4)


def test_only_common_repeats_are_compared() -> None:
    """More repeats of one drafter, on a machine that was faster by then, must not show."""
    measured = runs(auto=(18.0, 18.0), two=(20.0, 20.0))
    measured += [a_run(name, "chat", 6, speed) for name, speed in (("none", 90), ("auto", 162))]
    chat = against_best_fixed(measured, CATEGORIES, SPECS)[0]
    assert (chat.ratio, chat.drafter_ratio) == pytest.approx((0.9, 1.8))


def test_once_gives_no_interval() -> None:
    entry = against_best_fixed(runs(1, auto=(9.0, 9.0), two=(8.0, 8.0)), CATEGORIES, SPECS)[0]
    assert entry.ratio == pytest.approx(9 / 8) and entry.ratio_low is entry.ratio_high is None


def test_both_kinds_are_needed() -> None:
    for measured in (
        runs(auto=(18.0, 19.0)),
        runs(two=(18.0, 19.0)),
        runs(auto=(9.0, 9.0), free=(8.0, 8.0)),
        [],
    ):
        assert against_best_fixed(measured, CATEGORIES, SPECS) == []


def test_kinds() -> None:
    assert [s.label for s in SPECS if s.fixed] == ["ngram:k=2", "ngram:k=8"]
    assert [s.label for s in [*SPECS, spec("auto:k=3")] if s.auto] == ["auto"]
