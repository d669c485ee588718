"""A pass between its start and its verdicts."""

from array import array
from dataclasses import dataclass

from outrider.core.request import Request
from outrider.core.tree import ROOT, TokenTree
from outrider.engine.scheduler import Scheduler, Work
from outrider.model.flight import Flight
from outrider.model.segment import Choosing, Segment


@dataclass(eq=False)
class Launched:
    work: list[Work]
    trees: list[TokenTree]
    flight: Flight
    started: float  # perf_counter
    rows: list[int] | None = None  # of the pass that still matter; None: all

    def chosen(self) -> list[int] | None:
        """The target's token at every row; waits for the pass. None where it has chosen none."""
        if self.flight.landed is None:
            return None
        tokens = self.flight.landed()
        return tokens if self.rows is None else [tokens[row] for row in self.rows]

    def still_wanted(self, scheduler: Scheduler) -> "Launched | None":
        """Of a pass that ran ahead, what is left after some of its texts have ended meanwhile."""
        running = set(scheduler.running)
        going = [i for i, item in enumerate(self.work) if item.sequence in running]
        if not going:
            return None
        work, trees = [self.work[i] for i in going], [self.trees[i] for i in going]
        return Launched(work, trees, self.flight, self.started, going)


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
    *before, slot = request.reserved
    context = request.slots + array("q", before)
    choosing = _choosing(request, request.position + 1)
    return Segment([-1 - row], [-1], array("q", [slot]), context, 0, request, choosing)


def _choosing(request: Request, position: int) -> Choosing:
    temperature = 0.0 if request.params.greedy else request.params.temperature
    return Choosing(temperature, request.seed, request.sample, position)
