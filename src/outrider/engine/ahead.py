"""On a GPU: the next pass starts before the tokens of the one under way are known here."""

import logging
from time import perf_counter
from typing import TYPE_CHECKING

from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.base import Drafter
from outrider.engine.drafting import Drafting
from outrider.engine.launched import Launched, segment_ahead
from outrider.engine.scheduler import Scheduler, Work
from outrider.engine.sequence import Sequence
from outrider.engine.stopwatch import plain_pass
from outrider.model.kv import KVCache
from outrider.model.runner import Runner
from outrider.verify import Method, pass_can_choose

if TYPE_CHECKING:
    from outrider.drafters.following import Round

log = logging.getLogger(__name__)


class RunAhead:
    def __init__(
        self,
        scheduler: Scheduler,
        kv: KVCache,
        drafting: Drafting,
        runner: Runner,
        method: Method,
    ) -> None:
        self.scheduler, self.kv, self.drafting, self.runner = scheduler, kv, drafting, runner
        self.method = method

    def __call__(self, launched: Launched) -> Launched | None:
        """Start the pass after this one, where it can only be one over the same texts: after one
        without drafts a row for each, after one that checks chains of a drafter which goes on by
        itself another of that shape. A text that turns out to have ended is dropped from it
        later."""
        work = launched.work
        flight = launched.flight
        if flight.landed is None or not flight.hands_on or self.scheduler.reads_next:
            return None
        if len(work) < len(self.scheduler.writers):
            return None
        if not all(map(self._chosen_by_pass, work)):
            return None
        if any(tree.tokens for tree in launched.trees):
            return self._follow(launched)
        if not all(self.drafting.can_wait(item.sequence.request) for item in work):
            return None
        left = self._unended(launched)
        return self._write_on(left) if left is not None and self._reserve(left) else None

    def _unended(self, launched: Launched) -> Launched | None:
        """Without the texts that surely end with this pass."""
        return launched.only([item.sequence.remaining > 1 for item in launched.work])

    def _chosen_by_pass(self, item: Work) -> bool:
        """Whether the text's next tokens come from the pass alone."""
        request = item.sequence.request
        return (
            item.rows == 1
            and item.completes
            and request.params.logprobs is None
            and pass_can_choose(request, self.method)
        )

    def _reserve(self, launched: Launched) -> bool:
        """Slots for the next pass, behind those of the one under way, as many of each text; or
        none at all: then somebody must be preempted, which is the scheduler's to decide."""
        wanted = launched.slots
        self._give_back(launched)  # what was set aside and not drafted
        if all(self.kv.reserve(request, count) for request, count in wanted.items()):
            return True
        self._give_back(launched)
        return False

    def _give_back(self, launched: Launched) -> None:
        """All slots but those of the pass under way."""
        for request, count in launched.slots.items():
            self.kv.trim(request, count)

    def _write_on(self, launched: Launched) -> Launched:
        """Without drafts."""
        work = launched.work
        rows = launched.rows or list(range(len(work)))
        go_on = launched.flight.go_on
        if go_on is not None and launched.settled:
            flight = go_on(rows, [item.sequence.request.reserved[-1] for item in work])
        else:
            segments = [segment_ahead(item, row) for item, row in zip(work, rows, strict=True)]
            flight = self.runner.launch(segments)
        self.scheduler.wrote()
        items = [Work(item.sequence, 1, self._nodes(item.sequence)) for item in work]
        return Launched(items, [TokenTree.empty()] * len(items), flight, perf_counter())

    def _nodes(self, sequence: Sequence) -> int:
        """What might be drafted for a text, one token from now."""
        most = self.drafting.most(sequence.request)
        return most and max(0, min(most, sequence.remaining - 2))

    def _follow(self, launched: Launched) -> Launched | None:
        """With drafts that are made on the device, after what this pass will have chosen. Texts
        that end with it, or have ended, leave their rows empty."""
        left = self._unended(launched)
        if left is None or 2 * sum(left.slots.values()) < left.shape[1]:
            return None  # most of it would be empty
        work, trees = left.work, left.trees
        requests = [item.sequence.request for item in work]
        if not all(request.output_ids for request in requests):
            return None  # a prompt's last token may change its slot when the pass is committed
        room = self.scheduler.room(work)
        leader = self.drafting.leader(requests, trees, plain_pass(work), room)
        if leader is None or not self._reserve(left):
            return None
        start, prepared = perf_counter(), leader.prepared
        next_round = self._start_round(leader, left)
        if next_round is None:
            self._give_back(left)
            return None
        self.scheduler.wrote()
        # The pass under way has waited for what was captured, too.
        launched.routine = routine = leader.prepared == prepared

        def told() -> dict[Request, TokenTree]:
            chains = [
                TokenTree.chain(found.tokens, leader.name, confidence=found.confidence)
                for found in next_round.guesses()
            ]
            return dict(zip(requests, chains, strict=True))

        items = [Work(w.sequence, 1, len(tree)) for w, tree in zip(work, trees, strict=True)]
        return Launched(
            items, trees, next_round.flight, start, drafted=True, rows=left.rows, shape=left.shape,
            leader=leader, guesses=told, routine=routine,
        )  # fmt: skip

    def _start_round(self, leader: Drafter, launched: Launched) -> "Round | None":
        """None where the device cannot do it after all; then it is not tried again."""
        graphs, following = self.runner.graphs, leader.following
        assert graphs is not None and following is not None
        slots = []
        for request, count in launched.slots.items():
            graphs.table.holds(request, request.slots)
            slots.append(request.reserved[count:])
        try:
            return following(slots, launched.firsts, launched.shape)
        except Exception as problem:  # compilers and drivers fail in ways of their own
            log.warning("drafts of %s wait for the host from now on: %s", leader.name, problem)
            leader.following = None
            return None
