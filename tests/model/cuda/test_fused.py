"""Fused layers against the Hugging Face module, in Triton's interpreter where there is no GPU."""

import random
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.model.cuda.passes import DEVICE, make_inputs
from tests.tiny import VOCAB, make_tiny

from outrider.model.cuda.fused import FusedModel, unfused_because
from outrider.model.cuda.invariant_attention import workspace_for as path_parts
from outrider.model.cuda.linear import MOST_ROWS, Norm, Stream, from_stream, into_stream
from outrider.model.cuda.linear import workspace_for as workspace_for_products
from outrider.model.cuda.projection import can_project
from outrider.model.cuda.tree_attention import workspace_for
from outrider.model.cuda.unfused import UnfusedModel
from outrider.model.cuda.workspace import Workspace
from outrider.model.features import Tap
from outrider.model.loading import load_model
from outrider.model.runner import Runner
from outrider.model.segment import Segment

# Heads of 16 are projected and rotated in one kernel (Llama's by two programs for each line), those
# of 8 and those with norms of their own in two.
SHAPES = {
    "llama": {"hidden_size": 160, "head_dim": 16},
    "mistral": {"sliding_window": 8},
    "qwen2": {"hidden_size": 64},
    "qwen3": {"head_dim": 16},
}


def runner_of(family: str, folder: Path, taps: tuple[Tap, ...] = (), **options: object) -> Runner:
    make_tiny(family, folder, **options)
    runner = Runner(load_model(str(folder), dtype="float32", device=str(DEVICE)))
    if taps:
        runner.tap(taps, lambda states: states)
    runner.allocate(100)
    for parameter in runner.model.parameters():  # on a CPU they are laid out for its own products
        parameter.data = parameter.data.contiguous()
    return runner


def work_for(runner: Runner, model: FusedModel, rows: int) -> Workspace:
    call = runner.layers[0]
    parts, weights = workspace_for(rows, False, call.heads, call.kv_heads, call.value_head_size)
    return Workspace.of(max(parts, model.most_parts), weights, DEVICE)


def prompt(length: int, first: int, seed: int) -> Segment:
    tokens = random.Random(seed).choices(range(VOCAB), k=length)
    slots = array("q", range(first, first + length))
    return Segment.chain(tokens, slots, array("q"), logits_from=0)


@pytest.mark.parametrize("family", list(SHAPES))
@torch.inference_mode()
def test_fused_layers_are_the_modules(family: str, tmp_path: Path) -> None:
    """A tree and a lone row, beside padding, below texts that the module has read."""
    runner = runner_of(family, tmp_path, (0, 1, "final"), **SHAPES[family])
    one, two = prompt(21, 1, seed=1), prompt(5, 30, seed=2)
    runner.forward([one, two])
    tree = Segment([5, 6, 7, 8], [-1, 0, 0, 1], array("q", [40, 41, 42, 43]), one.slots, 0)
    lone = Segment([9], [-1], array("q", [44]), two.slots, 0)
    expected = runner.forward([tree, lone]).clone()  # [5, vocabulary]
    features = runner.taps.features[0]
    states = features.store[40:45].clone()
    features.store[40:45] = 0
    assert unfused_because(runner.loaded) is None
    model = FusedModel(runner.loaded, runner.layers, positions=64, taps=runner.taps)
    inputs = make_inputs([tree, lone], rows=6, group=2)
    work = work_for(runner, model, 6)
    got = model(inputs, torch.zeros(6, dtype=torch.int64, device=DEVICE), work)
    torch.testing.assert_close(got[:5], expected, rtol=1e-4, atol=1e-4)
    # The padding row has written nothing to the scrap slot, which all padding reads.
    assert not any(call.module.outrider_kv.keys[0].any() for call in runner.layers)
    torch.testing.assert_close(features.store[40:45], states, rtol=1e-4, atol=1e-4)
    # The parameters are views of the fused tensors now, and still the same.
    torch.testing.assert_close(runner.forward([tree, lone]), expected)


@pytest.mark.parametrize("kind", ["int8", "int4"])
@torch.inference_mode()
def test_quantised_layers_go_unfused(kind: str, tmp_path: Path) -> None:
    """They look plain by dtype and shape. In the graph it is the module that runs."""
    pytest.importorskip("torchao")
    if kind == "int4" and DEVICE.type == "cuda":
        pytest.skip("float32; int4 on a GPU is bfloat16")
    make_tiny("llama", tmp_path)
    loaded = load_model(str(tmp_path), dtype="float32", device=str(DEVICE), quantization=kind)
    assert unfused_because(loaded) == f"its weights are quantised ({kind})"
    unknown = unfused_because(replace(loaded, quantization=None))
    assert unknown == "its weights are not plain tensors of one kind"
    runner = Runner(loaded)
    runner.allocate(100)
    text = prompt(21, 1, seed=1)
    runner.forward([text])
    tree = Segment([5, 6, 7, 8], [-1, 0, 0, 1], array("q", [40, 41, 42, 43]), text.slots, 0)
    expected = runner.forward([tree]).clone()  # [4, vocabulary]
    inputs = make_inputs([tree], rows=4, group=2)
    call = runner.layers[0]
    sizes = workspace_for(4, False, call.heads, call.kv_heads, call.value_head_size)
    work = Workspace.of(*sizes, DEVICE)
    previous = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    got = UnfusedModel(runner.model)(inputs, previous, work)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("copies", "rows"), [(1, 4), (5, 24), (9, 48)])
@torch.inference_mode()
def test_heads_that_are_projected_and_rotated_at_once(
    copies: int, rows: int, tmp_path: Path
) -> None:
    """As real ones are: 64 elements each. Many rows are other products; here, one tree again and
    again, as the probe at load has it."""
    runner = runner_of("qwen2", tmp_path, head_dim=64)
    model = FusedModel(runner.loaded, runner.layers, positions=64, taps=runner.taps)
    assert can_project(model.layers[0].qkv, model.head_size, rows)
    text = prompt(21, 1, seed=1)
    runner.forward([text])
    tree = Segment([5, 6, 7, 8], [-1, 0, 0, 1], array("q", [40, 41, 42, 43]), text.slots, 0)
    expected = runner.forward([tree]).clone()  # [4, vocabulary]
    inputs = make_inputs([tree] * copies, rows, group=2)
    previous = torch.zeros(rows, dtype=torch.int64, device=DEVICE)
    got = model(inputs, previous, work_for(runner, model, rows))[: 4 * copies]
    torch.testing.assert_close(got, expected.repeat(copies, 1), rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_a_token_below_zero_is_what_the_pass_before_chose(tmp_path: Path) -> None:
    runner = runner_of("llama", tmp_path)
    model = FusedModel(runner.loaded, runner.layers, positions=64, taps=runner.taps)
    work = work_for(runner, model, 2)
    chosen = torch.tensor([17, 23], device=DEVICE)

    def logits(tokens: list[int]) -> torch.Tensor:
        rows = [
            Segment([t], [-1], array("q", [9 - i]), array("q"), 0) for i, t in enumerate(tokens)
        ]
        return model(make_inputs(rows, 2, group=2), chosen, work)

    torch.testing.assert_close(logits([-2, -1]), logits([23, 17]))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@torch.inference_mode()
def test_invariant_layers_are_the_modules_and_do_not_show_the_pass(
    family: str, tmp_path: Path
) -> None:
    """Within rounding the module's; to the bit their own, in whatever pass."""
    runner = runner_of(family, tmp_path, **SHAPES[family])
    model = FusedModel(runner.loaded, runner.layers, 64, runner.taps, invariant=True)
    call = runner.layers[0]
    sizes = path_parts(64, call.heads, call.value_head_size)
    work = Workspace.of(max(sizes[0], model.most_parts), sizes[1], DEVICE)

    def logits(segments: list[Segment], rows: int) -> torch.Tensor:
        previous = torch.zeros(rows, dtype=torch.int64, device=DEVICE)
        return model(make_inputs(segments, rows, group=2), previous, work)

    text = prompt(12, 1, seed=1)
    expected = runner.forward([text]).clone()
    read = logits([text], 12)
    torch.testing.assert_close(read, expected, rtol=1e-4, atol=1e-4)
    before = text.slots[:9]
    one = Segment(text.tokens[9:10], [-1], array("q", [40]), before, 0)
    assert torch.equal(logits([one], 1)[0], read[9])
    tokens = [5, text.tokens[9], 6, 7, text.tokens[10]]
    tree = Segment(tokens, [-1, -1, 0, 1, 1], array("q", range(41, 46)), before, 0)
    others = prompt(11, 50, seed=2)
    assert torch.equal(logits([others, tree], 17)[[12, 15]], read[[9, 10]])


@pytest.mark.parametrize(("width", "inner"), [(48, 160), (192, 1024)])  # the latter by two programs
def test_products_cut_up_for_the_same_rows_are_equal_to_the_bit(width: int, inner: int) -> None:
    torch.manual_seed(0)
    norm = Norm(torch.rand(width, device=DEVICE), 1e-5)
    hidden, x = torch.randn(64, width, device=DEVICE), torch.randn(64, inner, device=DEVICE)
    weight, out = torch.randn(width, inner, device=DEVICE), torch.randn(96, width, device=DEVICE)
    work = Workspace.of(workspace_for_products(width), 1, DEVICE)

    def results(chosen: list[int]) -> torch.Tensor:
        """[rows, all results]"""
        stream = Stream.like(weight.t(), len(chosen), MOST_ROWS)
        stream.hidden.copy_(hidden[chosen])
        into_stream(x[chosen], weight, None, stream, norm, work)
        products = [from_stream(stream, norm, work, out, gated=gated) for gated in (False, True)]
        return torch.cat([stream.hidden, stream.squares, *products], 1)

    known = results(list(range(64)))
    for chosen in ([63], [5, 0, 17, 2, 40], list(range(20, 37))):
        assert torch.equal(results(chosen), known[chosen])


def normed(stream: Stream, norm: Norm) -> torch.Tensor:
    width = (stream.hidden.shape[1],)
    return torch.nn.functional.rms_norm(stream.hidden, width, norm.weight, norm.epsilon)


@pytest.mark.parametrize("rows", [1, 5, 17, 40, 70])
@pytest.mark.parametrize(("width", "inner"), [(48, 160), (100, 36)])
def test_products_into_the_stream_and_out_of_it(rows: int, width: int, inner: int) -> None:
    torch.manual_seed(rows)
    norm = Norm(torch.rand(width, device=DEVICE), 1e-5)
    embedding = torch.empty(1, width, device=DEVICE)
    stream, work = Stream.like(embedding, rows), Workspace.of(100_000, 1, DEVICE)
    stream.hidden.normal_()
    before = stream.hidden.clone()
    x, w = torch.randn(rows, inner, device=DEVICE), torch.randn(width, inner, device=DEVICE)
    bias = torch.randn(width, device=DEVICE)
    into_stream(x, w, bias, stream, norm, work)
    torch.testing.assert_close(stream.hidden, before + x @ w.T + bias, rtol=1e-4, atol=1e-4)
    out = torch.randn(2 * inner, width, device=DEVICE)
    plain = from_stream(stream, norm, work, out)
    torch.testing.assert_close(plain, normed(stream, norm) @ out.T, rtol=1e-4, atol=1e-4)
    gate, up = plain.chunk(2, -1)
    gated = from_stream(stream, norm, work, out, gated=True)
    torch.testing.assert_close(gated, torch.nn.functional.silu(gate) * up, rtol=1e-4, atol=1e-4)
    assert not work.arrived.any()
    sums = stream.squares.sum(1)
    if rows <= 64:  # beyond that nobody reads them
        torch.testing.assert_close(sums, stream.hidden.square().sum(1), rtol=1e-4, atol=1e-4)
