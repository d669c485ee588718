"""Whether drafts are faster by the clock.

What is promised is put together from parts: a pass over so many rows, the drafter's time, the time
that a device stands still. On a fast GPU the host is the slower one with a small model and many
texts, and what it does for drafts is in none of these parts. So what came of the promises is
measured as a whole: the tokens that texts were written in the time from pass to pass.
"""

from collections import defaultdict
from dataclasses import dataclass, field

STEPS = 4  # with drafts, to say how fast they are, and at least
TEXTS = 32  # in them, in all: of one text it takes as many steps to see how it goes
PLAIN_STEPS = 8  # which are all alike
SETTLED = 2  # steps after one with drafts, until passes follow each other as if there were none
KEEP = 0.95  # of what was seen, per step
SHORTEST_STOP = 128  # steps without drafts, where they were slower; twice that the next time
LONGEST_STOP = 4096


@dataclass
class Speed:
    """Tokens per text and second, of the last steps."""

    tokens: float = 0.0  # per text
    seconds: float = 0.0
    steps: int = 0
    texts: int = 0

    def learn(self, texts: int, tokens: int, seconds: float) -> None:
        self.tokens = KEEP * self.tokens + tokens / texts
        self.seconds = KEEP * self.seconds + seconds
        self.steps += 1
        self.texts += texts

    @property
    def mean(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)


@dataclass
class Trial:
    """Of batches of about one size."""

    plain: Speed = field(default_factory=Speed)
    drafted: Speed = field(default_factory=Speed)
    left: int = 0  # steps without drafts
    stop: int = SHORTEST_STOP

    def judge(self) -> None:
        """Once there is enough to compare: stop, or see that drafts go on."""
        if self.drafted.steps < STEPS or self.drafted.texts < TEXTS:
            return
        if self.plain.steps < PLAIN_STEPS:
            self.left = SETTLED + PLAIN_STEPS
        elif self.drafted.mean < self.plain.mean:
            self.left, self.stop = self.stop, min(2 * self.stop, LONGEST_STOP)
            self.drafted = Speed()
        else:
            self.stop = SHORTEST_STOP


@dataclass
class Proof:
    _trials: defaultdict[int, Trial] = field(default_factory=lambda: defaultdict(Trial))

    def learn(self, texts: int, tokens: int, seconds: float, drafted: bool) -> None:
        """Of the time from one pass to the next. What is left of drafts while they are stopped
        tells nothing of those that come after."""
        trial = self._trials[texts.bit_length()]
        if not drafted:
            trial.plain.learn(texts, tokens, seconds)
        elif not trial.left:
            trial.drafted.learn(texts, tokens, seconds)
            trial.judge()

    def stopped(self, texts: int) -> bool:
        """Whether batches of this size are without drafts for now."""
        return self._trials[texts.bit_length()].left > 0

    def refuses(self, texts: int) -> bool:
        """The same of a step that is about to begin, which counts."""
        stopped = self.stopped(texts)
        self._trials[texts.bit_length()].left -= stopped
        return stopped

    def forget(self) -> None:
        """How easily texts were guessed; not what passes take here."""
        for trial in self._trials.values():
            trial.drafted, trial.left, trial.stop = Speed(), 0, SHORTEST_STOP
