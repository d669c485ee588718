"""The tokens of long texts, made where they are asked for."""

from bisect import bisect_right
from typing import Any, NamedTuple

BLOCK = 192  # characters that are made into tokens at once, and then remembered
MARGIN = 32  # characters on both sides that a block is read with: tokens depend on neighbours


class Block(NamedTuple):
    tokens: list[int]
    starts: list[int]  # characters of the text, per token
    ends: list[int]


class LazyTokens:
    def __init__(self, text: str, firsts: list[int], tokenizer: Any) -> None:
        """`firsts`: where each document starts in the text, and where one more would."""
        self._text, self._firsts, self._tokenizer = text, firsts, tokenizer
        self._blocks: dict[int, Block] = {}

    def after(self, place: int, count: int) -> list[int]:
        """The tokens from this place on, `count` at most, none of another document. None at all
        if a token runs across the place: the text was written in other tokens."""
        stop = self._firsts[bisect_right(self._firsts, place)] - 1
        tokens: list[int] = []
        number = place // BLOCK
        while len(tokens) < count and number * BLOCK < stop:
            block = self._block(number)
            first = bisect_right(block.ends, place)
            if not tokens and first < len(block.ends) and block.starts[first] < place:
                return []
            tokens += block.tokens[first : bisect_right(block.ends, stop)]
            number += 1
        return tokens[:count]

    def _block(self, number: int) -> Block:
        if number not in self._blocks:
            self._blocks[number] = self._read(number * BLOCK)
        return self._blocks[number]

    def _read(self, start: int) -> Block:
        """The tokens that end in the block: each belongs to one block, if all agree on them."""
        before = max(0, start - MARGIN)
        read = self._tokenizer(
            self._text[before : start + BLOCK + MARGIN],
            add_special_tokens=False,
            return_offsets_mapping=True,
        )
        block = Block([], [], [])
        for token, (first, end) in zip(read["input_ids"], read["offset_mapping"], strict=True):
            if start < before + end <= start + BLOCK:
                block.tokens.append(token)
                block.starts.append(before + first)
                block.ends.append(before + end)
        return block
