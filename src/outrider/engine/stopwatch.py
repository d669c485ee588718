"""What passes take, noted for the policy."""

from time import perf_counter

from outrider.engine.drafting import Drafting
from outrider.engine.launched import Launched
from outrider.engine.policy.gate import Pass
from outrider.engine.policy.proof import SETTLED
from outrider.engine.scheduler import Work
from outrider.model.runner import Runner

SELDOM = 8  # passes without drafts, of which one is learned from: they are all alike
NEAR = 4  # passes on a CPU after one with drafts, which tell what that would have taken without
HURRIED = 0.05  # of a step: who waits less for the device than that keeps it waiting


class Stopwatch:
    def __init__(self, runner: Runner, drafting: Drafting) -> None:
        self.runner, self.drafting = runner, drafting
        self.writing_steps = 0  # those that read no prompts
        self.replayed_steps = 0  # of them, those that were a CUDA graph
        self._landed_at = 0.0  # when the last pass was known here
        self._wrote = False  # whether that one read no prompts
        self._settled = 0  # passes since the last one that had drafts
        self._prepared = runner.prepared  # when that one was known
        self._plain = 0  # passes without drafts that could be learned from
        # With seconds, and those that the device was idle before.
        self._noted: list[tuple[Launched, Pass, float, float | None]] = []

    def wait(self, launched: Launched) -> list[int] | None:
        """The tokens that the pass has chosen; whether the wait for them was long tells who is the
        slower one, device or host."""
        start = perf_counter()
        chosen = launched.chosen()
        now = perf_counter()
        late = now - start < HURRIED * (now - self._landed_at)
        self.drafting.hurried = late and self.runner.runs_ahead
        return chosen

    def landed(self, launched: Launched, tokens: int = 0) -> None:
        """Note what the pass took, which has written so many. Only passes that nothing but write
        tell what drafts cost."""
        now, before = perf_counter(), self._landed_at
        self._landed_at = now
        # Who waits for a graph to be captured learns nothing of the next pass of that size.
        routine, self._prepared = self.runner.prepared == self._prepared, self.runner.prepared
        work, wrote = launched.work, self._wrote
        self._wrote = all(item.completes and item.rows == 1 for item in work)
        self._settled = 0 if any(map(len, launched.trees)) else self._settled + 1
        if not self._wrote:
            return
        self.writing_steps += 1
        flight = launched.flight
        self.replayed_steps += flight.landed is not None and flight.replayed
        if not self.drafting.measures or not routine:
            return
        if wrote and self.runner.runs_ahead and self._is_proof(launched):
            drafted = self._settled <= SETTLED  # those after them had to wait
            self.drafting.policy.proof.learn(len(work), tokens, now - before, drafted)
        # A pass that ran ahead began when the one before it landed.
        took = now - max(before, launched.started)
        # After prompts every pass waits, drafts or none.
        waited = launched.started - before - launched.modelled if wrote else None
        self._noted.append((launched, plain_pass(work), took, waited))

    def _is_proof(self, launched: Launched) -> bool:
        """Whether the time since the last pass went into this one, of which the policy decided."""
        if not (launched.routine and launched.settled):
            return False
        return all(self.drafting.can_wait(item.sequence.request) for item in launched.work)

    def teach(self) -> None:
        """Tell the policy, once the next pass is under way."""
        policy = self.drafting.policy
        noted, self._noted = self._noted, []
        for launched, base, took, waited in noted:
            if not launched.routine:
                continue
            lengths = [len(tree) for tree in launched.trees]
            rows = base.rows + sum(lengths)
            if launched.leader is not None:  # the drafts were made in this time, too
                if launched.rows is not None:  # and others' who have left
                    continue
                drafting = took - policy.cost.seconds(rows, base.sequences, base.keys)
                timing = policy.following[launched.leader.name]
                timing.learn(max(0.0, drafting), sum(n > 0 for n in lengths), max(lengths))
                continue
            plain = rows == base.rows
            self._plain += plain
            # Learning takes a hundredth of a small model's pass, and on a GPU, where the host is
            # the slower one, would take a part of the next.
            alike = self.runner.runs_ahead or self._settled > NEAR
            if plain and alike and self._plain % SELDOM:
                continue
            policy.cost.learn(rows, base.sequences, base.keys, took)
            if self.runner.runs_ahead and rows > base.rows and waited is not None:
                policy.waited.learn(waited, base.writers)


def plain_pass(work: list[Work]) -> Pass:
    """The pass without drafts, as the policy sees it."""
    rows = sum(item.rows for item in work)
    return Pass(
        writers=sum(item.completes for item in work),
        rows=rows,
        sequences=len(work),
        keys=sum(len(item.sequence.request.slots) for item in work),
        reading=rows - len(work),
    )
