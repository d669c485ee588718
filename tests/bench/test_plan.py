"""What is measured next, on made-up speeds."""

import random
from typing import Any

import pytest
from tests.bench.helpers import PROMPTS, a_run, spec, tiny_options

from outrider.bench.cells import Run
from outrider.bench.options import BenchOptions
from outrider.bench.plan import Measurement, Plan, side_by_side
from outrider.core.errors import ConfigError

QUIET, NOISY = 0.001, 0.06


def options(**changes: Any) -> BenchOptions:
    given: dict[str, Any] = {
        "drafters": (spec("none"), spec("quiet"), spec("noisy")),
        "batch_sizes": (1,),
        "precision": 0.03,
        "repeat": 1,
    }
    return tiny_options(**{**given, **changes})


def measure(due: list[Measurement], dice: random.Random, noise: dict[str, float]) -> list[Run]:
    """Noise by category, of the drafter `noisy` alone."""
    return [
        a_run(
            m.drafter, name, m.repeat,
            10 * dice.lognormvariate(0, noise.get(name, QUIET) if m.drafter == "noisy" else QUIET),
            batch_size=m.batch_size, temperature=m.temperature,
        )
        for m in due
        for name in m.categories
    ]  # fmt: skip


def repeats(runs: list[Run]) -> dict[tuple[str, str], list[int]]:
    found: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        found.setdefault((run.drafter, run.category), []).append(run.repeat)
    return found


def test_the_order_is_interleaved() -> None:
    plan = Plan(tiny_options(temperatures=(0.0, 1.0)), PROMPTS)
    first, second = plan.due([], 0), plan.due([], 1)
    assert len(first) == len(set(first)) == 2 * 2 * 2 * 2
    assert first[0] == Measurement("none", ("chat",), 1, 0.0, 0)
    for none, other in zip(first[::2], first[1::2]):
        assert none.drafter == "none" != other.drafter and none[1:] == other[1:]
    # A steady drift within a pair favours one of them in one repeat, the other in the next.
    for other, none in zip(second[::2], second[1::2]):
        assert none.drafter == "none" != other.drafter and none[1:] == other[1:]
    assert {m.repeat for m in second} == {1}


def test_rounds_are_one_measurement() -> None:
    plan = Plan(tiny_options(workload="agents"), PROMPTS)
    due = plan.due([], 0)
    assert [(m.categories, m.batch_size) for m in due] == [(("chat", "code"), 1)] * 2 + [
        (("chat", "code"), 3)
    ] * 2
    assert [key.setting.category for key in due[0].keys] == ["chat", "code"]
    assert plan.conversations(due[0]) == 3 and plan.conversations(due[-1]) == 6


def test_drafters_of_one_setting_are_side_by_side() -> None:
    due = Plan(tiny_options(), PROMPTS).due([], 0)
    together = side_by_side(due)
    assert [m for several in together for m in several] == due
    assert all({m.drafter for m in several} == {m.drafter for m in due} for several in together)
    assert all(len({m._replace(drafter="") for m in several}) == 1 for several in together)


def test_only_what_is_not_precise_is_repeated_beside_its_base() -> None:
    plan, dice = Plan(options(), PROMPTS), random.Random(3)
    runs: list[Run] = []
    for repeat in range(20):
        runs += measure(plan.due(runs, repeat), dice, {"chat": NOISY})
    found = repeats(runs)
    assert found["quiet", "chat"] == found["quiet", "code"] == list(range(6))
    assert len(found["noisy", "chat"]) > 10
    assert found["none", "chat"] == found["noisy", "chat"] == sorted(found["noisy", "chat"])
    # The noise of one category shows in all together, which needs the others as well for a while.
    assert 6 <= len(found["noisy", "code"]) < len(found["noisy", "chat"])
    assert found["none", "code"] == found["noisy", "code"]
    if len(found["noisy", "chat"]) < 20:
        assert plan.imprecise(runs) == []


def test_the_most_repeats_end_it() -> None:
    plan = Plan(options(max_repeat=8, precision=0.0001), PROMPTS)
    dice, runs = random.Random(3), []
    for repeat in range(plan.options.most_repeats):
        runs += measure(plan.due(runs, repeat), dice, {})
    assert {len(found) for found in repeats(runs).values()} == {8}
    assert len(plan.imprecise(runs)) == 2 * 3  # drafters, categories and all together


def test_a_repeat_that_was_interrupted_goes_on_as_it_began() -> None:
    plan, dice = Plan(options(), PROMPTS), random.Random(3)
    runs: list[Run] = []
    for repeat in range(6):
        runs += measure(plan.due(runs, repeat), dice, {"chat": NOISY})
    due = plan.due(runs, 6)
    assert len(due) > 1
    part = runs + measure(due[:1], dice, {"chat": NOISY})
    assert plan.due(part, 6) == due[1:]
    assert plan.due(part, 5) == []


def test_a_wider_aim_has_less_to_do_and_a_narrower_one_more() -> None:
    """Runs of another precision count: this is how a finished benchmark is made more precise."""
    dice, runs = random.Random(3), []
    for repeat in range(6):
        runs += measure(Plan(options(), PROMPTS).due(runs, repeat), dice, {"chat": NOISY})
    assert Plan(options(precision=0.5), PROMPTS).due(runs, 6) == []
    assert len(Plan(options(precision=1e-6), PROMPTS).due(runs, 6)) == 3 * 2


def test_the_estimate() -> None:
    plan, dice = Plan(options(), PROMPTS), random.Random(3)
    size = {"chat": 2, "code": 1}
    assert plan.conversations_left([], 0) == 6 * 3 * 3  # repeats, drafters, conversations
    runs: list[Run] = []
    left = []
    for repeat in range(20):
        due = plan.due(runs, repeat)
        left.append(plan.conversations_left(runs, repeat))
        assert left[-1] >= sum(size[name] for m in due for name in m.categories)
        runs += measure(due, dice, {"chat": NOISY})
    taken = sum(size[run.category] for run in runs if run.repeat >= 6)
    assert taken / 2 <= left[6] <= taken * 2
    half = runs[: len(runs) // 2]
    assert plan.conversations_left(half, 0) < plan.conversations_left([], 0)
    assert Plan(options(precision=None, repeat=3), PROMPTS).conversations_left([], 1) == 2 * 3 * 3


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"precision": 3.0}, "--precision 3 must lie between 0 and 1; 0.03 stands for 3 %"),
        ({"precision": 0.0}, "--precision 0 must"),
        ({"precision": float("nan")}, "--precision nan must"),
        ({"precision": None, "max_repeat": 9}, "--max-repeat needs --precision"),
        ({"max_repeat": 5}, "--max-repeat 5 must be at least 6: fewer settle no precision"),
        ({"repeat": 30}, r"--max-repeat 20 must be at least 30 \(--repeat\)"),
        ({"max_repeat": 0}, "--max-repeat 0 must be at least 1"),
        ({"workload": "agent"}, "did you mean 'agents'"),
        ({"workload": "agents", "prompts": "x"}, "leave out --prompts"),
    ],
)
def test_bad_options(changes: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        options(**changes)


def test_repeats_of_options() -> None:
    assert (options().least_repeats, options().most_repeats) == (6, 20)
    assert options(repeat=9).least_repeats == 9
    plain = options(precision=None, repeat=2)
    assert (plain.least_repeats, plain.most_repeats) == (2, 2)
