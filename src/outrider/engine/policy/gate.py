"""When to ask a drafter that costs time, or lookups, though they have not paid."""

from dataclasses import dataclass
from typing import NamedTuple

from outrider.engine.policy.cost import PassCost

SHORTEST_PAUSE = 32  # steps until a drafter that does not pay is tried again
LONGEST_PAUSE = 1024
THINKING = 0.002  # of a step, spent on whether to ask a drafter that was not worth it before,
LOOKING = 0.003  # and on lookups that have found nothing: nothing else tells when they will
LONGEST_DOUBT = 16  # steps
PATIENCE = 3  # times that the answer may be no before the question is put less often


class Pass(NamedTuple):
    """The pass to come, as far as it is decided."""

    writers: int  # requests that it writes at least one token for
    rows: int
    sequences: int
    keys: int
    reading: int = 0  # rows of prompts, beyond one for each sequence
    log_gain: float = 0.0  # sum over the writers of log(1 + drafted tokens expected)


@dataclass
class Pause:
    """Counts the steps of a drafter that is not asked. Each trial in vain doubles the wait."""

    left: int = SHORTEST_PAUSE
    length: int = SHORTEST_PAUSE

    def tick(self, late: bool = False, steps: int = 1) -> bool:
        """True when it is time for a trial. `late`: the question is whether the next step will be
        asked for one; then nothing is begun yet."""
        if late and self.left <= steps:
            return True
        self.left -= steps
        if self.left > 0:
            return False
        self.length = min(2 * self.length, LONGEST_PAUSE)
        self.left = self.length
        return True

    def end(self) -> None:
        self.left = self.length = SHORTEST_PAUSE


@dataclass
class Doubt:
    """Where drafting pays, that is asked anew in every step. Where it did not, time after time,
    finding out once more may take a small part of the time, however many requests there are."""

    share: float = THINKING  # of the time
    left: int = 0  # steps in which nobody asks
    passed: int = 0  # since the last answer
    _noes: int = 0  # since the last yes
    _requests: int = 0  # that were asked about

    def passes(self, requests: int) -> bool:
        """Whether this step goes by without the question. Drafts for fewer cost less."""
        if self.left == 0 or requests < self._requests:
            return False
        self.left -= 1
        self.passed += 1
        return True

    def answered(
        self, paid: bool, requests: int, seconds: float, step: float, telling: bool = True
    ) -> None:
        """Finding out took so long, and a step does. Where it just about pays, answers differ from
        step to step: so a no alone means little, and each further one doubles the rest; but for one
        that is not `telling`, of which there is another reason."""
        self._noes = 0 if paid else self._noes + telling
        self._requests, self.passed, self.left = requests, 0, 0
        if self._noes > PATIENCE and telling:
            rest = min(2 ** min(self._noes - PATIENCE - 1, 10), LONGEST_DOUBT)
            self.left = min(rest, int(seconds / (self.share * step)))


def reading_seconds(base: Pass, cost: PassCost) -> float:
    """What prompts add to the pass. They are read whatever is drafted, and a token that a draft
    gains spares a part of a later pass that only writes: beside such a one it has to pay."""
    if not base.reading:  # as mostly
        return 0.0
    texts, keys = base.sequences, base.keys
    return cost.seconds(texts + base.reading, texts, keys) - cost.seconds(texts, texts, keys)
