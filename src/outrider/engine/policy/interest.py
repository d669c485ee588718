"""How often a lookup is worth its microseconds, and thinking about drafts at all."""

from dataclasses import dataclass

KEEP = 0.8  # of a request's mean gain, per time the lookup is asked
RARELY = 8  # steps between two looks at a lookup that gains nothing
REST = 16  # steps without a thought at least, where thoughts are dear,
LONGEST_REST = 256  # and at most
THOUGHT = 0.01  # of the time goes into them then
FUTILE = 0.02  # of the time at most goes into such looks
LOOKING_UP = 0.25  # of a pass: so long lookups may take that nobody counts on


@dataclass
class Interest:
    """What one lookup brings one request. In a large batch a pass has little time per request, and
    a hundred microseconds for each of them would show."""

    gain: float  # tokens expected of what it proposes, per time it is asked
    _waited: int = 0

    def due(self, price: float, leisure: bool = True) -> bool:
        """Whether to ask it now; `price` is its time, in tokens that plain decoding would write.
        `leisure`: whether there is time for a look that will hardly pay."""
        self._waited += 1
        if self.gain < price and not (leisure and self._waited >= max(RARELY, price / FUTILE)):
            return False
        self._waited = 0
        return True

    def learn(self, expected: float) -> None:
        self.gain = KEEP * self.gain + (1 - KEEP) * expected


@dataclass
class Rest:
    """While a GPU is at a pass, the host's thoughts cost nothing, unless they take longer than the
    pass, as they do in a large batch. Then a batch for which nothing was worth drafting is left
    alone for some steps."""

    _left: int = 0

    def over(self) -> bool:
        self._left -= 1
        return self._left < 0

    def learn(self, futile: bool, hurried: bool, seconds: float, step: float) -> None:
        """Of a decision: whether it drafted nothing, whether the device had to wait for it, how
        long it took, and how long a step takes."""
        rest = min(max(REST, int(seconds / (THOUGHT * step))), LONGEST_REST)
        self._left = rest if futile and hurried else 0
