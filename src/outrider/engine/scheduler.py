"""Who takes part in the next pass, with how many rows: first come, first served."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from outrider.core.request import Request
from outrider.engine.sequence import Sequence
from outrider.model.kv import KVCache

SMALLEST_PASS = 16  # rows


@dataclass
class Work:
    """One sequence's share of a pass: `rows` pending tokens, then up to `budget` tree nodes."""

    sequence: Sequence
    rows: int
    budget: int = 0

    @property
    def completes(self) -> bool:
        """Whether the pass reaches the end of the text, so that it yields the next token."""
        return self.rows == self.sequence.request.pending


class Scheduler:
    def __init__(
        self,
        kv: KVCache,
        max_sequences: int,
        max_rows: int,
        most_nodes: Callable[[Request], int],
        replayed_rows: int = 0,
    ) -> None:
        self.kv = kv
        self.max_sequences = max_sequences
        self.max_rows = max_rows
        self.most_nodes = most_nodes  # that a request may be given in one pass
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of arrival
        self.preemptions = 0
        self.replayed_rows = replayed_rows  # of the largest pass that is a captured graph

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self.running or sequence in self.waiting

    @property
    def would_admit(self) -> bool:
        """Whether somebody waits who need not wait for another to end."""
        return bool(self.waiting) and len(self.running) < self.max_sequences

    @property
    def only_writes(self) -> bool:
        """Whether the next pass reads no prompts: each text has one pending token."""
        writing = all(sequence.request.pending == 1 for sequence in self.running)
        return bool(self.running) and writing and not self.would_admit

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """The sequence has ended, in whatever state; its slots go to the cache or are free."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self.kv.close(sequence.request)

    def schedule(self) -> list[Work]:
        """Reserve slots for the next pass. Text being written goes before prompts being read,
        prompts in the order of their arrival, drafts from what is left of rows and slots."""
        work: dict[Sequence, Work] = {}
        # A text mid-writing has one pending token; a prompt (or a preempted text) has many.
        for sequence in sorted(self.running, key=lambda s: s.request.pending > 1):
            if sequence in self.running:  # not preempted meanwhile
                self._continue(sequence, work)
        self._admit(work)
        self._grant_drafts(list(work.values()))
        return list(work.values())

    def _rows_left(self, work: dict[Sequence, Work]) -> int:
        return self.max_rows - sum(item.rows for item in work.values())

    def _continue(self, sequence: Sequence, work: dict[Sequence, Work]) -> None:
        rows = min(sequence.request.pending, self._rows_left(work))
        if rows == 0:
            return
        while not self.kv.reserve(sequence.request, rows):
            youngest = self.running[-1]
            self._preempt(youngest)
            work.pop(youngest, None)
            if youngest is sequence:
                return
        work[sequence] = Work(sequence, rows)

    def _admit(self, work: dict[Sequence, Work]) -> None:
        for sequence in list(self.waiting):
            if len(self.running) >= self.max_sequences or self._rows_left(work) == 0:
                return
            if not sequence.ready:
                continue
            request = sequence.request
            hit = self.kv.open(request)
            rows = min(request.pending, self._rows_left(work))
            if not self.kv.reserve(request, rows):
                self.kv.close(request)
                return
            self.waiting.remove(sequence)
            self.running.append(sequence)
            sequence.admit(hit)
            work[sequence] = Work(sequence, rows)

    def _grant_drafts(self, work: list[Work]) -> None:
        """Slots for nodes; how many of them are used is decided when there are proposals."""
        # The pass that ends a prompt drafts nothing: the drafter has not seen the text yet.
        writing = [
            item
            for item in work
            if item.completes and item.rows == 1 and item.sequence.request.output_ids
        ]
        rows_left = self.room(work)
        for left, item in zip(range(len(writing), 0, -1), writing, strict=True):
            request = item.sequence.request
            # The target adds a token of its own, so the last one need not be drafted.
            budget = min(
                self.most_nodes(request), item.sequence.remaining - 1, -(-rows_left // left)
            )
            if budget > 0 and self.kv.reserve(request, budget):
                item.budget = budget
                rows_left -= budget

    def room(self, work: list[Work]) -> int:
        """Nodes that may join a pass; one that can be replayed stays so."""
        rows, most = sum(item.rows for item in work), self.max_rows
        if rows <= self.replayed_rows:
            most = min(most, self.replayed_rows)
        return most - rows

    def shrink(self) -> str | None:
        """Make passes smaller, for good; what was done about it, or None where nothing is left to
        do."""
        if len(self.running) > 1:
            self._preempt(self.running[-1])
            self.max_sequences = len(self.running)
            return f"at most {self.max_sequences} requests at once from now on"
        if self.max_rows > SMALLEST_PASS:
            self.max_rows = max(SMALLEST_PASS, self.max_rows // 2)
            return f"at most {self.max_rows} rows in a pass from now on"
        return None

    def _preempt(self, sequence: Sequence) -> None:
        """Give back all its slots; its text so far stays and is computed again later."""
        self.running.remove(sequence)
        self.kv.close(sequence.request)
        self.waiting.appendleft(sequence)
        self.preemptions += 1
