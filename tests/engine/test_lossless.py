"""The text is the target's own: whatever the drafter, the draft length and the batch."""

from collections import Counter
from math import inf
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from tests.engine.conftest import TOKENS
from tests.engine.helpers import (
    Ask,
    Models,
    Trees,
    accept_rate,
    drafting,
    fed_back,
    make_llm,
    random_prompt,
    reference,
    run,
    run_alone,
    same_results,
    same_up_to_ties,
)

from outrider.core.outputs import RequestOutput
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.engine.llm import LLM
from outrider.sampling.counts import Counts
from outrider.sampling.process import process
from outrider.sampling.rows import Row

SPECULATIVE = ("ngram", "draft_model", "trees")
LENGTHS = (1, 3, 8)
ALONE = (0, 4, 5, 8, 11, 13)  # of the sixteen requests: those that are also run on their own


@pytest.fixture(scope="module")
def greedy() -> list[Ask]:
    params = SamplingParams(temperature=0, max_tokens=TOKENS, seed=0)
    return [(random_prompt(50 + i, 2 + 3 * i), params) for i in range(8)]


@pytest.fixture(scope="module")
def own(models: Models, greedy: list[Ask]) -> list[list[int]]:
    """transformers' own `generate`."""
    model, texts = reference(models.target), []
    for prompt, params in greedy:
        ids = torch.tensor([prompt])
        out = model.generate(ids, max_new_tokens=params.max_tokens, do_sample=False)
        texts.append(out[0, len(prompt) :].tolist())
        Trees.truth[tuple(prompt), params.seed, 0] = texts[-1]
    return texts


@pytest.mark.parametrize("name", ["none", *SPECULATIVE])
def test_greedy_text_is_that_of_transformers(
    models: Models, greedy: list[Ask], own: list[list[int]], name: str
) -> None:
    llm = make_llm(models.target, drafting(models, name, 4))
    for (prompt, params), result, text in zip(greedy, run(llm, greedy), own, strict=True):
        same_up_to_ties(llm, prompt, params, result.outputs[0].token_ids, text)


@pytest.mark.parametrize("name", SPECULATIVE)
@pytest.mark.parametrize("length", LENGTHS)
def test_the_seed_decides_the_text(
    models: Models, asked: list[Ask], expected: list[RequestOutput], name: str, length: int
) -> None:
    llm = make_llm(models.target, drafting(models, name, length))
    batch = run(llm, asked)
    same_results(llm, asked, batch, expected)
    some = [asked[i] for i in ALONE]
    same_results(llm, some, run_alone(llm, some), [expected[i] for i in ALONE])


def test_plain_decoding_in_a_batch_equals_plain_decoding_alone(
    plain: LLM, asked: list[Ask], expected: list[RequestOutput]
) -> None:
    same_results(plain, asked, run(plain, asked), expected)


def test_the_comparison_sees_mixed_acceptance(
    models: Models, asked: list[Ask], expected: list[RequestOutput]
) -> None:
    """Equality would prove little if drafts were always or never kept."""
    rate = {
        name: accept_rate(run(make_llm(models.target, drafting(models, name, 3)), asked))
        for name in SPECULATIVE
    }
    assert 0.2 < rate["draft_model"] < 0.8
    assert 0.2 < rate["trees"] < 0.8
    assert rate["ngram"] > 0.02


def _pattern(output: Any, length: int) -> list[bool]:
    """Which tokens come from a draft when every draft is right: k of every k + 1 after the first.
    The last token that fits is never drafted."""
    count = len(output.token_ids)
    pattern = [i % (length + 1) != 0 for i in range(count)]
    if output.finish_reason == "length":
        pattern[-1] = False
    return pattern


@pytest.mark.parametrize("length", [1, 4])
def test_the_target_as_its_own_drafter_is_accepted_in_full(
    models: Models, asked: list[Ask], expected: list[RequestOutput], length: int
) -> None:
    own_drafter = {"model": models.target, "num_speculative_tokens": length}
    llm = make_llm(models.target, own_drafter)
    for results in (run(llm, asked), run_alone(llm, asked[4:6])):
        for result in results:
            for output in result.outputs:
                assert output.from_draft == _pattern(output, length)
            if all(output.finish_reason == "length" for output in result.outputs):
                assert result.speculation.accepted == result.speculation.drafted


def test_traversal_accepts_the_target_as_its_own_drafter_in_full(models: Models) -> None:
    config = {"model": models.target, "num_speculative_tokens": 3, "verification": "traversal"}
    llm = make_llm(models.target, config)
    params = [
        SamplingParams(max_tokens=20, seed=i, ignore_eos=True, top_k=50, presence_penalty=0.3)
        for i in range(4)
    ]
    for result in llm.generate([random_prompt(i, 9) for i in range(4)], params, use_tqdm=False):
        assert result.outputs[0].from_draft == _pattern(result.outputs[0], 3)


# ---- log-probabilities ----


def _close(a: Any, b: Any) -> None:
    assert len(a.logprobs) == len(b.logprobs) == len(a.token_ids)
    for token, ours, theirs in zip(a.token_ids, a.logprobs, b.logprobs, strict=True):
        assert token in ours
        assert ours[token].logprob == pytest.approx(theirs[token].logprob, abs=1e-4)
        assert ours[token].rank == theirs[token].rank
        for rival in ours.keys() & theirs.keys():
            assert ours[rival].logprob == pytest.approx(theirs[rival].logprob, abs=1e-4)
    assert a.cumulative_logprob == pytest.approx(b.cumulative_logprob, abs=1e-3)


def _asked_for_logprobs(mode: str) -> list[Ask]:
    common: dict[str, Any] = {"max_tokens": 16, "logprobs": 3, "logprobs_mode": mode}
    options: list[dict[str, Any]] = [
        {"presence_penalty": 0.7, "top_k": 30},
        {"repetition_penalty": 1.4, "temperature": 0.8},
        {"temperature": 0.0},
        {"stop_token_ids": [*range(40, 120)], "min_tokens": 3},
    ]
    return [
        (random_prompt(70 + i, 6 + i), SamplingParams(seed=i, **common, **more))
        for i, more in enumerate(options)
    ]


@pytest.mark.parametrize("mode", ["raw", "processed"])
@pytest.mark.parametrize("name", ["draft_model", "trees"])
def test_logprobs_are_those_of_a_plain_run_and_cover_the_output(
    models: Models, plain: LLM, name: str, mode: str
) -> None:
    asked = _asked_for_logprobs(mode)
    expected = run(plain, asked)
    Trees.learn(asked, expected)
    llm = make_llm(models.target, drafting(models, name, 4))
    got = run(llm, asked)
    same_results(llm, asked, got, expected)
    for one, other in zip(got, expected, strict=True):
        _close(one.outputs[0], other.outputs[0])


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_logprobs_are_the_targets_when_the_text_is_fed_back(
    models: Models, plain: LLM, mode: str
) -> None:
    for (prompt, params), result in zip(asked := _asked_for_logprobs(mode), run(plain, asked)):
        output = result.outputs[0]
        logits = fed_back(models.target, [*prompt, *output.token_ids])[len(prompt) - 1 : -1]
        for i, token in enumerate(output.token_ids):
            row = logits[i : i + 1]
            if mode == "processed":
                stops = plain.engine.intake.check(prompt, params).stop_ids
                text = Request("", prompt, params, 0, 0, stops, [], output.token_ids[:i])
                row = process(row, [Row(text, [])], Counts(row.shape[1]))
            expected = float(row[0].log_softmax(-1)[token])
            assert output.logprobs[i][token].logprob == pytest.approx(expected, abs=1e-4)


# ---- the distribution under traversal ----

FEW, MANY = 960, 6000  # samples: a rough look always, a close one among the slow tests
PROMPT = [1, 3, 2]
ALPHA = 1e-6  # false alarms of all chi-square tests of this file together
DRAWN: dict[str, dict[str, Any]] = {
    "model": {"method": "draft_model", "num_speculative_tokens": 3},
    "trees": {"method": "drawn_trees", "num_speculative_tokens": 4},
    "replaced": {
        "method": "drawn_trees",
        "num_speculative_tokens": 4,
        "with_replacement": True,
    },
    "ngram": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "processed": {
        "temperature": 1.4,
        "top_k": 3,
        "presence_penalty": 0.6,
        "frequency_penalty": 0.4,
    },
}
QUICK = [("model", "processed"), ("trees", "plain"), ("replaced", "processed")]
CHI_SQUARES = len(QUICK) + len(DRAWN) * len(OPTIONS)


def _next_distribution(folder: str, text: list[int], params: SamplingParams) -> torch.Tensor:
    """[vocabulary] float64, written down anew and not with the engine's code."""
    logits = fed_back(folder, [*PROMPT, *text])[-1].double()
    for token in range(len(logits)):
        times = text.count(token)
        logits[token] -= params.frequency_penalty * times + params.presence_penalty * (times > 0)
    logits /= params.temperature
    if params.top_k:
        logits[logits < logits.sort().values[-params.top_k]] = -inf
    return logits.softmax(-1)


def exact_joint(folder: str, params: SamplingParams) -> dict[tuple[int, ...], float]:
    """P(tokens 2 to 4) by enumeration."""
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(4):
        texts = {
            (*text, token): mass * float(p)
            for text, mass in texts.items()
            for token, p in enumerate(_next_distribution(folder, list(text), params))
        }
    joint: dict[tuple[int, ...], float] = {}
    for text, mass in texts.items():
        joint[text[1:]] = joint.get(text[1:], 0.0) + mass
    return joint


def drawn(models: Models, name: str) -> dict[str, Any]:
    """A drafter under traversal, for the model with the small vocabulary."""
    more = {"model": models.small_noisy} if name == "model" else {}
    return {**DRAWN[name], **more, "verification": "traversal"}


def chi_square_excess(
    folder: str, drafter: dict[str, Any], options: dict[str, Any], samples: int
) -> float:
    """Chi-square of tokens 2 to 4 over its threshold: above 1, the distribution is wrong."""
    llm = make_llm(folder, drafter, max_num_seqs=256, max_num_batched_tokens=2048)
    # Longer than what is looked at: the end of the text shortens drafts.
    wanted = {"n": samples // 8, "max_tokens": 6, "ignore_eos": True, **options}
    results = run(llm, [(PROMPT, SamplingParams(seed=seed, **wanted)) for seed in range(8)])
    assert 0.02 < accept_rate(results) < 0.98, "nothing is tested"
    seen = Counter(tuple(o.token_ids[1:4]) for result in results for o in result.outputs)
    joint = exact_joint(folder, SamplingParams(**wanted))
    assert all(joint[text] > 0 for text in seen)
    large = [text for text, p in joint.items() if samples * p >= 10]
    cells = [(seen[text], samples * joint[text]) for text in large]
    rest = samples * (1 - sum(joint[text] for text in large))
    if rest >= 1:
        cells.append((samples - sum(n for n, _ in cells), rest))
    statistic = sum((n - e) ** 2 / e for n, e in cells)
    return float(statistic / chi2.isf(ALPHA / CHI_SQUARES, len(cells) - 1))


@pytest.mark.parametrize(("name", "options"), QUICK)
def test_traversal_has_the_targets_distribution(models: Models, name: str, options: str) -> None:
    assert chi_square_excess(models.small, drawn(models, name), OPTIONS[options], FEW) < 1


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", DRAWN)
def test_traversal_has_exactly_the_targets_distribution(
    models: Models, name: str, options: str
) -> None:
    assert chi_square_excess(models.small, drawn(models, name), OPTIONS[options], MANY) < 1


# ---- batches ----


@pytest.mark.parametrize("verification", ["coupled", "traversal"])
def test_a_permuted_batch_gives_permuted_outputs(models: Models, verification: str) -> None:
    """Same prompt, other seeds: noise keyed by the place in the batch would show."""
    prompt = random_prompt(1, 8)
    asked = [(prompt, SamplingParams(seed=seed, max_tokens=16)) for seed in range(6)]
    config = drafting(models, "draft_model", 3, verification=verification)
    order = [3, 0, 5, 4, 1, 2]
    straight = run(make_llm(models.target, config), asked)
    permuted = run(make_llm(models.target, config), [asked[i] for i in order])
    texts = [result.outputs[0].token_ids for result in straight]
    assert len({tuple(text) for text in texts}) == len(texts)
    same_results(
        make_llm(models.target), [asked[i] for i in order], permuted, [straight[i] for i in order]
    )


# ---- the figures, in full ----


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECULATIVE)
@pytest.mark.parametrize("length", LENGTHS)
def test_the_seed_decides_longer_texts_alone_and_in_a_batch(
    models: Models, plain: LLM, name: str, length: int
) -> None:
    asked = [
        (random_prompt(200 + i, 4 + 9 * (i % 9)), SamplingParams(seed=i, max_tokens=64))
        for i in range(16)
    ]
    expected = run_alone(plain, asked)
    Trees.learn(asked, expected)
    llm = make_llm(models.target, drafting(models, name, length))
    same_results(llm, asked, run(llm, asked), expected)
    same_results(llm, asked, run_alone(llm, asked), expected)
