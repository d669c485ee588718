"""On a GPU: the next pass starts before the tokens of the one under way are known here."""

from time import perf_counter

from outrider.core.tree import TokenTree
from outrider.engine.drafting import Drafting
from outrider.engine.launched import Launched, segment_ahead
from outrider.engine.scheduler import Scheduler, Work
from outrider.engine.sequence import Sequence
from outrider.model.kv import KVCache
from outrider.model.runner import Runner
from outrider.verify import Method, pass_can_choose


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
        """Start the pass after one that drafts nothing, where it can only be one row for each of
        the same texts. A text that turns out to have ended is dropped from it later."""
        work = launched.work
        if launched.flight.landed is None or self.scheduler.reads_next:
            return None
        if len(work) < len(self.scheduler.writers):
            return None
        if not all(self._goes_on(item) for item in work) or not self._reserve(work):
            return None
        rows = launched.rows or range(len(work))
        segments = [segment_ahead(item, row) for item, row in zip(work, rows, strict=True)]
        flight = self.runner.launch(segments)
        self.scheduler.wrote()
        items = [Work(item.sequence, 1, self._nodes(item.sequence)) for item in work]
        return Launched(items, [TokenTree.empty()] * len(items), flight, perf_counter())

    def _reserve(self, work: list[Work]) -> bool:
        """A slot for the next token of each, behind those of the pass under way; or none at all:
        then somebody must be preempted, which is the scheduler's to decide."""
        for item in work:
            self.kv.trim(item.sequence.request, item.rows)  # nothing was drafted
        if all(self.kv.reserve(item.sequence.request, 1) for item in work):
            return True
        for item in work:
            self.kv.trim(item.sequence.request, item.rows)
        return False

    def _goes_on(self, item: Work) -> bool:
        """Whether the text's next token comes from the pass alone, and is not its last."""
        request = item.sequence.request
        return (
            item.completes
            and item.rows == 1
            and item.sequence.remaining > 1
            and request.params.logprobs is None
            and self.drafting.can_wait(request)
            and pass_can_choose(request, self.method)
        )

    def _nodes(self, sequence: Sequence) -> int:
        """What might be drafted for a text, one token from now."""
        return max(0, min(self.drafting.most(sequence.request), sequence.remaining - 2))
