"""Is a difference a float tie or a real fault? The distance from the best score decides."""

from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor

from outrider.audit.reference import FACTOR, LIMIT, Reference, last_place
from outrider.audit.report import Check, Difference, Verdict
from outrider.core.outputs import CompletionOutput, RequestOutput
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.engine.intake import Checked
from outrider.sampling.counts import Counts
from outrider.sampling.noise import Key, Purpose, noise, streams
from outrider.sampling.process import process
from outrider.sampling.rows import Row


@dataclass(frozen=True)
class Ask:
    """One request of the audit."""

    check: str  # which check it is part of
    name: str  # which of that check's requests
    params: SamplingParams
    checked: Checked  # prompt ids, stop ids and bad words, as the engine's door read them

    @property
    def prompt(self) -> list[int]:
        return self.checked.ids

    def request(self, sample: int, output: list[int]) -> Request:
        c, seed = self.checked, self.params.seed or 0
        return Request("", c.ids, self.params, seed, sample, c.stop_ids, c.bad_words, list(output))

    @property
    def error_scale(self) -> float:
        """By how much the options stretch an error of the logits."""
        stretch = max(self.params.repetition_penalty, 1 / self.params.repetition_penalty)
        return stretch if self.params.greedy else stretch / min(1.0, self.params.temperature)


@dataclass
class Judge:
    reference: Reference
    tokenizer: Any
    tolerance: float = 0.0  # of logits; set by `calibrate`
    drawn: bool = False  # tokens at T > 0 are drawn (traversal): no score is the best one

    def calibrate(self, asks: list[Ask], plain: list[RequestOutput], dtype: torch.dtype) -> Check:
        """Plain decoding's own log-probabilities against the reference: how large is rounding?"""
        worst, largest = 0.0, 0.0
        for ask, result in zip(asks, plain, strict=True):
            output = result.outputs[0]
            logits = self.reference.after(ask.prompt, output.token_ids)  # [tokens, vocabulary]
            exact = logits.log_softmax(-1)
            largest = max(largest, float(logits.abs().max()))
            for row, entry in zip(exact, output.logprobs or [], strict=True):
                errors = [abs(float(row[t]) - found.logprob) for t, found in entry.items()]
                worst = max(worst, *errors)
        return self.settle(worst, largest, dtype, "plain decoding")

    def settle(self, worst: float, largest: float, dtype: torch.dtype, whose: str) -> Check:
        """Derive the tolerance from the worst error seen; more than rounding explains is a fault.

        largest: the largest logit, whose last place is the unit of rounding.
        """
        unit = last_place(largest, dtype)
        limit = LIMIT[dtype] * unit
        self.tolerance = FACTOR * max(min(worst, limit), unit)
        name, kept = str(dtype).removeprefix("torch."), str(self.reference.loaded.dtype)
        detail = (
            f"log-probabilities of {whose} are within {worst:.2g} of transformers' own in "
            f"{kept.removeprefix('torch.')} ({limit:.2g} is rounding in {name}); "
            f"scores closer than {self.tolerance:.2g} are ties"
        )
        figures = {"worst": worst, "limit": limit, "tolerance": self.tolerance}
        return Check("reference", worst <= limit, detail, figures=figures)

    # ---- two texts of one request ----

    def compare(self, ask: Ask, got: RequestOutput, expected: RequestOutput) -> list[Difference]:
        """What speculation wrote against what plain decoding wrote."""
        if got.error or expected.error:
            return [self._fault(ask, 0, f"the request failed: {got.error or expected.error}")]
        found = []
        for ours, theirs in zip(got.outputs, expected.outputs, strict=True):
            difference = self._first_difference(ask, ours, theirs)
            difference = self._wrong_logprob(ask, ours, theirs) or difference
            if difference is not None:
                found.append(difference)
        return found

    def _wrong_logprob(
        self, ask: Ask, got: CompletionOutput, expected: CompletionOutput
    ) -> Difference | None:
        """The first log-probability that differs, while the texts are the same."""
        allowed = self.tolerance * ask.error_scale
        pairs = zip(got.token_ids, expected.token_ids, got.logprobs or [], expected.logprobs or [])
        for at, (token, other, ours, theirs) in enumerate(pairs):
            if token != other:
                return None
            for t in ours.keys() & theirs.keys():
                x, y = ours[t].logprob, theirs[t].logprob
                if x != y and not abs(x - y) <= allowed:  # NaN is a fault, too
                    note = f"the log-probability of {self.decode(t)!r} is {x:.4f} for {y:.4f}"
                    return self._fault(ask, at, note)
        return None

    def _first_difference(
        self, ask: Ask, got: CompletionOutput, expected: CompletionOutput
    ) -> Difference | None:
        a, b = got.token_ids, expected.token_ids
        shorter = min(len(a), len(b))
        at = next((i for i in range(shorter) if a[i] != b[i]), None)
        if at is not None:
            logits = self.reference.after(ask.prompt, a[: at + 1])[-1]
            return self._judged(ask, got.index, a[:at], logits, a[at], b[at])
        if len(a) != len(b):
            note = (
                f"the speculative text ends here ({got.finish_reason}), the plain one goes on"
                if len(a) < len(b)
                else f"the plain text ends here ({expected.finish_reason}), the speculative goes on"
            )
            return self._fault(ask, shorter, note)
        ends = ("text", "finish_reason", "stop_reason")
        for end in ends:
            x, y = getattr(got, end), getattr(expected, end)
            if x != y:
                return self._fault(ask, shorter, f"same tokens, but {end} is {x!r} for {y!r}")
        return None

    def _judged(
        self, ask: Ask, sample: int, text: list[int], logits: Tensor, token: int, other: int
    ) -> Difference:
        """Two tokens after the same text; logits [vocabulary] are the reference's there."""
        at = len(text)
        margins = [self.distance(ask, sample, text, logits, t) for t in (token, other)]
        margin = max(margins)
        allowed = self.tolerance * ask.error_scale
        verdict: Verdict = "float tie" if margin <= allowed else "real fault"
        note = ""
        if margins[0] <= allowed < margins[1]:
            note = "the plain token is the wrong one"
        return Difference(
            ask.name, at, token, self.decode(token), other, self.decode(other),
            margin, allowed, verdict, note,
        )  # fmt: skip

    def _fault(self, ask: Ask, at: int, note: str) -> Difference:
        return Difference(ask.name, at, None, "", None, "", None, 0.0, "real fault", note)

    # ---- a text fed back ----

    def feed_back(self, ask: Ask, output: CompletionOutput) -> tuple[float, list[Difference]]:
        """The largest distance of a token from the best score at its place, and the faults."""
        if not output.token_ids:
            return 0.0, []
        worst, faults = 0.0, []
        rows = self.reference.after(ask.prompt, output.token_ids)  # [tokens, vocabulary]
        for at, (token, logits) in enumerate(zip(output.token_ids, rows, strict=True)):
            if self.drawn and not ask.params.greedy:
                if not self._possible(ask, output, at, logits):
                    faults.append(self._fault(ask, at, f"{self.decode(token)!r} has probability 0"))
                continue
            scores = self.scores(ask, output.index, output.token_ids[:at], logits)
            best = int(scores.argmax())
            if best != token:
                text = output.token_ids[:at]
                found = self._judged(ask, output.index, text, logits, token, best)
                worst = max(worst, found.margin or 0.0)
                faults += [replace(found, note="fed back")] if found.verdict == "real fault" else []
        return worst, faults

    def _possible(self, ask: Ask, output: CompletionOutput, at: int, logits: Tensor) -> bool:
        """Whether the options leave the token a chance; at a cut, rounding may decide."""
        raised = logits.clone()
        raised[output.token_ids[at]] += self.tolerance * ask.error_scale
        request = ask.request(output.index, output.token_ids[:at])
        scores = process(raised[None], [Row(request, [])], Counts(len(logits)))[0]
        return bool(scores[output.token_ids[at]].isfinite())

    def distance(self, ask: Ask, sample: int, text: list[int], logits: Tensor, token: int) -> float:
        """How far a token is from the best score, in the kindest reading that rounding allows: at
        the cut of top-k, top-p or min-p it may keep the token, and drop a rival."""
        allowed = self.tolerance * ask.error_scale
        scores = self.scores(ask, sample, text, logits)  # [vocabulary]
        own = float(scores[token])
        if not isfinite(own):
            own = self._moved(ask, sample, text, logits, token, self.tolerance) - allowed
        while isfinite(own):
            rival = int(scores.argmax())
            distance = float(scores[rival]) - own
            if distance <= allowed:
                return max(distance, 0.0)
            if isfinite(self._moved(ask, sample, text, logits, rival, -self.tolerance)):
                return distance
            scores[rival] = -inf
        return inf

    def _moved(
        self, ask: Ask, sample: int, text: list[int], logits: Tensor, token: int, by: float
    ) -> float:
        """The token's score if its logit were another."""
        moved = logits.clone()
        moved[token] += by
        return float(self.scores(ask, sample, text, moved)[token])

    def scores(self, ask: Ask, sample: int, text: list[int], logits: Tensor) -> Tensor:
        """What the next token is the maximum of, recomputed from nothing: [vocabulary]."""
        request = ask.request(sample, text)
        scores = process(logits[None], [Row(request, [])], Counts(len(logits)))[0]
        if ask.params.greedy or self.drawn:
            return scores
        key = Key(request.seed, sample, len(text), Purpose.CHOICE)
        return scores + noise(streams([key]), len(logits))[0].double()

    def decode(self, token: int) -> str:
        return "" if self.tokenizer is None else self.tokenizer.decode([token])
