"""What the engine's tests share: tiny models, drafters made for tests, and the tie clause."""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.tiny import VOCAB, make_tiny, make_tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

from outrider.core.outputs import RequestOutput
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import ROOT, TokenTree
from outrider.drafters import registry
from outrider.drafters.base import Drafter
from outrider.engine.engine import Engine
from outrider.engine.llm import LLM
from outrider.sampling.counts import Counts
from outrider.sampling.noise import Key, Purpose, noise, streams
from outrider.sampling.process import process
from outrider.sampling.rows import Row

TIE = 1e-3  # two choices whose scores differ by less may swap in float32
POOL = 4000  # KV slots where a test does not care

# ---- tiny models ----


@dataclass(frozen=True)
class Models:
    target: str
    noisy: str  # the target with a few percent of noise on its weights: accepted now and then
    small: str  # a tiny vocabulary, so that its distributions can be enumerated
    small_noisy: str


def make_models(folder: Path) -> Models:
    target = make_tiny("llama", folder / "target", seed=3)
    make_tokenizer(target)
    noisy = perturbed(target, folder / "noisy", 0.05)
    make_tokenizer(noisy)
    # Every token has a real chance; without padding, as its embedding would be zero.
    flat = {"vocab_size": 4, "initializer_range": 0.25, "pad_token_id": None}
    small = make_tiny("llama", folder / "small", seed=5, **flat)
    return Models(
        str(target), str(noisy), str(small), str(perturbed(small, folder / "small_noisy", 0.3))
    )


def perturbed(source: Path, folder: Path, share: float) -> Path:
    """A copy whose weights carry noise of `share` of their own spread."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        spread = parameter.std(correction=0)
        parameter.data += share * spread * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(folder)
    return folder


def make_llm(model: str, drafter: str | dict[str, Any] | None = None, **options: Any) -> LLM:
    return LLM(
        model, drafter, **{"device": "cpu", "dtype": "float32", "kv_cache_tokens": POOL, **options}
    )


@cache
def reference(folder: str) -> Any:
    """transformers' own model, in float32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def fed_back(folder: str, tokens: list[int]) -> Tensor:
    """[tokens, vocabulary]: what transformers' own forward says after each token of a text."""
    return reference(folder)(torch.tensor([tokens]), use_cache=False).logits[0].float()


# ---- the tie clause ----


def scores_after(
    folder: str, engine: Engine, prompt: list[int], params: SamplingParams, sample: int, text: list
) -> Tensor:
    """[vocabulary]: the perturbed scores of the next token, recomputed from nothing."""
    checked = engine.intake.check(prompt, params)
    seed = params.seed or 0
    request = Request(
        "", prompt, params, seed, sample, checked.stop_ids, checked.bad_words, list(text)
    )
    logits = fed_back(folder, [*prompt, *text])[-1:]
    scores = process(logits, [Row(request, [])], Counts(logits.shape[1]))
    if not params.greedy:
        key = Key(seed, sample, len(text), Purpose.CHOICE)
        scores = scores + noise(streams([key]), scores.shape[1])
    return scores[0]


def first_difference(a: list[int], b: list[int]) -> int | None:
    if a == b:
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def same_up_to_ties(
    llm: LLM,
    prompt: list[int],
    params: SamplingParams,
    a: list[int],
    b: list[int],
    sample: int = 0,
) -> None:
    """Two outputs of one request are equal, or differ first where both choices were as good."""
    at = first_difference(a, b)
    if at is None:
        return
    assert at < min(len(a), len(b)), f"equal up to {at}, but {len(a)} and {len(b)} tokens long"
    scores = scores_after(llm.model_name, llm.engine, prompt, params, sample, a[:at])
    margin = float(scores.max() - min(scores[a[at]], scores[b[at]]))
    assert margin < TIE, f"output {at}: token {a[at]} and {b[at]}, scores differ by {margin:.2e}"


Ask = tuple[list[int], SamplingParams]  # a prompt and what is asked of it


def same_results(
    llm: LLM, asked: Iterable[Ask], got: list[RequestOutput], expected: list[RequestOutput]
) -> None:
    for (prompt, params), x, y in zip(asked, got, expected, strict=True):
        assert x.error == y.error
        assert len(x.outputs) == len(y.outputs) == params.n
        for one, other in zip(x.outputs, y.outputs):
            same_up_to_ties(llm, prompt, params, one.token_ids, other.token_ids, one.index)
            if one.token_ids == other.token_ids:
                ends = (one.text, one.finish_reason, one.stop_reason)
                assert ends == (other.text, other.finish_reason, other.stop_reason)


def run(llm: LLM, asked: list[Ask]) -> list[RequestOutput]:
    """All in one batch."""
    return llm.generate([p for p, _ in asked], [s for _, s in asked], use_tqdm=False)


def run_alone(llm: LLM, asked: list[Ask]) -> list[RequestOutput]:
    return [run(llm, [ask])[0] for ask in asked]


# ---- requests ----


def random_prompt(seed: int, length: int, vocabulary: int = VOCAB - 20) -> list[int]:
    """Some of it repeats, so that prompt lookup finds something."""
    rng = random.Random(seed)
    start = [rng.randrange(4, vocabulary) for _ in range(length)]
    return (start + start[: length // 2])[-length:]


def favour_low_ids(path: list[int], logits: Tensor) -> Tensor:
    """A user's processor that depends on the path."""
    return logits - 0.003 * (1 + len(path) % 3) * torch.arange(len(logits))


def ban_the_last_two(path: list[int], logits: Tensor) -> Tensor:
    for token in path[-2:]:
        logits[token] = -torch.inf
    return logits


def mixed_options(tokens: int) -> list[dict[str, Any]]:
    """Sixteen ways to ask; together they use every option."""
    options: list[dict[str, Any]] = [
        {},
        {"top_k": 20},
        {"top_p": 0.8},
        {"min_p": 0.05},
        {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
        {"logit_bias": {5: 14.0, 77: 14.0, 9: -100.0}},
        {"bad_words": ["e", "the", " r"]},
        {"min_tokens": tokens // 2, "logit_bias": {0: 6.0}},
        {"stop": ["a", "ri"], "min_tokens": 4},
        {"stop_token_ids": [*range(30, 60)], "include_stop_str_in_output": True},
        {"ignore_eos": True, "logit_bias": {0: 4.0}},
        {"n": 2, "top_p": 0.9},
        {"logprobs": 3, "top_k": 50},
        {"logits_processors": [favour_low_ids, ban_the_last_two]},
        {"temperature": 0.0, "frequency_penalty": 1.0},
        {"temperature": 1.7, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "logprobs": 0},
    ]
    return [{"max_tokens": tokens, "seed": 100 + i, **o} for i, o in enumerate(options)]


def mixed_requests(tokens: int) -> list[Ask]:
    return [
        (random_prompt(i, 3 + 5 * (i % 7)), SamplingParams(**options))
        for i, options in enumerate(mixed_options(tokens))
    ]


# ---- drafters for tests ----


class Trees(Drafter):
    """Random trees: several branches, some along the true text, twins among the siblings."""

    name = "trees"
    longest = 8
    truth: dict[Any, list[int]] = {}  # noqa: RUF012  request -> what the target will write

    @classmethod
    def learn(cls, asked: list[Ask], results: list[RequestOutput]) -> None:
        for (prompt, params), result in zip(asked, results, strict=True):
            for output in result.outputs:
                cls.truth[tuple(prompt), params.seed, output.index] = output.token_ids

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        return [self._tree(request, budget) for request, budget in zip(batch, budgets)]

    def _tree(self, request: Request, budget: int) -> TokenTree:
        rng = random.Random(f"{request.seed} {request.sample} {request.position}")
        key = (tuple(request.prompt_ids), request.seed, request.sample)
        true = self.truth.get(key, [])[request.position :]
        tokens: list[int] = []
        parents: list[int] = []
        right = {ROOT: 0}  # nodes on the true path -> their depth
        for node in range(budget):
            parent = rng.choice([ROOT, *range(node)][-4:])
            siblings = [t for t, p in zip(tokens, parents) if p == parent]
            depth = right.get(parent)
            if depth is not None and depth < len(true) and rng.random() < 0.7:
                token = true[depth]
                right[node] = depth + 1
            elif siblings and rng.random() < 0.3:
                token = rng.choice(siblings)
            else:
                token = rng.choice([*request.tokens[-5:], rng.randrange(4, 300)])
            tokens.append(token)
            parents.append(parent)
        return TokenTree(tokens, parents, source=self.name)


class DrawnTrees(Drafter):
    """Random shapes, each token drawn from a row of q that depends on its path."""

    name = "drawn_trees"
    options = {"with_replacement": False}  # noqa: RUF012
    longest = 5

    def __init__(self, config: Any, target: Any) -> None:
        super().__init__(config, target)
        self.vocabulary = target.model.config.vocab_size
        self.rng = random.Random(9)

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        return [self._tree(request, budget) for request, budget in zip(batch, budgets)]

    def _tree(self, request: Request, budget: int) -> TokenTree:
        replaced = self.option("with_replacement")
        shape = random.Random(f"{request.seed} {request.position}")  # may not see the tokens
        tokens: list[int] = []
        parents: list[int] = []
        rows: list[list[float]] = []
        for node in range(budget):
            parent = shape.choice([ROOT, *range(node)])
            siblings = [t for t, p in zip(tokens, parents) if p == parent]
            if not replaced and len(siblings) == self.vocabulary:
                continue
            path = TokenTree(tokens, parents, "").path_tokens(parent)
            q = self._row([*request.tokens[-1:], *path])
            left = [0.0 if t in siblings and not replaced else x for t, x in enumerate(q)]
            tokens.append(self.rng.choices(range(self.vocabulary), left)[0])
            parents.append(parent)
            rows.append(q)
        q_rows = torch.tensor(rows, dtype=torch.float64)
        return TokenTree(
            tokens, parents, source=self.name, q=q_rows, with_replacement=bool(replaced)
        )

    def _row(self, text: list[int]) -> list[float]:
        rng = random.Random(f"q {text}")
        weights = [0.1 + rng.random() for _ in range(self.vocabulary)]
        return [weight / sum(weights) for weight in weights]


def entry_point(name: str, found: Any) -> Any:
    return SimpleNamespace(name=name, value=f"tests:{found!r}", load=lambda: found)


@contextmanager
def registered(*drafters: type[Drafter]) -> Iterator[None]:
    """As if another package had registered these drafters."""
    points = [entry_point(drafter.name, drafter) for drafter in drafters]

    def fake(group: str, name: str | None = None) -> list[Any]:
        assert group == registry.ENTRY_POINTS
        return [point for point in points if name in (None, point.name)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "entry_points", fake)
        yield


def drafters(models: Models) -> dict[str, str | dict[str, Any] | None]:
    """Every way of drafting that the coupled tests compare; lengths are to be added."""
    return {
        "none": None,
        "ngram": {"method": "ngram", "prompt_lookup_min": 1},
        "draft_model": {"method": "draft_model", "model": models.noisy},
        "trees": {"method": "trees"},
    }


def drafting(models: Models, name: str, length: int, **more: Any) -> dict[str, Any] | None:
    config = drafters(models)[name]
    if config is None:
        return None
    return {**config, "num_speculative_tokens": length, **more}  # type: ignore[dict-item]


def accept_rate(results: Iterable[RequestOutput]) -> float:
    spec = [result.speculation for result in results]
    return sum(s.accepted for s in spec) / max(1, sum(s.drafted for s in spec))


def finish(engine: Engine) -> dict[str, RequestOutput]:
    """Step until nothing is left, checking the slots after every step."""
    results = {}
    while not engine.idle:
        for delta in engine.step():
            if delta.result is not None:
                results[delta.request_id] = delta.result
        engine.kv.check()
    return results
