"""Where a text may go on: places of other texts that come after the same characters.

Documents are searched as characters and not as tokens: turning two megabytes into tokens takes
longer than a user should wait, and only the few places that are copied from need it.
"""

import numpy as np
from numpy.typing import NDArray

from outrider.core.stretches import Codes, Hashes, code_points, doubled, powers, stretch_hashes

LENGTHS = (8, 16, 32)  # characters that are looked up: two or three tokens and more
# So few are looked up after that. In a long text they stand everywhere, unless its script has no
# spaces: all characters from DENSE on count as such ones.
SHORT, LONG_TEXT, DENSE = 4, 1 << 16, 0x0E00
REACH = 64  # characters that a match is followed back for
MOST_PLACES = 32  # of one stretch; of more, so many spread evenly are looked at

Places = NDArray[np.int64]


class TextIndex:
    """Per length one sorted array of numbers: a hash in the upper bits, the place after the
    stretch in the lower ones."""

    def __init__(self, text: str) -> None:
        codes = code_points(text)
        # What is before the text agrees with nothing, so that comparing backwards needs no care.
        self._codes = np.concatenate((np.full(REACH, 1 << 31, dtype=np.uint32), codes))
        # Mask of the lower bits; no place is as large as this.
        self._place = np.uint64((1 << (len(text) + 1).bit_length()) - 1)
        self._keys: dict[int, Hashes] = {}
        hashes = stretch_hashes(codes, SHORT)
        telling = codes >= (DENSE if len(text) > LONG_TEXT else 0)
        starts = np.flatnonzero(_runs(telling, SHORT)).astype(np.uint64)
        self._keys[SHORT] = self._sorted(hashes[starts], starts + np.uint64(SHORT))
        for length in LENGTHS:
            half = length // 2
            hashes = doubled(hashes, half) if len(hashes) > half else hashes[:0]
            ends = np.arange(length, length + len(hashes), dtype=np.uint64)
            self._keys[length] = self._sorted(hashes, ends)

    def _sorted(self, hashes: Hashes, ends: Hashes) -> Hashes:
        keys = hashes & ~self._place
        keys |= ends
        keys.sort()
        return keys

    def after(self, tail: str) -> tuple[Places, Places]:
        """Places that come after the end of `tail`, with the number of characters (up to REACH)
        that agree before each; of all there are, those of the longest stretch that is found."""
        codes = code_points(tail[-REACH:])
        places, length = EMPTY, 0
        for longer in LENGTHS:
            found = self._find(codes, longer)
            if not len(found):
                break
            places, length = found, longer
        if not length:
            places, length = self._find(codes, SHORT), SHORT
        if not len(places):
            return EMPTY, EMPTY
        agree = self._agreeing(codes, places)
        real = agree >= length  # others have the same hash by chance
        return places[real], agree[real]

    def _find(self, codes: Codes, length: int) -> Places:
        keys, mask = self._keys[length], int(self._place)
        if len(codes) < length or not len(keys):
            return EMPTY
        hash_ = int(codes[-length:] @ POWERS[length])
        ends = np.array([hash_ & ~mask, hash_ | mask], dtype=np.uint64)
        low, high = keys.searchsorted(ends).tolist()
        step = -(-(high - low) // MOST_PLACES) or 1
        return (keys[low:high:step] & self._place).astype(np.int64)

    def _agreeing(self, codes: Codes, places: Places) -> Places:
        """[places]: characters that agree before each, counted backwards."""
        back = np.arange(1, len(codes) + 1)
        same = self._codes[places[:, None] + (REACH - back)] == codes[-back]  # [places, back]
        return np.where(same.all(axis=1), len(codes), same.argmin(axis=1))


def _runs(true: NDArray[np.bool_], length: int) -> NDArray[np.bool_]:
    """[characters - length + 1]: whether so many from here on are true."""
    done = 1
    while done < length and len(true) > done:
        true, done = true[:-done] & true[done:], 2 * done
    return true if done == length else true[:0]


POWERS = {length: powers(length) for length in (SHORT, *LENGTHS)}
EMPTY = np.empty(0, dtype=np.int64)
