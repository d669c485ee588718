"""The promises on the real default model, in float32: the text does not depend on the drafter."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider import LLM, RequestOutput, SamplingParams
from outrider.core.request import Request
from outrider.heads.shipped import shipped_for
from outrider.model.zoo import pull
from outrider.sampling.counts import Counts
from outrider.sampling.noise import Key, Purpose, noise, streams
from outrider.sampling.process import process
from outrider.sampling.rows import Row

pytestmark = pytest.mark.slow

TIE = 1e-3  # two scores closer than this may change places in float32
PROMPTS = [
    "List three uses of copper.",
    "Write a haiku about rain on a tin roof.",
    "What is 17 times 23? Show the steps.",
    "Translate to French: The train leaves at noon.",
    "Write a Python function that reverses a list in place.",
    "Explain photosynthesis to a child in two sentences.",
    "Repeat this list in reverse order: red, green, blue, yellow, red, green, blue.",
    "Summarise: The meeting moved to Tuesday because the hall is being painted on Monday.",
    "Give me a recipe for pancakes.",
    "Who wrote Don Quixote, and when?",
    'Extract the names as JSON: "Ada met Grace and Alan at the station."',
    "Rename x to count: def f(x):\n    for i in range(x):\n        print(i, x)\n    return x",
    "Why is the sky blue?",
    "Write one sentence in the style of a pirate.",
    "Name the planets of the solar system in order.",
    "Complete the series: 2, 4, 8, 16,",
    "Correct the spelling: I recieve the adress tommorow.",
    "Write a SQL query that counts the orders per customer.",
    "Describe a cat without using the word cat.",
    "Say hello five times.",
]
GREEDY = SamplingParams(temperature=0, max_tokens=64)


@pytest.fixture(scope="module")
def target() -> Path:
    return pull("smollm2-135m")


@pytest.fixture(scope="module")
def reference(target: Path) -> Iterator[torch.nn.Module]:
    yield AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def perturbed(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter that is often right and often wrong."""
    folder = tmp_path_factory.mktemp("perturbed")
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise_of_same_size = torch.randn(parameter.shape, generator=generator)
        parameter.data += 0.12 * parameter.data.std() * noise_of_same_size
    model.save_pretrained(folder)
    for file in target.glob("*token*"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def run(
    model: Path, drafter: object, prompts: list[list[int]], params: object
) -> list[RequestOutput]:
    llm = LLM(str(model), drafter, dtype="float32", max_model_len=1024, kv_cache_tokens=16384)
    results = llm.generate(prompts, params, use_tqdm=False)
    llm.engine.kv.check()
    return results


@pytest.fixture(scope="module")
def prompts(target: Path) -> list[list[int]]:
    llm = LLM(str(target), dtype="float32", max_model_len=64, kv_cache_tokens=64)
    return [llm.chat_prompt([{"role": "user", "content": text}]) for text in PROMPTS]


@torch.inference_mode()
def margin(reference: torch.nn.Module, request: Request, a: int, b: int) -> float:
    """The distance of the (perturbed) scores of two tokens after the request's text."""
    logits = reference(torch.tensor([request.tokens])).logits[:, -1].double()
    rows = [Row(request, [])]
    scores = process(logits, rows, Counts(logits.shape[1]))[0]
    if not request.params.greedy:
        key = Key(request.seed, request.sample, request.position, Purpose.CHOICE)
        scores = scores + noise(streams([key]), logits.shape[1])[0]
    return abs(float(scores[a] - scores[b]))


def assert_same(
    reference: torch.nn.Module,
    prompt: list[int],
    params: SamplingParams,
    got: list[int],
    expected: list[int],
) -> None:
    """Equal ids, or a float tie at the first difference; text after a tie proves nothing."""
    for i, (a, b) in enumerate(zip(got, expected, strict=False)):
        if a != b:
            request = Request("tie", prompt, params, params.seed or 0, output_ids=expected[:i])
            distance = margin(reference, request, a, b)
            assert distance < TIE, f"token {i}: {a} instead of {b}, margin {distance:.2e}"
            return
    assert len(got) == len(expected)


def test_greedy_ids_equal_transformers_generate(target, reference, perturbed, prompts):
    expected = []
    for prompt in prompts:
        out = reference.generate(torch.tensor([prompt]), max_new_tokens=64, do_sample=False)
        expected.append(out[0, len(prompt) :].tolist())
    perturbed_draft = {"model": str(perturbed), "num_speculative_tokens": 3}
    shipped = {"model": shipped_for("smollm2-135m"), "num_speculative_tokens": 3}
    for drafter in (None, "ngram", perturbed_draft, shipped):
        results = run(target, drafter, prompts, GREEDY)
        for prompt, result, ids in zip(prompts, results, expected, strict=True):
            assert_same(reference, prompt, GREEDY, result.outputs[0].token_ids, ids)
        accepted = sum(result.speculation.accepted for result in results)
        drafted = sum(result.speculation.drafted for result in results)
        if drafter is perturbed_draft:
            assert 0.1 < accepted / drafted < 0.9  # it was really right and really wrong
        if drafter is shipped:
            assert 1 + accepted / drafted * 3 > 1.8  # tokens per pass: it has learned something


def test_the_target_as_its_own_drafter_is_accepted_in_full(target, prompts):
    drafter = {"method": "draft_model", "model": str(target), "num_speculative_tokens": 3}
    for params in (GREEDY, SamplingParams(temperature=1.0, seed=5, max_tokens=64)):
        for result in run(target, drafter, prompts[:8], params):
            counts = result.speculation
            # Only the last step of a text may be cut, by its end.
            assert counts.drafted - counts.accepted <= 3
            assert counts.accepted_per_position[0] >= counts.drafts - 1


SEEDED = [SamplingParams(temperature=1.0, seed=100 + i, max_tokens=64) for i in range(16)]


@pytest.fixture(scope="module")
def plain(target: Path, prompts: list[list[int]]) -> list[RequestOutput]:
    return run(target, None, prompts[:16], SEEDED)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_the_seed_decides_the_text(target, reference, perturbed, prompts, plain, k):
    params = SEEDED
    drafters = [
        {"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_min": 1},
        {"method": "draft_model", "model": str(perturbed), "num_speculative_tokens": k},
    ]
    for drafter in drafters:
        batch = run(target, drafter, prompts[:16], params)
        alone = run(target, drafter, prompts[k : k + 1], params[k : k + 1])
        assert sum(result.speculation.accepted for result in batch) > 0
        for i in range(16):
            ids = plain[i].outputs[0].token_ids
            assert_same(reference, prompts[i], params[i], batch[i].outputs[0].token_ids, ids)
        ids = plain[k].outputs[0].token_ids
        assert_same(reference, prompts[k], params[k], alone[0].outputs[0].token_ids, ids)
