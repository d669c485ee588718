"""A chi-square test of output tokens 2 to 4, the first ones that pass through verification."""

from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor

from outrider.audit.reference import Reference
from outrider.audit.report import Check
from outrider.audit.statistics import detectable_variation, noncentral_sf

DEPTH = 4  # tokens per sample that are looked at; the first only says which group it is in
LEAST = 10.0  # expected count of a cell, so that the chi-square approximation holds
# An expected count that one observation refutes: hundreds of such cells stay below the level.
NEVER = 1e-10

Prefix = tuple[int, ...]  # the first output tokens of a sample


class Tree:
    """The exact distribution of what follows the prompt, one prefix at a time."""

    def __init__(
        self, reference: Reference, prompt: list[int], other: Reference | None = None
    ) -> None:
        self.reference = reference
        self.prompt = prompt
        self.other = other  # a second opinion on the logits, to see how large rounding is
        self._logits: dict[Prefix, tuple[Tensor, Tensor]] = {}  # each [vocabulary]

    def fetch(self, prefixes: list[Prefix]) -> None:
        """All prefixes have one length."""
        missing = [prefix for prefix in prefixes if prefix not in self._logits]
        if not missing:
            return
        texts = [[*self.prompt, *prefix] for prefix in missing]
        logits = self.reference.last(texts)
        again = self.other.last(texts) if self.other else self.reference.last(texts, alone=True)
        self._logits.update(zip(missing, zip(logits, again, strict=True), strict=True))

    def probabilities(self, prefix: Prefix, law: "Law") -> tuple[Tensor, Tensor]:
        """p of the next token, by either opinion: each [vocabulary] float64."""
        first, second = self._logits[prefix]
        return law.apply(first), law.apply(second)


@dataclass(frozen=True)
class Law:
    """How logits become probabilities, written out once more, apart from the sampler's code."""

    temperature: float = 1.0
    bias: dict[int, float] = field(default_factory=dict)

    def apply(self, logits: Tensor) -> Tensor:
        scores = logits.clone()
        for token, value in self.bias.items():
            scores[token] += value
        return (scores / self.temperature).softmax(-1)


@dataclass
class Cell:
    expected: float
    again: float  # expected by the second opinion
    observed: int = 0


def judge_distribution(
    name: str, tree: Tree, law: Law, samples: list[Prefix], level: float
) -> Check:
    """samples: the first tokens of each. Given the first one, the next are judged.

    Where nothing can be counted, the check fails and is not `tested`.
    Half of `level` goes to the chi-square test, half to tokens that should never occur at all.
    """
    counts = Counter(sample[:DEPTH] for sample in samples if len(sample) >= DEPTH)
    outcome = _Outcome()
    for cells in _cells(tree, law, counts):
        outcome.add(cells)
    figures = {"samples": outcome.judged, "degrees_of_freedom": outcome.df, "level": level}
    if outcome.impossible:
        detail = f"{outcome.impossible} of {len(samples)} samples hold a token of probability 0"
        return Check(name, False, detail, figures=figures | {"impossible": outcome.impossible})
    if not outcome.df:
        detail = (
            f"not tested: too few samples, no two outcomes of tokens 2 to {DEPTH} are likely enough"
            " to be counted"
            if counts
            else f"nothing was judged: no sample has {DEPTH} tokens"
        )
        return Check(name, False, detail, figures=figures, tested=False)
    p_value = noncentral_sf(outcome.statistic, outcome.df, outcome.shift)
    smallest = detectable_variation(outcome.judged, outcome.df, level / 2, outcome.shift)
    detail = (
        f"chi-square {outcome.statistic:.1f} on {outcome.df} degrees of freedom, p = {p_value:.2g}"
        f" (fails below {level / 2:.1g}); would find a total variation of {smallest:.3f}"
    )
    figures |= {
        "chi_square": outcome.statistic,
        "p_value": p_value,
        "rounding_noncentrality": outcome.shift,
        "detectable_total_variation": smallest,
    }
    return Check(name, p_value >= level / 2, detail, figures=figures)


@dataclass
class _Outcome:
    """Sums over the groups, which are independent of each other."""

    statistic: float = 0.0
    shift: float = 0.0  # noncentrality that rounding of the logits may add
    df: int = 0
    judged: int = 0
    impossible: int = 0

    def add(self, cells: list[Cell]) -> None:
        self.impossible += sum(cell.observed for cell in cells if cell.expected < NEVER)
        cells = _pooled(cells)
        if len(cells) < 2:
            return
        self.judged += sum(cell.observed for cell in cells)
        self.df += len(cells) - 1
        self.statistic += sum((c.observed - c.expected) ** 2 / c.expected for c in cells)
        self.shift += sum((c.again - c.expected) ** 2 / c.expected for c in cells)


def _cells(tree: Tree, law: Law, counts: Counter[Prefix]) -> list[list[Cell]]:
    """Per first token, the outcomes of the next ones: whole paths, and what leaves them."""
    groups = Counter(sample[0] for sample in counts.elements())
    leaves: dict[Prefix, Cell] = {}
    level: dict[Prefix, Cell] = {
        (first,): Cell(n, n) for first, n in groups.items() if n >= 2 * LEAST
    }
    for _ in range(1, DEPTH):
        if level:
            tree.fetch(list(level))
        below: dict[Prefix, Cell] = {}
        for prefix, cell in level.items():
            below |= _split(tree, law, prefix, cell, leaves)
        level = below
    leaves |= level
    for sample, times in counts.items():
        ends = (sample[:n] for n in range(DEPTH, 0, -1))
        leaf = next((leaves[end] for end in ends if end in leaves), None)
        if leaf is not None:
            leaf.observed += times
    return [[c for path, c in leaves.items() if path[0] == first] for first in groups]


def _split(
    tree: Tree, law: Law, prefix: Prefix, cell: Cell, leaves: dict[Prefix, Cell]
) -> dict[Prefix, Cell]:
    """The likely next tokens, to be looked into; all others become a leaf under `prefix`."""
    p, again = tree.probabilities(prefix, law)
    likely = p * cell.expected >= LEAST  # [vocabulary]
    leaves[prefix] = Cell(
        cell.expected * float(p[~likely].sum()), cell.again * float(again[~likely].sum())
    )
    return {
        (*prefix, t): Cell(cell.expected * float(p[t]), cell.again * float(again[t]))
        for t in likely.nonzero()[:, 0].tolist()
    }


def _pooled(cells: list[Cell]) -> list[Cell]:
    """Cells below LEAST become one; if that is still too small, the smallest other joins it."""
    cells = sorted(cells, key=lambda cell: cell.expected)
    few = [cell for cell in cells if cell.expected < LEAST]
    if few and sum(cell.expected for cell in few) < LEAST:
        few = cells[: len(few) + 1]
    if not few:
        return cells
    pool = Cell(
        sum(cell.expected for cell in few),
        sum(cell.again for cell in few),
        sum(cell.observed for cell in few),
    )
    return [pool, *cells[len(few) :]]
