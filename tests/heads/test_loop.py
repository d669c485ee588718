"""Chains that a drafter's loop writes on the device are those of its passes, one by one.

The kernels have their own tests (tests/model/cuda); here plain torch stands for them, but for one
short text of each kind.
"""

from array import array
from typing import Any

import pytest
import torch
from tests.drafters.compared import drafter_of
from tests.engine.helpers import Ask, Models, make_llm, random_prompt, run, same_results
from tests.heads.looped import Watched, make_looped, use_plain_kernels
from tests.heads.untrained import Heads

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.drafters import device_loop, loop_check, loop_text
from outrider.engine.llm import LLM
from outrider.model.cuda import tree_attention
from outrider.model.cuda.whole_text import SIZES, WIDTHS

# Each kind, with what their loops tell apart: widths, draft vocabularies, memories, first places.
LOOPED = ["eagle3", "eagle3.1", "eagle3 deep", "eagle", "medusa", "medusa reduced", "mtp"]
LOOPED += ["dspark", "dspark gated", "dspark rnn shifted", "dflash"]


def asked(count: int, length: int, **options: Any) -> list[Ask]:
    """Every other one at temperature 0."""
    return [
        (
            random_prompt(i, 3 + 5 * (i % 4)),
            SamplingParams(
                temperature=0.9 * (i % 2), seed=i, max_tokens=length, ignore_eos=True, **options
            ),
        )
        for i in range(count)
    ]


def check(models: Models, llm: LLM, texts: list[Ask], right: list[int]) -> Watched:
    plain = run(make_llm(models.target), texts)
    written = [[*prompt, *r.outputs[0].token_ids] for (prompt, _), r in zip(texts, plain)]
    watched = Watched(llm, right, written)
    same_results(llm, texts, run(llm, texts), plain)
    assert watched.other == 0
    llm.engine.kv.check()
    return watched


@pytest.mark.parametrize("variant", LOOPED)
def test_through_acceptances_rejections_preemptions_and_hits(
    models: Models, heads: Heads, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_plain_kernels(monkeypatch)
    monkeypatch.setattr(loop_text, "ROWS_OF_A_TEXT", 5)  # more than that is caught up on before
    config = {"model": heads[variant], "num_speculative_tokens": 4}
    llm = make_looped(models.target, config, kv_cache_tokens=72, max_num_batched_tokens=24)
    watched = check(models, llm, asked(5, 24), right=[0, 2, 1, 4, 0, 3, 1])
    assert watched.tokens > 100
    assert llm.engine.scheduler.preemptions > 0
    # With noise, the softmax of all scores stands for that of the best few.
    assert watched.unsure[0] < 1e-4 and watched.unsure[1] < 0.15


@pytest.mark.parametrize("kind", ["eagle3", "dspark"])
def test_with_the_kernels_themselves(
    models: Models, heads: Heads, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_attention, "MOST_PARTS", 1)  # the interpreter runs all of them
    monkeypatch.setattr(loop_text, "ROWS_OF_A_TEXT", 2)
    llm = make_looped(models.target, {"model": heads[kind], "num_speculative_tokens": 2})
    watched = check(models, llm, asked(1, 5), right=[1, 0])
    assert watched.tokens > 3 and watched.unsure[0] < 1e-4


@pytest.mark.parametrize("variant", ["eagle3 normed", "eagle3 deep"])
def test_with_fused_layers(
    models: Models, heads: Heads, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_plain_kernels(monkeypatch)
    monkeypatch.setattr(loop_text, "ROWS_OF_A_TEXT", 2)
    config = {"model": heads[variant], "num_speculative_tokens": 2}
    llm = make_looped(models.target, config, fused=True)
    watched = check(models, llm, asked(1, 5), right=[1, 0])
    assert watched.tokens > 3 and watched.unsure[0] < 1e-4


def test_a_chain_takes_no_more_steps_than_it_has_guesses(
    models: Models, heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_plain_kernels(monkeypatch)
    llm = make_looped(models.target, {"model": heads["eagle3"], "num_speculative_tokens": 5})
    run(llm, asked(1, 3))
    cuda = drafter_of(llm).loop.cuda
    # Two tokens are left after the prompt's, so one is guessed: to read, to guess.
    assert (cuda.captured, cuda.replays) == (2, 2)


@torch.inference_mode()
def test_a_short_chain_beside_a_long_one_leaves_old_slots_alone(
    models: Models, heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its line goes on with slots that it had once."""
    use_plain_kernels(monkeypatch)
    llm = make_looped(models.target, {"model": heads["eagle3"], "num_speculative_tokens": 4})
    drafter = drafter_of(llm)
    requests = loop_check._requests(drafter, iter(range(1, 200)))
    drafter.loop(drafter.texts(requests, [4, 4, 4]))
    old = requests[0].reserved[1:]
    requests[0].reserved = array("q", range(200, 210))
    keys = drafter.memory.layers[0].keys
    keys[old.tolist()] = 7.0
    drafter.loop(drafter.texts(requests, [1, 4, 4]))
    assert (keys[old.tolist()] == 7.0).all() and not (keys[requests[1].reserved[1]] == 7.0).any()


def test_what_the_kernel_cannot_choose_by_goes_pass_by_pass(
    models: Models, heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_plain_kernels(monkeypatch)
    llm = make_looped(models.target, {"model": heads["eagle3"], "num_speculative_tokens": 3})
    loop = drafter_of(llm).loop
    looped: list[Request] = []
    inner = loop._run
    loop._run = lambda texts: looped.extend(t.request for t in texts) or inner(texts)
    check(models, llm, asked(2, 8) + asked(4, 8, presence_penalty=0.5)[3:], right=[1])
    assert looped and not any(request.params.penalised for request in looped)


@pytest.mark.parametrize("kind", ["eagle3", "dspark", "medusa"])
def test_the_bytes_declared_are_enough(models: Models, heads: Heads, kind: str) -> None:
    drafter = drafter_of(make_looped(models.target, {"model": heads[kind]}, fused=kind == "eagle3"))
    loop = drafter.loop
    large = [loop.work.parts, loop.work.weights]
    large += [getattr(loop, name) for name in ("_full", "_logits") if hasattr(loop, name)]
    if kind == "eagle3":
        large += [loop._fused._cos, loop._fused._sin]
        large += [torch.empty(SIZES[-1], WIDTHS * drafter.loop_shape.widest)]  # catching up
    held = sum(tensor.nbytes for tensor in large)
    longest, outputs = loop.slot_table.longest, len(drafter.ids)
    declared = device_loop.bytes_of_loop(drafter.loop_shape, outputs, longest, 4)
    moment = 4 * outputs * loop_text.TEXTS[-1]  # logits of the largest step
    assert held + moment <= declared <= held + 3 * moment


@pytest.mark.parametrize("kind", ["eagle3", "dspark", "medusa", "mtp", "eagle"])
@torch.inference_mode()
def test_the_check_at_load_finds_faults(
    models: Models, heads: Heads, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_plain_kernels(monkeypatch)
    llm = make_looped(models.target, {"model": heads[kind], "num_speculative_tokens": 3})
    drafter, kv = drafter_of(llm), llm.engine.kv
    free = kv.available
    assert loop_check.distance(drafter, drafter.loop, kv) < 1e-3
    assert kv.available == free
    texts = drafter.texts

    def misread(requests: list[Request], guesses: list[int]) -> Any:
        return [text._replace(features=text.features[::-1]) for text in texts(requests, guesses)]

    if kind != "medusa":  # it reads a single feature
        drafter.texts = misread
        assert loop_check.distance(drafter, drafter.loop, kv) > 0.05
    drafter.texts = texts
    drafter.loop.step = lambda texts: None
    drafter.loop._captured.clear()
    drafter.loop._found.zero_()
    assert loop_check.distance(drafter, drafter.loop, kv) > 0.05


def test_what_was_prepared_is_all_that_a_small_batch_needs(
    models: Models, heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_plain_kernels(monkeypatch)
    llm = make_looped(models.target, {"model": heads["eagle3"], "num_speculative_tokens": 3})
    drafter = drafter_of(llm)
    drafter.loop.prepare(3)
    prepared = drafter.prepared
    assert prepared == len(loop_text.ROWS) + 3 * 4  # chains of 1 to 3 for 1, 2, 4 and 8 texts
    check(models, llm, asked(8, 12), right=[0, 2, 1, 3])
    assert drafter.prepared == prepared


@torch.inference_mode()
def test_long_texts_are_caught_up_on_in_one_launch(
    models: Models, heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leave in the slots what a pass leaves there, behind what was read before, too."""
    use_plain_kernels(monkeypatch)
    monkeypatch.setattr(loop_check, "LENGTHS", (80, 5))
    config = {"model": heads["eagle3"], "num_speculative_tokens": 2}
    llm = make_looped(models.target, config, fused=True, kv_cache_tokens=400, max_model_len=200)
    drafter, kv = drafter_of(llm), llm.engine.kv
    owner = Request("", [0], SamplingParams(), seed=0)
    kv.open(owner)
    assert kv.reserve(owner, 200)
    slots = iter(owner.reserved)
    looped = loop_check._requests(drafter, slots)
    stepped = loop_check._requests(drafter, slots)
    drafter._read_up_to([(looped[0], 7), (stepped[0], 79)])  # of one, what another text has left
    captured = drafter.prepared
    drafter.texts(looped, [2, 2])
    assert drafter.prepared == captured + 1
    memory = drafter.memory.layers[0]
    one, other = (request.slots[1:].tolist() for request in (looped[0], stepped[0]))
    for held in (memory.keys, memory.values):
        torch.testing.assert_close(held[one], held[other], rtol=1e-4, atol=1e-4)
    assert drafter.backlog(looped[0]) == 0


@pytest.mark.parametrize(
    ("rows", "late"),
    [
        ([1, 3, 64], []),
        ([1, 65, 3], [1]),
        ([64, 64, 64, 64, 1], [0]),  # more than all can have together
        ([500, 2, 70], [0, 2]),
        ([5] * 64, [*range(16)]),
        ([], []),
    ],
)
def test_as_few_texts_as_possible_are_read_before_the_loop(rows: list[int], late: list[int]):
    assert sorted(loop_text.unreadable(rows)) == late
    left = [1 if i in late else count for i, count in enumerate(rows)]
    assert sum(left) <= loop_text.ROWS[-1]
