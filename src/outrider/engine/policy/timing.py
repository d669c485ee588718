"""How long each drafter takes, measured while it works, and before by a rehearsal."""

from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

KEEP = 0.9  # of an estimate, where a new measurement comes in
OUTLIER = 3.0  # a call may be interrupted: what is that much longer counts as this much
UNSEEN_ROWS = 32  # of a text take as long to read as a draft's, until that is seen
ROUTINE = 16  # rows at most, and one for each text, that a drafter reads where it follows texts
LONG_READ = 256  # rows: a call that reads so many counts as much as all before it
FIRST = 3  # calls of which the shortest counts: the very first one builds what later ones use


def _blend(old: float | None, new: float) -> float:
    """Nothing makes a call shorter than it is: if one takes so much less than was thought, then
    those before it were interrupted."""
    if old is None or OUTLIER * new < old:
        return new
    return KEEP * old + (1 - KEEP) * min(new, OUTLIER * old)


@dataclass
class Timing:
    """A lookup's time grows with the requests, a model's with the passes, that is with the depth;
    so both are kept, the latter for each size of batch."""

    per_request: float | None = None
    _per_level: dict[int, float] = field(default_factory=dict)  # by bits of the batch size
    _calls: int = 0
    _per_row: float | None = None  # of a text that a model must read before it can draft
    _with_levels: bool = False  # whether that is all that a call took
    _sizes: dict[int, float] = field(default_factory=dict)  # by the same bits: the mean size

    def learn(self, seconds: float, requests: int, levels: int) -> None:
        bits = requests.bit_length()
        asked, level = seconds / requests, seconds / max(levels, 1)
        if bits not in self._per_level:
            level = min(level, self._most(requests))
        if self.young:
            self.per_request = min(asked, self.per_request or asked)
            self._per_level[bits] = min(level, self._per_level.get(bits, level))
        else:
            self.per_request = _blend(self.per_request, asked)
            self._per_level[bits] = _blend(self._per_level.get(bits), level)
        self._sizes[bits] = KEEP * self._sizes.get(bits, requests) + (1 - KEEP) * requests
        self._calls += 1

    def _most(self, requests: int) -> float:
        """What a level for so many can take at most, by what it took for others: no more than in as
        many calls. A first one that is interrupted would keep the drafter away for ever, and with
        it all that could tell better."""
        calls = [
            (level, self._sizes.get(bits, 1 << (bits - 1)))
            for bits, level in self._per_level.items()
        ]
        return min([level * max(1.0, requests / size) for level, size in calls], default=inf)

    @property
    def young(self) -> bool:
        """Whether too few calls were seen to say that it takes too long."""
        return self._calls < FIRST

    def learn_reading(self, seconds: float, rows: int, requests: int, levels: int) -> None:
        """Of a call that has read so many rows before it drafted. What its levels took is only
        supposed, which for few rows is more than what these took: so they count for less. And
        while nothing is known of levels, they are part of it, until a call tells better."""
        each = (seconds - self.seconds(requests, levels)) / rows
        if each <= 0:
            return
        old = each if self._per_row is None or self._with_levels else self._per_row
        self._per_row = old + rows / (rows + LONG_READ) * (min(each, OUTLIER * old) - old)
        self._with_levels = not self.known()

    @property
    def per_row(self) -> float:
        """Of reading. While it was not seen: a fraction of what a lone row takes in a draft."""
        return self.seconds(1, 1) / UNSEEN_ROWS if self._per_row is None else self._per_row

    def known(self, requests: int | None = None) -> bool:
        """Whether a batch of about this size was seen; without it, any."""
        return (
            bool(self._per_level) if requests is None else requests.bit_length() in self._per_level
        )

    def level(self, requests: int) -> float:
        """Of one level; between the batch sizes that were seen, or as at the nearest one. Were it
        the nearest one everywhere, 15 requests would seem much cheaper to draft for than 16."""
        if not self._per_level:
            return 0.0
        bits = sorted(self._per_level)
        sizes = [self._sizes.get(size, 1 << (size - 1)) for size in bits]
        return float(np.interp(requests, sizes, [self._per_level[size] for size in bits]))

    def seconds(self, requests: int, levels: int) -> float:
        """Of a call."""
        return self.level(requests) * levels

    def before_work(self) -> "Timing":
        """What a rehearsal has shown, and young: of the first calls in earnest the shortest counts,
        as the rehearsal may have been disturbed."""
        return replace(self, _calls=0)

    def kept(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)

    @classmethod
    def of(cls, kept: dict[str, Any]) -> "Timing":
        """From a file, in which sizes have become words."""

        def by_size(value: Any) -> Any:
            if isinstance(value, dict):
                return {int(size): float(seconds) for size, seconds in value.items()}
            return value

        return cls(**{name: by_size(value) for name, value in kept.items()})


@dataclass
class Waiting:
    """How long a GPU stands still when a pass must wait for drafts: from the moment the tokens of
    the last pass are known until the next one starts. Passes without drafts follow each other.

    Of the first few waits of a size of batch the shortest counts, and none before all of them were
    seen: who thinks it long does not draft, and would never learn better."""

    _by_size: dict[int, float] = field(default_factory=dict)  # by bits of the batch size
    _seen: dict[int, int] = field(default_factory=dict)

    def learn(self, seconds: float, requests: int) -> None:
        bits = requests.bit_length()
        seen = self._seen.get(bits, 0)
        if seen < FIRST:
            self._by_size[bits] = min(seconds, self._by_size.get(bits, seconds))
        else:
            self._by_size[bits] = _blend(self._by_size[bits], seconds)
        self._seen[bits] = seen + 1

    def seconds(self, requests: int) -> float:
        """From the nearest batch size that was seen; nothing, while none was."""
        known = [bits for bits, seen in self._seen.items() if seen >= FIRST]
        if not known:
            return 0.0
        return self._by_size[min(known, key=lambda bits: abs(bits - requests.bit_length()))]
