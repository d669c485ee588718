"""What one more level of drafts takes: it is one pass, for however many of them."""

KEEP = 0.9  # of an estimate, where a new measurement comes in
OUTLIER = 3.0  # what is that much longer counts as this much: it was interrupted


class LevelTimes:
    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}  # by bits of the number of drafts

    def __bool__(self) -> bool:
        return bool(self._seconds)

    def learn(self, seconds: float, drafts: int) -> None:
        old = self._seconds.get(drafts.bit_length(), seconds)
        if OUTLIER * seconds < old:  # then those before it were interrupted
            old = seconds
        self._seconds[drafts.bit_length()] = KEEP * old + (1 - KEEP) * min(seconds, OUTLIER * old)

    def of(self, drafts: int) -> float:
        """Seconds, from the nearest number that was seen; nothing, while none was."""
        if not self._seconds:
            return 0.0
        nearest = min(self._seconds, key=lambda bits: abs(bits - drafts.bit_length()))
        return self._seconds[nearest]
