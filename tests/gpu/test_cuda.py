"""The same promises on a CUDA device; skipped where there is none."""

from array import array
from pathlib import Path

import pytest
import torch
from tests.tiny import make_tiny, make_tokenizer

from outrider import LLM, SamplingParams
from outrider.audit.run import audit_engine
from outrider.core.request import Request
from outrider.model.admission import allowed_error, difference
from outrider.model.cuda.workspace import Workspace
from outrider.model.segment import Choosing, Segment
from outrider.sampling.choose import choose
from outrider.sampling.counts import Counts
from outrider.sampling.process import process
from outrider.sampling.rows import Row

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


EXACT = {"device": "cuda", "dtype": "bfloat16", "reproducible": True}


@pytest.mark.parametrize("asked", [{"temperature": 0}, {}, {"top_p": 0.9}, {"top_k": 20}])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_reproducible_bf16_ids_do_not_depend_on_the_drafter_or_the_pool(family, asked, tmp_path):
    folder = make_tiny(family, tmp_path, num_hidden_layers=3)
    make_tokenizer(folder)
    params = [SamplingParams(seed=i, max_tokens=24, **asked) for i in range(8)]
    llm = LLM(str(folder), None, **EXACT)
    assert llm.engine.runner.way == "CUDA graphs, fused layers, batch-invariant"
    plain = [r.outputs[0].token_ids for r in llm.generate(PROMPTS, params, use_tqdm=False)]
    alone = [llm.generate([p], [each], use_tqdm=False)[0] for p, each in zip(PROMPTS, params)]
    assert [result.outputs[0].token_ids for result in alone] == plain
    assert ids(folder, {"model": str(folder)}, params, **EXACT) == plain
    assert ids(folder, "ngram", params, kv_cache_tokens=100, **EXACT) == plain
    assert ids(folder, "auto", params, max_num_seqs=3, **EXACT) == plain


def test_reproducible_texts_longer_than_a_pass(target):
    """Prompts that are read in several passes, more texts than one pass has rows, preemption."""
    prompts = [[5 + (i * j) % 290 for j in range(1, 20 + 7 * i)] for i in range(1, 40)]
    prompts += [[9 + i, 8, 7] for i in range(41)]
    params = [
        SamplingParams(temperature=i % 2, top_p=0.9 + 0.1 * (i % 3 > 0), seed=i, max_tokens=24)
        for i in range(len(prompts))
    ]

    def written(drafter, **options):
        llm = LLM(str(target), drafter, **EXACT, **options)
        results = llm.generate(prompts, params, use_tqdm=False)
        llm.engine.kv.check()
        return [result.outputs[0].token_ids for result in results]

    plain = written(None, max_num_seqs=1)
    assert written(None, max_num_seqs=80) == plain
    assert written("ngram", max_num_seqs=80, kv_cache_tokens=4000) == plain
    assert written("auto", max_num_seqs=16, max_num_batched_tokens=100) == plain


def test_reproducible_mode_without_kernels_for_it(tmp_path):
    """The module itself, in blocks of eight rows."""
    folder = make_tiny("gemma2", tmp_path)
    params = [SamplingParams(seed=i, max_tokens=12) for i in range(8)]
    llm = LLM(str(folder), None, **EXACT)
    assert llm.engine.runner.way == "eager (reproducible mode: no kernels for gemma2)"
    plain = [r.outputs[0].token_ids for r in llm.generate(PROMPTS, params, use_tqdm=False)]
    assert ids(folder, "ngram", params, kv_cache_tokens=100, **EXACT) == plain


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


@torch.inference_mode()
def test_prompts_are_graphs_too(target):
    """Of all sizes, beside a context and without; the same as launch by launch."""
    from outrider.model.cuda.fast import ROUNDING

    runner = LLM(str(target), None, device="cuda", dtype="bfloat16").engine.runner
    graphs = runner.graphs
    assert graphs is not None and graphs.prompts is not None
    slots = array("q", range(1, 513))  # as many as its context has places
    tokens = [(7 * i + 3) % 290 for i in range(len(slots))]
    for length, before in ((65, 0), (96, 31), (200, 90), (500, 1), (512, 250)):
        whole = Segment.chain(tokens[:length], slots[:length], slots[:0], length - 1)
        expected = runner._forward([whole]).float()
        prompt = Segment.chain(tokens[before:length], slots[before:length], slots[:before], 0)
        prompt.logits_from = len(prompt) - 1
        flight = runner.launch([prompt])
        assert flight.landed is not None and flight.replayed
        assert flight.landed() == flight.logits.argmax(-1).tolist()
        allowed = ROUNDING * allowed_error(runner.loaded)
        assert difference(flight.logits.float(), expected) <= allowed


@pytest.mark.parametrize("drafter", [None, "auto"])
def test_passes_truncate_themselves(target, drafter):
    """One of the eight needs the host; the others' tokens come from the pass, and are the same."""
    options = [{"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.05}, {"top_k": 20, "top_p": 0.8}]
    options += [{}, {"temperature": 0, "top_k": 3}, {"top_p": 0.999}, {"repetition_penalty": 1.2}]
    params = [SamplingParams(seed=i, max_tokens=24, **each) for i, each in enumerate(options)]
    plain = ids(target, None, params, device="cpu", dtype="float32")
    assert ids(target, drafter, params, device="cuda", dtype="float32") == plain


def test_a_large_vocabulary_is_truncated_as_on_the_host():
    """Flat and peaked rows of a real size, in the precision of real models."""
    from tests.model.cuda.passes import choosing_inputs

    from outrider.model.cuda import choice, truncation

    rows, vocabulary, device = 64, 151936, torch.device("cuda")
    generator = torch.Generator().manual_seed(1)
    scale = torch.linspace(0.0, 4.0, rows)[:, None]
    logits = (torch.randn(rows, vocabulary, generator=generator) * scale).bfloat16().to(device)
    wanted = [{"top_p": 0.9}, {"top_k": 50}, {"top_k": 20, "top_p": 0.8}, {"min_p": 0.1}]
    params = [SamplingParams(temperature=0.7 + i % 3, **wanted[i % 4]) for i in range(rows)]
    asked = [
        Choosing(p.temperature, i, 0, 3, p.top_k, p.top_p, p.min_p) for i, p in enumerate(params)
    ]
    inputs, size = choosing_inputs(asked), choice.workspace_for(rows, vocabulary)
    memory = truncation.CutMemory.of(rows, vocabulary, device)
    expected = [Row(Request(f"{i}", [0], p, seed=i), [0] * 3) for i, p in enumerate(params)]
    scores = process(logits, expected, Counts(vocabulary, device))  # [rows, vocabulary]
    tokens = choose(scores, expected).tolist()
    for _ in range(20):  # programs arrive in another order every time
        cuts = truncation.find_cuts(logits, inputs, memory)
        work = Workspace.of(size, size, device)
        assert choice.choose(logits, cuts, inputs, work).tolist() == tokens


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
    # int4 weights are stored in tiles of 1,024 inputs: a smaller layer would grow.
    folder = make_tiny("llama", tmp_path, hidden_size=1024, intermediate_size=1024)
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
