"""Who takes part in the next pass, with how many rows: first come, first served."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from outrider.core.request import Request
from outrider.engine.sequence import Sequence
from outrider.model.cuda.inputs import TREE_BITS
from outrider.model.kv import KVCache

SMALLEST_PASS = 16  # rows
WRITES_PER_READ = 4  # passes over text being written, before one over prompts has its turn
GATHERED = 1 / 16  # of the texts being written: so many prompts are read then; fewer wait for more
LONGEST_WAIT = 16  # passes


@dataclass
class Work:
    """One sequence's share of a pass: `rows` pending tokens, then up to `budget` tree nodes."""

    sequence: Sequence
    rows: int
    budget: int = 0

    def __post_init__(self) -> None:
        # Whether the pass reaches the end of the text, so that it yields the next token.
        self.completes = self.rows == self.sequence.request.pending


class Scheduler:
    def __init__(
        self,
        kv: KVCache,
        max_sequences: int,
        max_rows: int,
        most_nodes: Callable[[Request], int],
        replayed_rows: int = 0,
        in_blocks: bool = False,
    ) -> None:
        self.kv = kv
        self.max_sequences = max_sequences
        self.max_rows = max_rows
        self.most_nodes = most_nodes  # that a request may be given in one pass
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of arrival
        self.preemptions = 0
        self.replayed_rows = replayed_rows  # of the largest pass that is a captured graph
        self.in_blocks = in_blocks  # whether larger ones are several such
        self._written = 0  # passes since the last one over prompts
        self._rows_left = 0  # of the pass being put together
        self._preempted: set[Sequence] = set()  # for it

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self.running or sequence in self.waiting

    @property
    def writers(self) -> list[Sequence]:
        """Texts mid-writing have one pending token; a prompt, or a preempted text, has many."""
        return [sequence for sequence in self.running if sequence.request.pending == 1]

    @property
    def reads_next(self) -> bool:
        """Whether the next pass reads prompts."""
        if not self.waiting and all(s.request.pending == 1 for s in self.running):
            return False  # as mostly
        prompts, writers = self._prompts(), len(self.writers)
        if not prompts:
            return False
        if not self._takes_turns(prompts, writers) or self._written >= LONGEST_WAIT:
            return True
        # A pass over a few short prompts costs hardly more than one over a single one.
        gathered = len(prompts) >= GATHERED * writers or sum(prompts) >= self.max_rows / 2
        return gathered and self._written >= WRITES_PER_READ

    def _prompts(self) -> list[int]:
        """Tokens of those whose turn to be read it is: the half read, and those who need not wait
        for another to end."""
        seats = max(0, self.max_sequences - len(self.running))
        prompts = self._half_read() + [s for s in islice(self.waiting, seats) if s.ready]
        return [sequence.request.pending for sequence in prompts]

    def _half_read(self) -> list[Sequence]:
        return [sequence for sequence in self.running if sequence.request.pending > 1]

    def _takes_turns(self, prompts: list[int], writers: int) -> bool:
        """Whether prompts are read apart from the texts being written: where a pass over both would
        be no captured graph any more, and so much dearer for all."""
        if not writers or not self.replayed_rows:
            return False
        return writers + sum(prompts) > self.replayed_rows or max(prompts) > TREE_BITS

    def wrote(self) -> None:
        """A pass over nothing but texts being written has started."""
        self._written += 1

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
        self._rows_left = self.max_rows
        self._preempted.clear()
        writers, reads = self.writers, self.reads_next
        alone = reads and self._takes_turns(self._prompts(), len(writers))
        if not alone:
            self._continue_all(writers, work)
        if reads:
            self._written = 0
            self._continue_all(self._half_read(), work)
            self._admit(work)
        if not work:  # there was no room for the prompts
            self._continue_all(writers, work)
        if not reads:
            self.wrote()
        self._grant_drafts(list(work.values()))
        return list(work.values())

    def _continue_all(self, sequences: list[Sequence], work: dict[Sequence, Work]) -> None:
        for sequence in sequences:
            if sequence not in self._preempted:
                self._continue(sequence, work)

    def _continue(self, sequence: Sequence, work: dict[Sequence, Work]) -> None:
        rows = min(sequence.request.pending, self._rows_left)
        if rows == 0:
            return
        while not self.kv.reserve(sequence.request, rows):
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest in work:
                self._rows_left += work.pop(youngest).rows
            if youngest is sequence:
                return
        self._take(sequence, rows, work)

    def _take(self, sequence: Sequence, rows: int, work: dict[Sequence, Work]) -> None:
        work[sequence] = Work(sequence, rows)
        self._rows_left -= rows

    def _admit(self, work: dict[Sequence, Work]) -> None:
        for sequence in list(self.waiting):
            if len(self.running) >= self.max_sequences or self._rows_left == 0:
                return
            if not sequence.ready:
                continue
            request = sequence.request
            hit = self.kv.open(request)
            rows = min(request.pending, self._rows_left)
            if not self.kv.reserve(request, rows):
                self.kv.close(request)
                return
            self.waiting.remove(sequence)
            self.running.append(sequence)
            sequence.admit(hit)
            self._take(sequence, rows, work)

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
        """Nodes that may join a pass. One that is a captured graph stays one; with trees in them,
        others would be the slowest passes there are, unless they are cut into graphs."""
        rows = sum(item.rows for item in work)
        if rows <= self.replayed_rows and all(item.rows <= TREE_BITS for item in work):
            return min(self.max_rows, self.replayed_rows) - rows
        if self.replayed_rows and not self.in_blocks:
            return 0
        return self.max_rows - rows

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
        self._preempted.add(sequence)
