"""Stands for CUDA graphs where there is no GPU: the engine's side of passes that run ahead."""

from array import array

from torch import Tensor

from outrider.core.params import SamplingParams
from outrider.core.tree import depths_of
from outrider.model.flight import Flight
from outrider.model.runner import Runner
from outrider.model.segment import Choosing, Segment
from outrider.sampling.noise import Key, Purpose, noise, streams
from outrider.sampling.truncate import truncate


class EagerGraphs:
    """Computes a pass at once, and hides its tokens until somebody asks for them."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.previous: list[int] = []
        self.ahead = 0  # passes that began with tokens unknown to the host
        self.launches = 0
        self.most_rows = 256
        self.captured = 0  # graphs: none were
        self.largest = 0  # rows of a pass that was launched
        self.apart = 0  # prompts that were read in passes of their own
        self.went_on = 0  # passes that were made of the one before them

    def fits(self, segments: list[Segment]) -> bool:
        return all(len(s) <= 64 and s.logits_from == 0 for s in segments)

    def long_pass(self, segments: list[Segment]) -> None:
        return None

    def prompts_among(self, segments: list[Segment]) -> list[int]:
        prompts = [i for i, s in enumerate(segments) if s.logits_from == len(s) - 1 > 6]
        others = [s for i, s in enumerate(segments) if i not in prompts]
        return prompts if self.fits(others) and len(prompts) < 3 else []

    def read(self, prompt: Segment) -> Flight:
        self.apart += 1
        assert prompt.choosing is not None
        logits = self.runner._forward([prompt])
        end = Segment.chain([0], prompt.slots[-1:], prompt.context, 0)
        end.choosing = prompt.choosing
        [token] = chosen(logits, asked_of([end]))
        return Flight(logits, lambda: [token])

    def launch(self, segments: list[Segment]) -> Flight:
        self.ahead += any(token < 0 for s in segments for token in s.tokens)
        self.launches += 1
        self.largest = max(self.largest, sum(map(len, segments)))
        for segment in segments:
            segment.tokens = [self.previous[-1 - t] if t < 0 else t for t in segment.tokens]
        logits = self.runner._forward(segments)
        self.previous = chosen(logits, asked_of(segments))

        mine, tokens = self.launches, self.previous

        def landed() -> list[int]:
            assert self.launches - mine <= 1, "the device keeps the tokens of two passes"
            return tokens

        def go_on(kept: list[int], slots: list[int]) -> Flight:
            """As the device does: it knows what the pass before read, and nothing newer."""
            assert self.launches == mine
            self.went_on += 1
            return self.launch([after(segments[row], row, slot) for row, slot in zip(kept, slots)])

        single = all(len(segment) == 1 for segment in segments)
        return Flight(logits, landed, go_on=go_on if single else None)


def after(segment: Segment, row: int, slot: int) -> Segment:
    """One row later."""
    assert segment.choosing is not None
    context, asked = segment.context + segment.slots, segment.choosing
    asked = asked._replace(position=asked.position + 1)
    return Segment([-1 - row], [-1], array("q", [slot]), context, 0, segment.owner, asked)


def asked_of(segments: list[Segment]) -> list[Choosing]:
    """How each row chooses, with the output position that it decides."""
    asked = []
    for segment in segments:
        assert segment.choosing is not None
        first = segment.choosing.position - 1
        for depth in depths_of(segment.parents):
            asked.append(segment.choosing._replace(position=first + depth))
    return asked


def chosen(logits: Tensor, asked: list[Choosing]) -> list[int]:
    """logits [rows, vocabulary] -> the token of each row."""
    rows = zip(logits, asked, strict=True)
    return [int((scores_of(row, each) + _noise(each, len(row))).argmax()) for row, each in rows]


def _noise(asked: Choosing, vocabulary: int) -> Tensor | float:
    """[vocabulary], of the output position."""
    key = Key(asked.seed, asked.sample, asked.position, Purpose.CHOICE)
    return noise(streams([key]), vocabulary)[0] if asked.temperature else 0.0


def scores_of(logits: Tensor, asked: Choosing) -> Tensor:
    """logits [vocabulary] -> those that may be drawn."""
    if not asked.temperature:
        return logits
    scores = (logits / asked.temperature)[None]
    options = {"top_k": asked.top_k, "top_p": asked.top_p, "min_p": asked.min_p}
    truncate(scores, [SamplingParams(temperature=asked.temperature, **options)])
    return scores[0]
