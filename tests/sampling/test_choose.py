import pytest
import torch
from torch import Tensor

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.sampling.choose import NO_TOKEN, choose, distribution, draw, highest, perturbed_max
from outrider.sampling.noise import Key, Purpose, noise, streams
from outrider.sampling.rows import Row


def make_rows(count: int, **options: float) -> list[Row]:
    params = SamplingParams(**options)  # type: ignore[arg-type]
    return [Row(Request(str(i), [0], params, seed=1000 + i), [0] * (i % 3)) for i in range(count)]


def naive(scores: Tensor, rows: list[Row]) -> Tensor:
    keys = [Key(r.request.seed, r.request.sample, r.position, Purpose.CHOICE) for r in rows]
    return (scores + noise(streams(keys), scores.shape[-1])).argmax(-1)


def shapes_of_scores() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(24, 5000, generator=generator)
    steep = base * 8
    few = torch.where(base > base.topk(7).values[:, -1:], base, -torch.inf)
    ties = (base * 2).round()
    return {
        "flat": base * 0.01,
        "usual": base * 3,
        "steep": steep,
        "few": few,
        "ties": ties,
        "constant": torch.zeros(24, 5000),
        "one": torch.full((24, 1), -3.0),
        "narrow": base[:, :63],
        "float64": base.double() * 3,
    }


@pytest.mark.parametrize(("name", "scores"), shapes_of_scores().items())
def test_bounded_search_equals_all_noise(name: str, scores: Tensor) -> None:
    rows = make_rows(len(scores))
    assert torch.equal(choose(scores, rows), naive(scores, rows))


def test_value_is_the_perturbed_score() -> None:
    scores = shapes_of_scores()["usual"]
    stream = streams([Key(s, 0, 0, Purpose.CHOICE) for s in range(len(scores))])
    values, tokens = perturbed_max(scores, stream)
    full = scores + noise(stream, scores.shape[-1])
    assert torch.equal(values, full.max(-1).values) and torch.equal(tokens, full.argmax(-1))


def test_greedy_takes_the_lowest_of_equals() -> None:
    scores = torch.tensor([[0.0, 2.0, 2.0, 1.0], [3.0, 3.0, 3.0, 3.0]])
    assert choose(scores, make_rows(2, temperature=0)).tolist() == [1, 0]


def test_rows_do_not_influence_each_other() -> None:
    """Greedy and drawn rows mixed, in any order, alone or together."""
    scores = shapes_of_scores()["usual"]
    rows = [*make_rows(12), *make_rows(12, temperature=0)]
    together = choose(scores, rows)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(2))
    assert torch.equal(choose(scores[order], [rows[i] for i in order]), together[order])
    alone = [int(choose(scores[i : i + 1], [rows[i]])) for i in range(24)]
    assert alone == together.tolist()


def test_rows_without_a_finite_maximum_get_no_token() -> None:
    scores = torch.zeros(5, 100)
    scores[1] = -torch.inf
    scores[2, 50] = torch.nan
    scores[3, 50] = torch.inf
    for options in ({}, {"temperature": 0.0}):
        tokens = choose(scores, make_rows(5, **options)).tolist()
        assert tokens[1:4] == [NO_TOKEN] * 3 and NO_TOKEN not in (tokens[0], tokens[4])


def test_excluded_tokens_are_never_chosen() -> None:
    scores = torch.full((200, 130), -torch.inf)
    scores[:, 129] = -1e4
    assert choose(scores, make_rows(200)).unique().tolist() == [129]


def test_draw_is_keyed_by_the_root_and_the_lane() -> None:
    scores = torch.zeros(1, 1000)
    request = Request("a", [0], SamplingParams(), seed=3)
    first = draw(scores, [Row(request, [])], [0]).item()
    assert draw(scores, [Row(request, [5, 5])], [0]).item() == first
    assert draw(scores, [Row(request, [])], [1]).item() != first
    assert choose(scores, [Row(request, [])]).item() != first
    request.append(7)
    assert draw(scores, [Row(request, [])], [0]).item() != first


def test_distribution_is_softmax_or_one_hot() -> None:
    scores = torch.randn(4, 9, dtype=torch.float64)
    rows = [*make_rows(2), *make_rows(2, temperature=0)]
    p = distribution(scores, rows)
    assert torch.equal(p[:2], scores[:2].softmax(-1))
    assert torch.equal(p[2:].argmax(-1), scores[2:].argmax(-1))
    assert p[2:].sum().item() == 2 and p[2:].max().item() == 1


@pytest.mark.parametrize("vocabulary", [1, 63, 64, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_highest_is_the_first_of_those_that_are(vocabulary: int, dtype: torch.dtype) -> None:
    scores = torch.randn(20, vocabulary, generator=torch.Generator().manual_seed(2)).to(dtype)
    scores[:10] = (scores[:10] * 2).round()  # ties
    scores[3] = -torch.inf
    value, token = highest(scores)
    assert value.equal(scores.amax(-1))
    first = [row.index(max(row)) for row in scores.tolist()]
    assert [t for i, t in enumerate(token.tolist()) if i != 3] == first[:3] + first[4:]


def test_where_a_row_is_not_finite_nothing_is_chosen() -> None:
    scores = torch.zeros(4, 300)
    scores[0, 299], scores[1, 5], scores[2] = torch.nan, torch.inf, -torch.inf
    assert choose(scores, make_rows(4, temperature=0.0)).tolist() == [NO_TOKEN] * 3 + [0]
