"""Stretches of characters as numbers, so that equal ones are found without comparing texts."""

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint32]
Hashes = NDArray[np.uint64]

BASE = 0x9E3779B97F4A7C15  # odd and without pattern: the upper bits of the hashes are well mixed
_WRAP = 1 << 64


def code_points(text: str) -> Codes:
    """[characters]"""
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def powers(length: int) -> Hashes:
    """[length]: what the characters of one stretch are weighed with; `codes @ powers` is its hash,
    modulo 2**64."""
    return np.array([pow(BASE, length - 1 - i, _WRAP) for i in range(length)], dtype=np.uint64)


def doubled(hashes: Hashes, length: int) -> Hashes:
    """The hashes of stretches twice as long, from those of all stretches of `length`."""
    return hashes[:-length] * np.uint64(pow(BASE, length, _WRAP)) + hashes[length:]


def stretch_hashes(codes: Codes, length: int) -> Hashes:
    """[characters - length + 1]: of the stretch that starts at each place; empty for short texts.

    `length` is a power of two.
    """
    hashes, done = codes.astype(np.uint64), 1
    while done < length and len(hashes) > done:
        hashes, done = doubled(hashes, done), 2 * done
    return hashes if done == length else hashes[:0]
