"""A pass between its start and its verdicts."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from torch import Tensor

from outrider.core.request import Request
from outrider.core.tree import ROOT, TokenTree
from outrider.drafters.base import Drafter
from outrider.engine.scheduler import Scheduler, Work
from outrider.model.flight import Flight
from outrider.model.segment import LIKELIEST, Choosing, Segment


@dataclass(eq=False)
class Launched:
    work: list[Work]
    trees: list[TokenTree]
    flight: Flight
    started: float  # perf_counter
    drafted: bool = False  # whether its trees were asked for; a pass that ran ahead has none
    rows: list[int] | None = None  # of the pass that still matter; None: all
    shape: tuple[int, int] = (0, 0)  # texts and rows of the pass; 0: those that matter
    modelled: float = 0.0  # seconds that drafters with a model took before it
    leader: Drafter | None = None  # who drafted for it on the device, after the pass before
    # Then its trees have the right shape only, until the pass has landed and this tells the rest.
    guesses: Callable[[], dict[Request, TokenTree]] | None = None
    routine: bool = True  # whether nothing was built meanwhile that others will use again
    # Whether it only writes, and did so when it was launched: what ends a prompt, or a text that is
    # read again, may have its slots replaced by others when its pass is committed. None: find out.
    settled: bool | None = None

    def __post_init__(self) -> None:
        if self.settled is None:
            self.settled = all(
                item.rows == 1 and item.sequence.request.output_ids for item in self.work
            )
        if self.shape == (0, 0):
            drafted = sum([len(tree.tokens) for tree in self.trees])
            self.shape = (len(self.work), drafted + sum([item.rows for item in self.work]))

    def chosen(self) -> list[int] | None:
        """The target's token at every row; waits for the pass. None where it has chosen none."""
        if self.flight.landed is None:
            return None
        tokens = self.flight.landed()
        if self.guesses is not None:
            known = self.guesses()
            self.trees = [known[item.sequence.request] for item in self.work]
        return tokens if self.rows is None else [tokens[row] for row in self.rows]

    @cached_property
    def slots(self) -> dict[Request, int]:
        """How many each text has in it, where it only writes."""
        pairs = zip(self.work, self.trees, strict=True)
        return {item.sequence.request: 1 + len(tree.tokens) for item, tree in pairs}

    @property
    def logits(self) -> Tensor:
        """[rows that still matter, vocabulary]."""
        return self.flight.logits if self.rows is None else self.flight.logits[self.rows]

    @property
    def firsts(self) -> list[int]:
        """Where each text begins, in a pass that only writes: a root and its nodes for each."""
        starts = [0, *accumulate(1 + len(tree) for tree in self.trees)][:-1]
        return starts if self.rows is None else [self.rows[start] for start in starts]

    def still_wanted(self, scheduler: Scheduler) -> "Launched | None":
        """Of a pass that was started ahead, what is left after some of its texts have ended
        meanwhile."""
        running = set(scheduler.running)
        return self.only([item.sequence in running for item in self.work])

    def only(self, kept: list[bool]) -> "Launched | None":
        """What is left of a pass that only writes without some of its texts."""
        if all(kept):  # as mostly
            return self
        parts = zip(kept, self.work, self.trees, self.firsts, strict=True)
        left = [(item, tree, first) for keep, item, tree, first in parts if keep]
        if not left:
            return None
        rows = [row for _, tree, first in left for row in range(first, first + 1 + len(tree))]
        work, trees, _ = map(list, zip(*left, strict=True))
        return replace(self, work=work, trees=trees, rows=rows)


def segment_of(item: Work, tree: TokenTree) -> Segment:
    """The pending rows as a chain, the tree below the last of them."""
    request = item.sequence.request
    start = len(request.slots)
    last = item.rows - 1
    parents = list(range(-1, last)) + [last if p == ROOT else item.rows + p for p in tree.parents]
    tokens = request.tokens[start : start + item.rows] + tree.tokens
    return Segment(
        tokens,
        parents,
        request.reserved[: len(tokens)],
        request.slots,
        logits_from=last if item.completes else len(tokens),
        owner=request,
        choosing=_choosing(request, request.position),
    )


def segment_ahead(item: Work, row: int) -> Segment:
    """The row after the one that `row` of the pass under way is about to decide."""
    request = item.sequence.request
    reserved = request.reserved
    context = request.slots + reserved[:-1]
    choosing = _choosing(request, len(request.output_ids) + 1)
    return Segment([-1 - row], [-1], reserved[-1:], context, 0, request, choosing)


def _choosing(request: Request, position: int) -> Choosing:
    params = request.params
    if params.greedy:
        return LIKELIEST
    return Choosing(
        params.temperature, request.seed, request.sample, position,
        params.top_k, params.top_p, params.min_p,
    )  # fmt: skip
