"""Guesses at the target's choice: nearly always the best by all noise, at a small part of it."""

import pytest
import torch
from torch import Tensor

from outrider.sampling.guess import LIKELY, Known, guessed_top
from outrider.sampling.noise import GROUP, Key, Purpose, noise, streams
from outrider.sampling.shared_noise import SharedNoise

VOCABULARY = 5000  # not a multiple of GROUP: the last group is not full
ALL = Known.of(torch.arange(VOCABULARY), VOCABULARY)


def make_streams(count: int) -> Tensor:
    return streams([Key(seed, 0, 3, Purpose.CHOICE) for seed in range(count)])


def make_scores(rows: int, columns: int, scale: float) -> Tensor:
    return scale * torch.randn(rows, columns, generator=torch.Generator().manual_seed(5))


def make_known() -> Known:
    """Every third token, in no order."""
    tokens, generator = torch.arange(0, VOCABULARY, 3), torch.Generator().manual_seed(6)
    return Known.of(tokens[torch.randperm(len(tokens), generator=generator)], VOCABULARY)


def check_values(values: Tensor, tokens: Tensor, everything: Tensor) -> None:
    """Every token has the value that is claimed, and comes once; everything [rows, vocabulary]."""
    assert torch.equal(everything.gather(1, tokens), values)
    assert all(len(set(row)) == len(row) for row in tokens.tolist())
    assert torch.equal(values.sort(-1, descending=True).values, values)


@pytest.mark.parametrize("scale", [0.0, 0.5, 2.0, 4.0])
@pytest.mark.parametrize("own", [False, True])
def test_the_best_is_seldom_missed(scale: float, own: bool) -> None:
    """From flat scores, where only noise decides, to steep ones. The likeliest alone would miss
    nearly all of the flat."""
    known = make_known() if own else ALL
    scores = make_scores(400, len(known.tokens), scale)
    stream = make_streams(400)
    everything = known.spread(scores) + noise(stream, VOCABULARY)
    values, tokens = guessed_top(scores, stream, 8, known)
    check_values(values, tokens, everything)
    missed = int((tokens[:, 0] != everything.argmax(-1)).sum())
    assert missed <= 20  # of 400


def test_a_vocabulary_within_the_likeliest_is_exact() -> None:
    scores, stream = make_scores(50, LIKELY, 1.0), make_streams(50)
    values, tokens = guessed_top(scores, stream, 100, Known.of(torch.arange(LIKELY), LIKELY))
    expected = (scores + noise(stream, LIKELY)).sort(-1, descending=True)
    assert torch.equal(values, expected.values) and torch.equal(tokens, expected.indices)


def test_only_what_is_possible_is_finite() -> None:
    scores = torch.full((3, VOCABULARY), -torch.inf)
    scores[0, [7, 4999]] = 0.0
    scores[1, 9] = torch.nan
    values, tokens = guessed_top(scores, make_streams(3), 4, ALL)
    assert values.isfinite().sum(-1).tolist() == [2, 0, 0]
    assert sorted(tokens[0, :2].tolist()) == [7, 4999]
    assert values[1, 0].isnan()  # and so ends the row before it begins


def test_noise_of_tokens_is_that_of_all() -> None:
    stream = make_streams(3)[[0, 1, 0, 2]]
    tokens = torch.randint(VOCABULARY, (4, 300))
    shared = SharedNoise(stream, -(-VOCABULARY // GROUP))
    everything = noise(stream, VOCABULARY)
    of_tokens, highest = shared.of_tokens(tokens)
    assert torch.equal(of_tokens, everything.gather(1, tokens))
    assert torch.equal(highest, shared.lifted.gather(1, tokens // GROUP) == tokens)
    full = everything[:, : VOCABULARY // GROUP * GROUP].unflatten(1, (-1, GROUP))
    best = full.argmax(-1) + torch.arange(0, full.shape[1] * GROUP, GROUP)
    assert torch.equal(shared.lifted[:, :-1], best)


def test_one_place_of_a_text_is_guessed_at_alone_as_among_others() -> None:
    """Alone, groups whose token the drafter does not have are left out, and the rest is kept."""
    known = make_known()
    scores, stream = make_scores(4, len(known.tokens), 1.0), make_streams(2)[[1, 1, 1, 0]]
    together, apart = guessed_top(scores, stream, 40, known), []
    for rows in (slice(0, 3), slice(0, 1), slice(3, 4)):
        values, tokens = guessed_top(scores[rows], stream[rows], 40, known)
        check_values(values, tokens, known.spread(scores[rows]) + noise(stream[rows], VOCABULARY))
        assert torch.equal(values, together[0][rows]) and torch.equal(tokens, together[1][rows])
        apart.append(tokens)
    assert len({tuple(tokens[0].tolist()) for tokens in apart}) == 2


def test_scores_are_spread_over_the_targets_tokens() -> None:
    known = Known.of(torch.tensor([4, 0, 2]), 6)
    spread = known.spread(torch.tensor([[1.0, 2.0, 3.0]]))
    inf = torch.inf
    assert spread.tolist() == [[2.0, -inf, 3.0, -inf, 1.0, -inf]]
    scores = torch.tensor([[1.0, 2.0, 3.0]])
    assert Known.of(torch.tensor([0, 1, 2]), 3).spread(scores) is scores
    assert Known.of(torch.tensor([1, 0, 2]), 3).spread(scores).tolist() == [[2.0, 1.0, 3.0]]


def test_a_place_that_is_drafted_for_again_has_the_same_noise() -> None:
    """Of two texts and two sizes in turn: nothing is taken for something else."""
    for _ in range(2):
        for seed, groups in ((0, 79), (1, 79), (0, 40)):
            stream = make_streams(2)[[seed]].repeat(3, 1)
            fresh = noise(stream, groups * GROUP).unflatten(1, (groups, GROUP))
            assert torch.equal(SharedNoise(stream, groups).highest, fresh.amax(-1))


def test_places_in_a_row_have_noise_of_their_own() -> None:
    """Computed together, kept together: in whatever order a text comes to them."""
    for position in (9, 8, 15, 16, 3, 9, 0):
        stream = streams([Key(7, 2, position, Purpose.CHOICE)])
        fresh = noise(stream, 40 * GROUP).unflatten(1, (40, GROUP))
        shared = SharedNoise(stream, 40)
        assert torch.equal(shared.highest, fresh.amax(-1))
        assert torch.equal(shared.lifted % GROUP, fresh.argmax(-1))
        some = torch.tensor([[0, 77, 40 * GROUP - 1]])
        assert torch.equal(shared.of_tokens(some)[0], fresh.flatten(1).gather(1, some))
