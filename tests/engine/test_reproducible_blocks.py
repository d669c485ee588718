"""Reproducible passes as graphs of few rows: the engine's side of it, with a double on a CPU."""

from array import array
from typing import Any

import pytest
import torch
from tests.engine.eager_graphs import scores_of
from tests.engine.helpers import Ask, Models, drafting, make_llm, random_prompt, run

from outrider.core.params import SamplingParams
from outrider.core.tree import depths_of
from outrider.engine.llm import LLM
from outrider.model.cuda.inputs import LIKELIEST
from outrider.model.flight import Flight
from outrider.model.runner import Runner
from outrider.model.segment import Segment
from outrider.sampling.noise import Key, Purpose, noise, streams


class FewRows:
    """Takes eight rows at a time, by the fixed passes of a CPU; keeps the tokens of two passes, and
    the choices of the last for a next one."""

    most_rows, invariant, captured, device = 8, True, 0, torch.device("cpu")

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.previous: list[int] = []
        self.launches = self.ahead = self.blocks = 0
        self.buffer = torch.empty(self.most_rows, runner.vocabulary, dtype=runner.loaded.dtype)

    def fits(self, segments: list[Segment]) -> bool:
        return sum(map(len, segments)) <= self.most_rows

    def prompts_among(self, segments: list[Segment]) -> list[int]:
        return []

    def fits_in_blocks(self, segments: list[Segment]) -> bool:
        self.blocks += 1
        return True

    def launch(self, segments: list[Segment]) -> Flight:
        assert self.fits(segments)
        self.launches += 1
        for segment in segments:
            self.ahead += segment.tokens[0] < 0
            segment.tokens = [self.previous[-1 - t] if t < 0 else t for t in segment.tokens]
        logits = self.runner._forward_fixed(segments)
        self.buffer[: len(logits)] = logits  # as a graph does: the next pass writes there, too
        self.previous = self._choices(segments, logits)

        def landed(tokens: list[int] = self.previous, mine: int = self.launches) -> list[int]:
            assert self.launches - mine <= 1, "the device keeps the tokens of two passes"
            return tokens

        return Flight(self.buffer[: len(logits)], landed)

    def _choices(self, segments: list[Segment], logits: torch.Tensor) -> list[int]:
        tokens, row = [], 0
        for segment in segments:
            asked = segment.choosing or LIKELIEST
            depths = depths_of(segment.parents)
            for depth in depths[segment.logits_from :]:
                position = asked.position + depth - depths[segment.logits_from]
                scores = scores_of(logits[row].float(), asked)
                if asked.temperature:
                    key = Key(asked.seed, asked.sample, position, Purpose.CHOICE)
                    scores = scores + noise(streams([key]), len(scores))[0]
                tokens.append(int(scores.argmax()))
                row += 1
        return tokens


def reproducible(models: Models, name: str, few: bool, **options: Any) -> tuple[LLM, FewRows]:
    llm = make_llm(
        models.target, drafting(models, name, 4), dtype="bfloat16", reproducible=True, **options
    )
    graphs = FewRows(llm.engine.runner)
    if few:
        llm.engine.runner.graphs = graphs  # type: ignore[assignment]
        llm.engine.scheduler.replayed_rows = llm.engine.runner.replayed_rows
    return llm, graphs


def ids(results: list) -> list[list[int]]:
    return [output.token_ids for result in results for output in result.outputs]


@pytest.mark.parametrize("name", ["none", "ngram", "draft_model"])
@pytest.mark.parametrize("count", [3, 12])
def test_the_text_is_that_of_one_pass(models: Models, name: str, count: int) -> None:
    options: list[dict[str, Any]] = [{"temperature": 0.0}, {}, {"top_p": 0.9}, {"top_k": 9}]
    asked: list[Ask] = [
        (random_prompt(i, 3 + 9 * (i % 4)), SamplingParams(seed=i, max_tokens=12, **options[i % 4]))
        for i in range(count)
    ]
    plain, _ = reproducible(models, "none", few=False)
    llm, graphs = reproducible(models, name, few=True)
    assert ids(run(llm, asked)) == ids(run(plain, asked))
    assert graphs.blocks > 0 and graphs.launches > graphs.blocks
    if name == "none" and count <= graphs.most_rows:
        assert graphs.ahead > 0
    llm.engine.kv.check()


def test_logits_come_in_the_order_of_the_segments(models: Models) -> None:
    llm, graphs = reproducible(models, "none", few=True)
    runner = llm.engine.runner
    one = Segment.chain(list(range(5, 18)), array("q", range(1, 14)), array("q"), logits_from=3)
    tree = Segment(
        [9] * 12, [-1, *[0, 0, 1] * 3, 5, 5], array("q", range(20, 32)), array("q"), logits_from=0
    )
    assert torch.equal(runner.forward([tree, one]), runner._forward_fixed([tree, one]))
    assert graphs.launches >= 4
