"""Whether to ask a drafter that costs time, and for how long a draft."""

from collections.abc import Callable
from dataclasses import dataclass
from math import log1p
from typing import NamedTuple

from outrider.engine.policy.choice import mean_speed
from outrider.engine.policy.cost import PassCost

SHORTEST_PAUSE = 32  # steps until a drafter that does not pay is tried again
LONGEST_PAUSE = 1024
THINKING = 0.002  # of a step, spent on whether to ask a drafter that was not worth it before,
LOOKING = 0.003  # and on lookups that have found nothing: nothing else tells when they will
LONGEST_DOUBT = 16  # steps
PATIENCE = 3  # times that the answer may be no before the question is put less often


class Outlook(NamedTuple):
    """One request, as far as it matters here."""

    gains: list[float]  # tokens expected of a draft of each size on offer
    without: float  # tokens expected from what is proposed for it already
    room: int  # nodes that it may have


class Size(NamedTuple):
    """Of a draft: its nodes are rows of the target's pass, its depth is, for a drafter with a
    model, the number of passes."""

    nodes: int
    depth: int


class Pass(NamedTuple):
    """The pass to come, as far as it is decided."""

    writers: int  # requests that it writes at least one token for
    rows: int
    sequences: int
    keys: int
    reading: int = 0  # rows of prompts, beyond one for each sequence
    log_gain: float = 0.0  # sum over the writers of log(1 + drafted tokens expected)


class Offer(NamedTuple):
    """What to ask for: drafts of this size for each of the requests `chosen`."""

    speed: float
    size: Size
    chosen: list[int]


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

    def answered(self, paid: bool, requests: int, seconds: float, step: float) -> None:
        """Finding out took so long, and a step does. Where it just about pays, answers differ from
        step to step: so a no alone means little, and each further one doubles the rest."""
        self._noes = 0 if paid else self._noes + 1
        self._requests, self.passed, self.left = requests, 0, 0
        if self._noes > PATIENCE:
            rest = min(2 ** min(self._noes - PATIENCE - 1, 10), LONGEST_DOUBT)
            self.left = min(rest, int(seconds / (self.share * step)))


def reading_seconds(base: Pass, cost: PassCost) -> float:
    """What prompts add to the pass. They are read whatever is drafted, and a token that a draft
    gains spares a part of a later pass that only writes: beside such a one it has to pay."""
    if not base.reading:  # as mostly
        return 0.0
    texts, keys = base.sequences, base.keys
    return cost.seconds(texts + base.reading, texts, keys) - cost.seconds(texts, texts, keys)


def best_offer(
    outlooks: list[Outlook],
    sizes: list[Size],
    base: Pass,
    cost: PassCost,
    draft_seconds: Callable[[list[int], int], float],
) -> Offer | None:
    """The size and the requests that promise the highest speed; None without any.

    draft_seconds(requests, depth): of drafting for them, with what must be read for it first.
    """
    best: Offer | None = None
    reading = reading_seconds(base, cost)
    before = [log1p(outlook.without) for outlook in outlooks]
    logs = _logs([outlook.gains for outlook in outlooks])
    for number, size in enumerate(sizes):
        gains = [own[number] - without for own, without in zip(logs, before, strict=True)]
        order = sorted((i for i, gain in enumerate(gains) if gain > 0), key=lambda i: -gains[i])
        log_gain, rows = base.log_gain, base.rows
        for count, i in enumerate(order, 1):
            log_gain += gains[i]
            rows += min(size.nodes, outlooks[i].room)
            if count & (count - 1) and count != len(order):
                continue  # powers of two and the whole are enough to look at
            seconds = cost.seconds(rows, base.sequences, base.keys) - reading
            seconds += draft_seconds(order[:count], size.depth)
            speed = mean_speed(log_gain, base.writers, seconds)
            if best is None or speed > best.speed:
                best = Offer(speed, size, order[:count])
    return best


def _logs(gains: list[list[float]]) -> list[list[float]]:
    """log(1 + gain) of each; requests may share a list, and then they share that of the logs."""
    known = {id(own): own for own in gains}
    logs = {key: [log1p(gain) for gain in own] for key, own in known.items()}
    return [logs[id(own)] for own in gains]
