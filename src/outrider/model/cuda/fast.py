"""Which way passes over few rows go on this GPU, decided once, at load."""

import logging
from array import array
from collections.abc import Callable

from torch import Tensor

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.model.admission import allowed_error, difference
from outrider.model.attention import LayerCall
from outrider.model.cuda.fused import FusedModel, unfused_because
from outrider.model.cuda.graphs import Graphs
from outrider.model.cuda.inputs import LIKELIEST, TREE_BITS
from outrider.model.cuda.invariance import check_bits
from outrider.model.cuda.unfused import UnfusedModel
from outrider.model.features import Taps
from outrider.model.loading import LoadedModel
from outrider.model.segment import Choosing, Segment
from outrider.sampling.choose import choose
from outrider.sampling.counts import Counts
from outrider.sampling.process import process
from outrider.sampling.rows import Row

log = logging.getLogger(__name__)

Forward = Callable[[list[Segment]], Tensor]  # logits [rows that need them, vocabulary]

FUSED_LAYERS, UNFUSED_LAYERS = "CUDA graphs, fused layers", "CUDA graphs, unfused layers"
INVARIANT_LAYERS = f"{FUSED_LAYERS}, batch-invariant"
ROUNDING = 3  # times as far from the module as its own packed pass may be: other kernels round at
# other places, which alone makes 6 % for some models in bfloat16; what is wrong differs by 100 %
CONTEXT = 70  # of the probe: more than one block of keys
LONG = TREE_BITS + 1  # rows that are no pass over few rows
TREE = [-1, 0, 0, 1, 2, 0]  # of the probe
DRAWN = Choosing(temperature=0.8, seed=(1 << 40) + 3, sample=2, position=17)
ASKED = [
    LIKELIEST,
    DRAWN,
    DRAWN._replace(top_k=7),
    DRAWN._replace(top_p=0.5),
    DRAWN._replace(top_k=40, top_p=0.9, min_p=0.01),
]


def fast_passes(
    loaded: LoadedModel,
    calls: list[LayerCall],
    lines: int,
    longest: int,
    taps: Taps,
    forward: Forward,
    invariant: bool = False,
) -> tuple[Graphs | None, str]:
    """The graphs and, in words, what they run; none where they cannot reproduce what the module
    does. `forward` is the runner's pass by the module. Slots 1 to `CONTEXT`
    + 7 must be unused; with `invariant`, where a row's bits must not show its pass, up to 128."""
    if len({(c.heads, c.kv_heads, c.value_head_size) for c in calls}) != 1:
        return None, "eager: the layers' heads differ"
    ways: list[tuple[str, Callable[[], FusedModel | UnfusedModel]]] = []
    obstacle = unfused_because(loaded)
    if obstacle is None:
        name = INVARIANT_LAYERS if invariant else FUSED_LAYERS
        ways.append((name, lambda: FusedModel(loaded, calls, longest, taps, invariant)))
    if not invariant:
        ways.append((UNFUSED_LAYERS, lambda: UnfusedModel(loaded.model)))
    first = calls[0]
    vocabulary = loaded.model.get_output_embeddings().weight.shape[0]
    shape = (first.heads, first.kv_heads, first.value_head_size, vocabulary)
    reason = obstacle or ""
    for name, make in ways:
        try:
            graphs = Graphs(make(), *shape, lines, longest, loaded.device)
            error = _error(graphs, forward)
            _check_choices(graphs)
            if invariant:
                check_bits(graphs)
        except Exception as problem:  # compilers and drivers fail in ways of their own
            said = str(problem).splitlines() or [type(problem).__name__]
            reason = f"{name} failed: {said[0]}"
        else:
            if error <= ROUNDING * allowed_error(loaded):
                _add_prompts(graphs, forward, ROUNDING * allowed_error(loaded))
                return graphs, name if reason == "" else f"{name} ({reason})"
            reason = f"{name} differed by {error:.1e}"
        log.warning("%s; trying the next way", reason)
    return None, f"eager ({'reproducible mode: ' if invariant else ''}{reason})"


def _error(graphs: Graphs, forward: Forward) -> float:
    """Of a tree below a prompt, of a lone row beside that, of many rows: against the plain way."""
    context = array("q", range(1, CONTEXT + 1))
    tokens = [(7 * i + 3) % 97 for i in range(CONTEXT)]
    slots = array("q", range(CONTEXT + 1, CONTEXT + 1 + len(TREE)))
    segment = Segment([5, 8, 13, 21, 34, 55], TREE, slots, context, logits_from=0)
    short = Segment.chain([5], array("q", [CONTEXT + 7]), context[:9], logits_from=0)
    forward([Segment.chain(tokens, context, array("q"), logits_from=CONTEXT)])
    worst = 0.0
    several = [[segment] * 4, [segment] * 8]  # whose products are other kernels
    for segments in ([segment], [short], [segment, short], *several):
        expected = forward(segments).float()
        got = graphs.launch(segments).logits[: len(expected)].float()
        worst = max(worst, difference(got, expected))
    return worst


def _add_prompts(graphs: Graphs, forward: Forward, allowed: float) -> None:
    """Have prompts read by the same layers too, many together and few by graphs, if they come out
    right."""

    def problem(add: Callable[[], None], error: Callable[[], float]) -> str:
        try:
            add()
            found = error()
        except Exception as raised:  # compilers and drivers fail in ways of their own
            return str(raised) or type(raised).__name__
        return f"they differed by {found:.1e}" if found > allowed else ""

    if said := problem(graphs.read_together, lambda: _together_error(graphs, forward)):
        graphs.together = None
        log.warning("many prompts are read by the module: together, %s", said)
    if said := problem(graphs.capture_prompts, lambda: _prompt_error(graphs, forward)):
        graphs.prompts = None
        log.warning("prompts are read kernel by kernel: as graphs, %s", said)


def _together_error(graphs: Graphs, forward: Forward) -> float:
    """Of a text alone, and of several, which go on behind what is cached."""
    if graphs.together is None:
        return 0.0
    slots = array("q", range(1, CONTEXT + 2))
    tokens = [(7 * i + 3) % 97 for i in range(CONTEXT)]
    whole = Segment.chain(tokens, slots[:CONTEXT], slots[:0], CONTEXT - 1)
    rest = Segment.chain(tokens[9:], slots[9:CONTEXT], slots[:9], CONTEXT - 10)
    row = Segment.chain([5], slots[CONTEXT:], slots[:9], logits_from=0)
    worst = 0.0
    for segments in ([whole], [rest, row]):
        expected = forward(segments).float()
        flight = graphs.together(segments)
        assert flight.landed is not None
        logits, chosen = flight.logits.float(), flight.landed()
        worst = max(worst, difference(logits, expected))
        best, theirs = logits.amax(1), logits[range(len(chosen)), chosen]
        if not bool((best == theirs).all()):  # several may be the best in low precision
            raise RuntimeError("the tokens they choose are not the likeliest")
    return worst


def _prompt_error(graphs: Graphs, forward: Forward) -> float:
    if graphs.prompts is None:
        return 0.0
    slots = array("q", range(1, CONTEXT + 1))
    tokens = [(7 * i + 3) % 97 for i in range(CONTEXT)]
    expected = forward([Segment.chain(tokens, slots, slots[:0], CONTEXT - 1)]).float()
    worst = 0.0
    for before in (0, CONTEXT - LONG):
        prompt = Segment.chain(tokens[before:], slots[before:], slots[:before], 0)
        prompt.logits_from = len(prompt) - 1
        assert graphs.prompts_among([prompt]), "the text is too short to be one"
        worst = max(worst, difference(graphs.read(prompt).logits.float(), expected))
    return worst


def _check_choices(graphs: Graphs) -> None:
    """Tokens that a pass chooses, by whatever options, are those that the host would choose."""
    context = array("q", range(1, 10))
    segments = [
        Segment([5 + i], [-1], array("q", [CONTEXT + 1 + i]), context, 0, choosing=asked)
        for i, asked in enumerate(ASKED)
    ]
    flight = graphs.launch(segments)
    assert flight.landed is not None
    rows = [_host_row(asked) for asked in ASKED]
    scores = process(flight.logits, rows, Counts(flight.logits.shape[1]))  # [asked, vocabulary]
    expected = choose(scores, rows).tolist()
    for row, asked, got, token in zip(scores, ASKED, flight.landed(), expected, strict=True):
        # In low precision several tokens may be the likeliest.
        if got != token and not (asked == LIKELIEST and row[got] == row[token]):
            raise RuntimeError(f"the token it chooses by {asked} is not what its scores give")


def _host_row(asked: Choosing) -> Row:
    temperature, seed, sample, position, top_k, top_p, min_p = asked
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    return Row(Request("check", [0], params, seed, sample), [0] * position)
