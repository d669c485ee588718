import torch

from outrider.sampling.logprobs import logprobs


def test_chosen_rank_and_alternatives() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0, -torch.inf], [0.0, 0.0, 5.0, 0.0]])
    result = logprobs(scores, torch.tensor([2, 0]), top=2)
    expected = scores.log_softmax(-1)
    assert torch.equal(result.chosen, torch.stack([expected[0, 2], expected[1, 0]]))
    assert result.rank.tolist() == [2, 2]
    assert result.top_ids[0].tolist() == [1, 2] and result.top_ids[1, 0].item() == 2
    assert torch.equal(result.top[0], expected[0, [1, 2]])


def test_low_precision_is_normalised_in_float32() -> None:
    scores = torch.randn(3, 50_000).bfloat16()
    result = logprobs(scores, torch.zeros(3, dtype=torch.int64), top=0)
    assert result.chosen.dtype == torch.float32 and result.top.shape == (3, 0)
    torch.testing.assert_close(result.chosen, scores.double().log_softmax(-1)[:, 0].float())


def test_more_alternatives_than_tokens() -> None:
    assert logprobs(torch.zeros(1, 3), torch.tensor([0]), top=9).top_ids.shape == (1, 3)
