"""What the drafters learn: to say what the target says, some tokens ahead."""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import sdpa_kernel

from outrider.model.attention import BACKENDS
from outrider.train.batch import Batch, Truth, Vocabulary

DEPTHS = 5  # of EAGLE-3's own states that training goes through
FADING = 0.8  # of the weight of a guess, per depth
ANCHORS = 128  # places per text where a block begins
NEARING = 3.0  # how fast cross entropy makes way as guesses come to hold
BLOCK_FADING = 4.0  # places over which the weight of a block's guess falls to 1 / e


class Learned(NamedTuple):
    loss: Tensor
    agreed: Tensor  # [depths] float: how often the likeliest guess is the target's, once so deep
    counted: Tensor  # [depths] float: out of how many


class Objective(Protocol):
    def __call__(
        self, head: Any, batch: Batch, words: Vocabulary, random: torch.Generator
    ) -> Learned: ...


def medusa(head: Any, batch: Batch, words: Vocabulary, random: torch.Generator) -> Learned:
    tally = _Tally(batch)
    states, length = batch.states.to(head.dtype), batch.tokens.shape[1]
    for index in range(head.options.heads):
        ahead = index + 1  # the target's own guess is for the token after the state's
        if ahead >= length:
            break
        told = _learned_after(batch, ahead)
        guess = head(states[:, :-ahead][told.where], index)  # [told, draft vocabulary]
        tally.add(guess, told, ahead, FADING**index)
    return tally.learned()


def eagle3(head: Any, batch: Batch, words: Vocabulary, random: torch.Generator) -> Learned:
    """Each depth reads the head's own state of the depth above in place of the target's, and the
    text's token: as when it drafts, with guesses that hold."""
    rows = batch.tokens.shape[1] - 1  # of true features: each with the token after it
    features = head.project(batch.states[:, :rows].to(head.dtype))
    tally = _Tally(batch)
    memory: list[list[tuple[Tensor, Tensor]]] = [[] for _ in head.layers]
    for depth in range(DEPTHS):
        columns = rows - depth
        if columns < 1:
            break
        tokens = batch.tokens[:, 1 + depth : 1 + depth + columns]
        places = torch.arange(depth, depth + columns, device=tokens.device)
        states = head(
            features[:, :columns],
            tokens,
            places.expand(tokens.shape),
            _by_column(memory, columns),
        )
        told = _learned_after(batch, 1 + depth)
        tally.add(head.logits(states[told.where]), told, 1 + depth, FADING**depth)
        features = states
    return tally.learned()


class _Tally:
    """Adds up depths: the loss, and how often a guess holds where all above it held."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._loss = batch.states.new_zeros((), dtype=torch.float32)
        self._reached = torch.ones_like(batch.learned)  # [texts, length]
        self._counts: list[tuple[Tensor, Tensor]] = []

    def add(self, guess: Tensor, told: "_Told", ahead: int, weight: float) -> None:
        """guess [told, draft vocabulary]: of places that are `told`, for what the target says
        `ahead` places further."""
        truth = self._batch.truth.at(slice(None), slice(ahead, None)).at(*told.where)
        self._loss = self._loss + weight * _soft_loss(guess, truth)
        hit = torch.zeros_like(told.mask)
        hit[told.where] = _agrees(guess, truth)
        reached = self._reached[:, : hit.shape[1]] & told.mask
        self._counts.append(((hit & reached).float().sum(), reached.float().sum()))
        self._reached = reached & hit

    def learned(self) -> Learned:
        agreed, counted = (torch.stack(each) for each in zip(*self._counts, strict=True))
        return Learned(self._loss, agreed, counted)


def _by_column(memory: list[list[tuple[Tensor, Tensor]]], columns: int) -> Any:
    """Attention of a depth: over the true rows up to its column, and over the rows of the depths
    above in the same column. What it sees is remembered for the depths below."""

    def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        known = memory[layer]
        known.append((keys, values))
        k, v = (torch.cat(each, 1) for each in zip(*known, strict=True))
        device, (rows, *more) = query.device, [each.shape[1] for each, _ in known]
        above = torch.ones(columns, rows, dtype=torch.bool, device=device).tril()
        own = [torch.eye(columns, n, dtype=torch.bool, device=device) for n in more]
        return _attention(query, k, v, torch.cat([above, *own], -1))

    return attend


def _attention(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """[texts, rows, heads, size]; keys and values [texts, keys, kv heads, size]; `seen` says which
    keys a row sees and is [rows, keys], or [texts, 1, rows, keys]."""
    group = query.shape[2] // keys.shape[2]
    keys, values = (x.repeat_interleave(group, 2) for x in (keys, values))
    q, k, v = (x.transpose(1, 2) for x in (query, keys, values))
    with sdpa_kernel(BACKENDS):
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return mixed.transpose(1, 2)


def dspark(head: Any, batch: Batch, words: Vocabulary, random: torch.Generator) -> Learned:
    """Blocks below random places of the answers. A place sees the text before its anchor only."""
    texts, length = batch.tokens.shape
    guesses = head.options.guesses
    anchors = _anchors(batch, guesses, random)  # [texts, anchors]
    features = head.project(batch.states.to(head.dtype))
    places = torch.arange(length, device=anchors.device)
    context = head.context(features, places.expand(texts, length))
    states = head(
        batch.tokens.gather(1, anchors), anchors, _in_blocks(context, anchors, head.options.block)
    )  # [texts, anchors, block, hidden size]
    first = head.place_of(1)
    states = states[:, :, first : first + guesses]
    depth = torch.arange(guesses, device=anchors.device)
    at = (anchors[..., None] + depth).clamp(max=length - 1)  # [texts, anchors, guesses]
    flat = at.flatten(1)
    before = batch.tokens.gather(1, flat).view_as(at)
    guess = head.guess(states, before, head.no_memory(states)).logits
    inside = anchors[..., None] + depth + 1 < length
    after = (flat + 1).clamp(max=length - 1)
    told = batch.learned.gather(1, after).view_as(at) & inside
    each_text = torch.arange(texts, device=at.device)[:, None, None]
    truth = batch.truth.at(each_text, at)
    held = guess.gather(-1, truth.tokens).float()
    total = guess.float().logsumexp(-1)
    q, p = (held - total[..., None]).exp(), truth.chances
    # Twice the share of guesses that are rejected. What lies beyond the tokens that are told apart
    # counts as disagreement: it is next to nothing, once something is learned.
    distance = (q - p).abs().sum(-1) + (1 - q.sum(-1)) + (1 - p.sum(-1))
    label = words.place[batch.tokens.gather(1, after).view_as(at)]
    certain = total - guess.gather(-1, label.clamp(min=0)[..., None])[..., 0].float()
    each = 0.1 * certain * (label >= 0) + 0.9 * distance
    if head.options.confidence:
        kept = (1 - distance.detach() / 2).clamp(0, 1)
        sure = head.sureness(states, before).float()
        each = each + functional.binary_cross_entropy_with_logits(sure, kept, reduction="none")
    weight = told * torch.exp(-depth / BLOCK_FADING)
    loss = (each * weight).sum() / weight.sum().clamp(min=1)
    hits = _agrees(guess, truth) & told
    reached = torch.cat([told[..., :1], told[..., 1:] & hits.cumprod(-1).bool()[..., :-1]], -1)
    return Learned(loss, (hits & reached).float().sum((0, 1)), reached.float().sum((0, 1)))


def _anchors(batch: Batch, guesses: int, random: torch.Generator) -> Tensor:
    """[texts, anchors]: positions whose next token was written by the target."""
    next_learned = batch.learned[:, 1:].float()
    chance = next_learned + 1e-9
    return torch.multinomial(
        chance.cpu(), min(ANCHORS, chance.shape[1]), replacement=True, generator=random
    ).to(batch.tokens.device)


def _in_blocks(context: list[tuple[Tensor, Tensor]], anchors: Tensor, block: int) -> Any:
    """Attention of all places of all blocks of a text at once."""
    count = anchors.shape[1]
    length = context[0][0].shape[1]
    device = anchors.device
    text = torch.arange(length, device=device) < anchors[..., None]  # [texts, anchors, length]
    text = text.repeat_interleave(block, 1)  # [texts, anchors * block, length]
    own = torch.arange(count, device=device).repeat_interleave(block)
    same = (own[:, None] == own).expand(len(anchors), -1, -1)
    seen = torch.cat([text, same], -1)[:, None]  # [texts, 1, places, length + places]

    def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        k, v = (
            torch.cat([old, new.flatten(1, 2)], 1)
            for old, new in zip(context[layer], (keys, values), strict=True)
        )
        mixed = _attention(query.flatten(1, 2), k, v, seen)
        return mixed.unflatten(1, (count, block))

    return attend


class _Told(NamedTuple):
    """Places whose guess is judged, as a mask and as indices: finding these keeps a GPU waiting, so
    it is done once."""

    mask: Tensor  # [texts, places] bool
    where: tuple[Tensor, ...]  # [told] each


def _learned_after(batch: Batch, ahead: int) -> _Told:
    """Of length - ahead places: whether the token that `ahead` places further a row guesses after
    was written by the target."""
    shifted = torch.zeros_like(batch.learned[:, ahead:])
    shifted[:, :-1] = batch.learned[:, ahead + 1 :]
    return _Told(shifted, shifted.nonzero(as_tuple=True))


def _soft_loss(guess: Tensor, truth: Truth) -> Tensor:
    """Of guesses [rows, draft vocabulary]; not where the target's favourite is none of those.

    The cross entropy against the target's distribution over the drafter's tokens teaches from afar.
    A small drafter cannot make it vanish, and the nearer it comes, the more it learns what counts:
    the share of its guesses that are rejected (arXiv 2602.23881)."""
    p = truth.chances / truth.chances.sum(-1, keepdim=True).clamp(min=1e-6)
    said = guess.gather(-1, truth.tokens).float() - guess.float().logsumexp(-1, keepdim=True)
    held = torch.minimum(truth.chances, said.exp()).sum(-1)  # [rows]
    afar = torch.exp(-NEARING * held.detach().mean())
    each = afar * -(p * said).sum(-1) + (1 - afar) * (1 - held)
    known = truth.best >= 0
    return (each * known).sum() / known.sum().clamp(min=1)


def _agrees(guess: Tensor, truth: Truth) -> Tensor:
    return guess.argmax(-1) == truth.best


OBJECTIVES: dict[str, Objective] = {"medusa": medusa, "eagle3": eagle3, "dspark": dspark}
