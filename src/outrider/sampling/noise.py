"""Noise as a pure function of who asks: (seed, sample, position, purpose, lane) and the token id.

No generator has a state, so no draw depends on the batch, on the drafter, or on earlier draws.

The exponentials of a row are built group by group so that most of them are never computed. In a
group of G tokens the least of G independent Exp(1) values is Exp(1)/G, sits at a uniform place, and
the others exceed it by fresh Exp(1) values (an exponential has no memory). One number per group
hence bounds the noise of all its tokens, and only groups that can still win are opened (choose.py).
"""

from collections.abc import Sequence
from enum import IntEnum
from math import log
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outrider.sampling.transfer import to_device

GROUP = 64  # tokens per group: a power of two, so that the place of the least is exactly uniform
BLOCKS = GROUP // 4  # Philox blocks, of 4 words each, behind one opened group
GROUP_COUNTER = 1 << 31  # group draws count from here, token draws from 0

# v = (bits + 1/2) / 2^32 lies in [2^-33, 1 - 2^-33] and is exact in float64: never 0, never 1.
EXPONENTIAL_MIN = 2.0**-33  # -log1p(-v) >= v
EXPONENTIAL_MAX = 33 * log(2)
GUMBEL_MAX = -log(EXPONENTIAL_MIN / GROUP)
GUMBEL_MIN = -log(EXPONENTIAL_MAX * (1 + 1 / GROUP))

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


class Purpose(IntEnum):
    """What a draw is for; draws with different purposes are independent."""

    CHOICE = 0  # the target's token, and the drafter's guess at it (coupled verification)
    DRAFT = 1  # a drafter's own draw (traversal verification)
    ACCEPT = 2
    RESIDUAL = 3


class Key(NamedTuple):
    """Names one stream of noise.

    Coupled choices use lane 0 and the absolute output position: the same position must give the
    same noise however it was reached. Traversal must never see a number twice, and a position that
    was drafted and rejected is drafted again; so all draws of one step are keyed by the *root's*
    output position, which never recurs because every step commits at least one token, and the lane
    (the index of the draw or of the tree node) tells the draws of the step apart.
    """

    seed: int
    sample: int
    position: int
    purpose: Purpose
    lane: int = 0


def streams(keys: Sequence[Key], device: torch.device | str = "cpu") -> Tensor:
    """[keys, 5] int64: the Philox key (two words) and its counter words 1 to 3."""
    words = [
        (k.seed & _MASK, k.seed >> 32, k.position, k.sample, k.purpose | k.lane << 8) for k in keys
    ]
    return to_device(torch.tensor(words, dtype=torch.int64).view(len(keys), 5), device)


def philox(counter: Sequence[Tensor], key: Sequence[Tensor]) -> Tensor:
    """Philox4x32-10. counter: 4 words, key: 2 words, int64 tensors that broadcast to [...].

    -> [..., 4] int64 in [0, 2^32)
    """
    # On a CPU a hundred operations on short arrays cost what their calls cost: numpy's cost a third
    # of torch's. Both know the same operators.
    on_cpu = counter[0].device.type == "cpu"
    words = [word.numpy() for word in (*counter, *key)] if on_cpu else [*counter, *key]
    mixed = _philox_rounds(*words)
    return torch.stack([torch.from_numpy(word) for word in mixed] if on_cpu else mixed, -1)


def _philox_rounds(x0: Any, x1: Any, x2: Any, x3: Any, k0: Any, k1: Any) -> list[Any]:
    for _ in range(10):
        # int64 wraps modulo 2^64, so both halves of a product are right as bit patterns; what an
        # arithmetic shift or a missing mask leaves above bit 31 is cut by the masks of x0 and x2.
        a, b = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]
        x0, x2 = ((b >> 32) ^ x1 ^ k0) & _MASK, ((a >> 32) ^ x3 ^ k1) & _MASK
        x1, x3 = b, a
        k0, k1 = k0 + _WEYL[0], k1 + _WEYL[1]
    return [x0, x1 & _MASK, x2, x3 & _MASK]


def _blocks(stream: Tensor, index: Tensor) -> Tensor:
    """Philox words at counter word 0 = index: stream [rows, 5], index [rows, n] -> [rows, n, 4]."""
    k0, k1, c1, c2, c3 = stream[:, :, None].unbind(1)  # each [rows, 1]
    return philox((index, c1, c2, c3), (k0, k1))


def _open_unit(bits: Tensor) -> Tensor:
    """32 random bits -> float64 strictly between 0 and 1, exactly."""
    return (bits.double() + 0.5) * 2.0**-32


def _exponential(bits: Tensor) -> Tensor:
    """v is 1 - u; log1p keeps the small values, which become the large noise, exact."""
    return torch.log1p(-_open_unit(bits)).neg_()


def gumbel(exponential: Tensor) -> Tensor:
    """-log of an exponential, computed in float64 and rounded to float32: vector and scalar code
    paths differ in the last bit of a float64, which survives the rounding once in 2^29."""
    return exponential.log().neg_().float()


def uniform(stream: Tensor) -> Tensor:
    """One number in (0, 1) per stream: [rows, 5] -> [rows] float64."""
    first = stream.new_zeros(len(stream), 1)
    return _open_unit(_blocks(stream, first)[:, 0, 0])


def group_least(stream: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """The least exponential of every group and its place in it: two tensors [rows, groups]."""
    rows = len(stream)
    pairs = (groups + 1) // 2  # a Philox block serves two groups: a value and a place for each
    index = torch.arange(GROUP_COUNTER, GROUP_COUNTER + pairs, device=stream.device)
    words = _blocks(stream, index.expand(rows, pairs)).reshape(rows, 2 * pairs, 2)[:, :groups]
    return _exponential(words[..., 0]) / GROUP, words[..., 1] & (GROUP - 1)


def group_noise(stream: Tensor, group: Tensor, least: Tensor, place: Tensor) -> Tensor:
    """Gumbel noise of all tokens of some groups.

    group, least, place: [rows, k] (`group` is an index; the others belong to it, from group_least)
    -> [rows, k, GROUP] float32
    """
    rows, k = group.shape
    index = group[:, :, None] * BLOCKS + torch.arange(BLOCKS, device=group.device)
    words = _blocks(stream, index.view(rows, k * BLOCKS)).reshape(rows, k, GROUP)
    above = _exponential(words)
    above.scatter_(2, place[:, :, None], 0.0)  # the least itself is not above itself
    return gumbel(least[:, :, None] + above)


def token_noise(stream: Tensor, token: Tensor, least: Tensor, place: Tensor) -> Tensor:
    """Gumbel noise of some tokens, with `least` and `place` of their groups: all [rows, k]
    -> [rows, k] float32"""
    words = _blocks(stream, token // 4).gather(2, (token % 4)[:, :, None])[:, :, 0]
    above = _exponential(words).masked_fill_(token % GROUP == place, 0.0)
    return gumbel(least + above)


def noise(stream: Tensor, vocabulary: int) -> Tensor:
    """Gumbel noise of all tokens, [rows, vocabulary] float32: slow, but the definition."""
    groups = -(-vocabulary // GROUP)
    least, place = group_least(stream, groups)
    group = torch.arange(groups, device=stream.device).expand(len(stream), groups)
    return group_noise(stream, group, least, place).flatten(1)[:, :vocabulary]
