"""Trained drafters on a CUDA device; skipped where there is none."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.helpers import make_models
from tests.heads.compared import ROWS
from tests.heads.looped import Watched
from tests.heads.untrained import Heads
from transformers import AutoModelForCausalLM

from outrider import LLM, SamplingParams
from outrider.train.batch import Vocabulary
from outrider.train.loop import Plan, train
from outrider.train.objective import OBJECTIVES
from outrider.train.start import new_head
from outrider.train.texts import Text

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PROMPTS = [[5 + (i * j) % 290 for j in range(1, 4 + 3 * i)] for i in range(1, 9)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_models(Path(tmp_path_factory.mktemp("models"))).target


@pytest.fixture(scope="module")
def heads(target: str, tmp_path_factory: pytest.TempPathFactory) -> Heads:
    return Heads(target, Path(tmp_path_factory.mktemp("heads")))


@pytest.mark.parametrize("kind", list(ROWS))
@pytest.mark.parametrize("tree", ["chain", [2, 2, 1]])
def test_ids_and_acceptance_are_those_of_the_cpu(target: str, heads: Heads, kind: str, tree: Any):
    """Acceptance, too: states that a CUDA graph did not write would show only there."""
    params = [
        SamplingParams(
            temperature=i % 2,
            seed=i,
            max_tokens=24,
            ignore_eos=True,
            logit_bias=dict.fromkeys((5, 17, 42), 30.0),
        )
        for i in range(8)
    ]
    torch.backends.cuda.matmul.allow_tf32 = False
    config = {"model": heads[kind], "tree": tree, "num_speculative_tokens": 4}
    found = []
    for device in ("cpu", "cuda"):
        llm = LLM(target, config, device=device, dtype="float32")
        results = llm.generate(PROMPTS, params, use_tqdm=False)
        llm.engine.kv.check()
        ids = [result.outputs[0].token_ids for result in results]
        found.append((ids, [result.speculation.accepted for result in results]))
    assert llm.engine.runner.way.startswith("CUDA graphs")
    assert sum(found[0][1]) > 20
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", list(ROWS))
def test_the_loop_on_the_device_writes_what_its_passes_write(target: str, heads: Heads, kind: str):
    """Without options that the kernel cannot choose by. Heads that have learned nothing are wrong,
    so what is compared is what they propose, right corrections included."""
    torch.backends.cuda.matmul.allow_tf32 = False
    config = {"model": heads[kind], "num_speculative_tokens": 4}
    llm = LLM(target, config, device="cuda", dtype="float32")
    drafter: Any = llm.engine.drafter
    assert drafter.loop is not None, drafter.loop_way
    drafter.following = None  # every chain is asked for here
    params = [
        SamplingParams(temperature=0.9 * (i % 2), seed=i, max_tokens=24, ignore_eos=True)
        for i in range(8)
    ]
    plain = LLM(target, {"method": "none"}, device="cuda", dtype="float32")
    expected = [
        result.outputs[0].token_ids for result in plain.generate(PROMPTS, params, use_tqdm=False)
    ]
    texts = [[*prompt, *ids] for prompt, ids in zip(PROMPTS, expected, strict=True)]
    watched = Watched(llm, [0, 2, 1, 4, 0, 3, 1], texts)
    results = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [result.outputs[0].token_ids for result in results] == expected
    assert watched.tokens > 200
    assert watched.other == 0 and watched.unsure[0] < 1e-3 and watched.unsure[1] < 0.15
    llm.engine.kv.check()


@pytest.mark.parametrize("kind", ["eagle3", "eagle", "mtp"])
@pytest.mark.parametrize("batch", [1, 8])
def test_drafts_that_follow_each_other_are_those_of_the_host(
    target: str, heads: Heads, kind: str, batch: int
):
    """Where noise decides, both choose alike: even heads that have learned nothing are right."""
    torch.backends.cuda.matmul.allow_tf32 = False
    params = [
        SamplingParams(temperature=(0, 2, 20)[i % 3], seed=i, max_tokens=60 + i, ignore_eos=True)
        for i in range(8)
    ]
    options: Any = {"device": "cuda", "dtype": "float32", "max_num_seqs": batch}
    ids, held = [], []
    for follows in (True, False):
        config = {"model": heads[kind], "num_speculative_tokens": 4}
        llm = LLM(target, config, **options)
        drafter: Any = llm.engine.drafter
        following = drafter.following
        assert following is not None, drafter.loop_way
        drafter.following = following if follows else None
        results = llm.generate(PROMPTS, params, use_tqdm=False)
        llm.engine.kv.check()
        assert (following.rounds > 15) == follows
        ids.append([result.outputs[0].token_ids for result in results])
        held.append([result.speculation.accepted for result in results])
    plain = LLM(target, None, **options).generate(PROMPTS, params, use_tqdm=False)
    assert ids[0] == ids[1] == [result.outputs[0].token_ids for result in plain]
    assert sum(held[1]) > 60
    # At a text's end, chains of the device are not cut short.
    assert all(abs(a - b) <= 2 for a, b in zip(*held, strict=True))


@pytest.mark.parametrize("kind", list(OBJECTIVES))
def test_lessons_in_half_precision(target: str, tmp_path: Path, kind: str):
    """Some functions refuse it, and do so on a GPU only."""
    model: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16).cuda()
    size = model.config.vocab_size
    texts = [Text([(5 + 7 * i * j) % size for j in range(40)], 4) for i in range(24)]
    words = Vocabulary.of(texts, 200, size, {0}).to(model.device)
    head, config = new_head(kind, model, words)
    plan = Plan(kind, steps=12, texts_per_step=12, every=4, seed=1, learning_rate=1e-2)
    judged = train(model, head, config, texts, words, plan, tmp_path)
    assert judged[-1].lessons < judged[0].lessons
