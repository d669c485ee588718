"""The same promises on a CUDA device; skipped where there is none."""

from pathlib import Path

import pytest
import torch
from tests.tiny import make_tiny, make_tokenizer

from outrider import LLM, SamplingParams
from outrider.audit.run import audit_engine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PROMPTS = [[5 + (i * j) % 290 for j in range(1, 4 + 3 * i)] for i in range(1, 9)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny("llama", tmp_path_factory.mktemp("target"), num_hidden_layers=3)
    make_tokenizer(folder)
    return folder


def ids(target: Path, drafter: object, params: object, **options: object) -> list[list[int]]:
    llm = LLM(str(target), drafter, **options)
    results = llm.generate(PROMPTS, params, use_tqdm=False)
    llm.engine.kv.check()
    return [result.outputs[0].token_ids for result in results]


def all_options(i: int) -> SamplingParams:
    return SamplingParams(
        temperature=0.8,
        top_p=0.9,
        top_k=40,
        min_p=0.01,
        repetition_penalty=1.1,
        frequency_penalty=0.1,
        logit_bias={7: 1.0},
        logprobs=2,
        seed=i,
        max_tokens=24,
    )


@pytest.mark.parametrize("drafter", ["ngram", "self", "traversal"])
def test_float32_ids_are_those_of_the_cpu(target, drafter):
    params = [SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)] * 4
    params += [all_options(i) for i in range(4)]
    config: object = "ngram"
    if drafter != "ngram":
        config = {"model": str(target)}
    if drafter == "traversal":
        params = params[:4] * 2
        config = {"model": str(target), "verification": "traversal"}
    plain = ids(target, None, params, device="cpu", dtype="float32")
    torch.backends.cuda.matmul.allow_tf32 = False
    assert ids(target, config, params, device="cuda", dtype="float32") == plain


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_reproducible_bf16_ids_do_not_depend_on_the_drafter_or_the_pool(target, temperature):
    params = [SamplingParams(temperature=temperature, seed=i, max_tokens=24) for i in range(8)]
    options = {"device": "cuda", "dtype": "bfloat16", "reproducible": True}
    plain = ids(target, None, params, **options)
    assert ids(target, {"model": str(target)}, params, **options) == plain
    assert ids(target, "ngram", params, kv_cache_tokens=100, **options) == plain


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gpt2", "phi3"])
def test_passes_over_few_rows_are_graphs(family, tmp_path):
    """Fused where the layers are known; the module itself where not; both as the CPU has it."""
    folder = make_tiny(family, tmp_path)
    params = [SamplingParams(temperature=i / 4, seed=i, max_tokens=24) for i in range(8)]
    llm = LLM(str(folder), "auto", device="cuda", dtype="float32")
    fused = family in ("llama", "mistral", "qwen2", "qwen3")
    kind = "fused" if fused else "unfused"
    assert llm.engine.runner.way.startswith(f"CUDA graphs, {kind} layers")
    got = [r.outputs[0].token_ids for r in llm.generate(PROMPTS, params, use_tqdm=False)]
    assert got == ids(folder, None, params, device="cpu", dtype="float32")


def test_texts_end_and_leave_while_the_next_pass_is_under_way(target):
    params = [
        SamplingParams(
            temperature=0, max_tokens=4 + 5 * i, stop_token_ids=[*range(20, 20 + 12 * i)]
        )
        for i in range(8)
    ]
    plain = ids(target, None, params, device="cpu", dtype="float32")
    options = {"device": "cuda", "dtype": "float32"}
    assert ids(target, None, params, **options) == plain
    assert ids(target, "auto", params, kv_cache_tokens=200, max_num_seqs=3, **options) == plain


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantised_targets_run_in_graphs(kind, tmp_path):
    pytest.importorskip("torchao")
    folder = make_tiny("llama", tmp_path, hidden_size=64, intermediate_size=128)
    make_tokenizer(folder)
    options = {"device": "cuda", "dtype": "bfloat16", "quantization": kind}
    llm = LLM(str(folder), None, **options)
    why = f"its weights are quantised ({kind})"
    assert llm.engine.runner.way == f"CUDA graphs, unfused layers ({why})"
    plain = LLM(str(folder), None, device="cuda", dtype="bfloat16")
    assert llm.memory.weights < plain.memory.weights
    report = audit_engine(str(folder), "ngram", tokens=8, samples=256, **options)
    assert report.passed, [check.detail for check in report.failures]


def test_engines_stay_within_their_share(target):
    """Slots, graphs and passes together; the second engine finds what the first has left."""
    uses = []
    for _ in range(2):
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        llm = LLM(str(target), {"model": str(target)}, device="cuda", memory_utilization=0.1)
        params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        llm.generate(PROMPTS, params, use_tqdm=False)
        uses.append(llm)  # kept, so that its memory is taken
        use = llm.memory
        assert use.workspace > 0 and use.passes > 0 and use.free <= free
        assert use.kv + use.workspace + use.passes <= 0.1 * use.free
    assert uses[1].memory.free < uses[0].memory.free
