"""Will speculation pay here? Acceptance and the cost of a pass, measured on a few prompts."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import median
from time import perf_counter
from typing import Any, Literal

from outrider.core.outputs import Speculation
from outrider.core.params import SamplingParams
from outrider.engine.llm import LLM

PROMPTS = (
    ("copying", "Repeat this list twice: apple, pear, plum, cherry, apple, pear, plum, cherry."),
    ("code", "Write a Python class Point with x and y, and methods add, subtract and scale."),
    ("facts", "Name the planets of the solar system in order, one per line, with their size."),
    ("story", "Write a short story about a lighthouse keeper who finds a map."),
)
PAYS = 1.05  # below this, noise and the next prompt may turn it around
DRAFT_LENGTH = 4  # where the configuration names none
SLOTS = 4096  # that measuring needs


@dataclass
class Measurement:
    """Medians over passes of one text at a time, reading of the prompt left out: a busy moment of
    the machine must not decide."""

    plain_pass_seconds: float
    draft_pass_seconds: float  # a pass that checks a proposal
    draft_seconds: float  # making one
    drafts_share: float  # of the passes, those that had a proposal to check
    tokens_per_pass: float
    mean_acceptance_length: float
    rows_per_draft: float  # of a pass that checks a proposal
    acceptance_by_prompt: dict[str, float] = field(default_factory=dict)  # tokens per pass

    @property
    def ratio(self) -> float:
        """Speculative over plain speed."""
        own = self.drafts_share * (self.draft_pass_seconds + self.draft_seconds)
        return (
            self.tokens_per_pass
            * self.plain_pass_seconds
            / (own + (1 - self.drafts_share) * self.plain_pass_seconds)
        )

    def to_dict(self) -> dict[str, Any]:
        pays = self.ratio >= PAYS
        return {**asdict(self), "ratio": self.ratio, "pays": pays, "verdict": self.verdict}

    @property
    def verdict(self) -> str:
        if self.drafts_share == 0:
            return "The drafter proposed nothing on these prompts: speculation changes nothing."
        plain, ours = self.plain_pass_seconds, self.draft_pass_seconds
        costs = (
            f"{self.drafts_share:.0%} of the passes check a proposal, which costs "
            f"{ours / plain:.2f} plain passes ({1e3 * ours:.0f} against {1e3 * plain:.0f} ms) and "
            f"{self.draft_seconds / plain:.2f} for drafting; a pass writes "
            f"{self.tokens_per_pass:.2f} tokens"
        )
        if self.ratio >= PAYS:
            return f"Speculation pays: {self.ratio:.2f} times as fast here; {costs}."
        if self.ratio > 1 / PAYS:
            return f"Speculation neither pays nor hurts ({self.ratio:.2f} times as fast); {costs}."
        return f"Speculation does not pay: {self.ratio:.2f} times as fast here; {costs}."


@dataclass
class _Text:
    """One text, pass by pass after the first token."""

    tokens: int = 0
    plain: list[float] = field(default_factory=list)  # seconds of passes without a proposal
    checked: list[float] = field(default_factory=list)  # seconds of those with one, drafting apart
    drafting: list[float] = field(default_factory=list)
    counts: Speculation = field(default_factory=Speculation)

    @property
    def passes(self) -> int:
        return len(self.plain) + len(self.checked)


def measure(
    llm: LLM,
    tokens: int = 32,
    progress: Callable[[str, float], None] = lambda stage, done: None,
) -> Measurement:
    """Plain and speculative in turns on one engine, so that a busy machine hurts both alike."""
    # What is measured is the drafter: the policy might not ask it at all.
    fixed = llm.engine.draft_config.num_speculative_tokens is not None
    drafting = None if fixed else {"num_speculative_tokens": DRAFT_LENGTH}
    plain: list[_Text] = []
    speculative: list[_Text] = []
    _write(llm, PROMPTS[0][1], 4)  # warm-up
    for number, (_, prompt) in enumerate(PROMPTS):
        progress("measuring", number / len(PROMPTS))
        plain.append(_write(llm, prompt, tokens, speculation=False))
        speculative.append(_write(llm, prompt, tokens, speculation=drafting))
    return _summary(plain, speculative)


def _write(
    llm: LLM,
    prompt: str,
    tokens: int,
    speculation: dict[str, Any] | Literal[False] | None = None,
) -> _Text:
    """One greedy text, timed step by step."""
    params = SamplingParams(
        temperature=0.0, max_tokens=tokens, ignore_eos=True, speculation=speculation
    )
    engine, text = llm.engine, _Text()
    job = engine.jobs[engine.add(_prompt(llm, prompt), params)]
    sequence = job.sequences[0]
    while not job.finished:
        before, drafts = sequence.request.position, sequence.speculation.drafts
        drafting, start = engine.seconds["draft"], perf_counter()
        engine.step()
        drafting = engine.seconds["draft"] - drafting
        seconds = perf_counter() - start - drafting
        if before == 0:  # reading the prompt
            continue
        text.tokens += sequence.request.position - before
        if sequence.speculation.drafts > drafts:
            text.checked.append(seconds)
            text.drafting.append(drafting)
        else:
            text.plain.append(seconds)
    text.counts = sequence.speculation
    return text


def _prompt(llm: LLM, prompt: str) -> str | list[int]:
    if llm.tokenizer is None:
        return [ord(char) % llm.engine.runner.vocabulary for char in prompt]
    if llm.tokenizer.chat_template is None:
        return prompt
    return llm.chat_prompt([{"role": "user", "content": prompt}])


def _summary(plain: list[_Text], ours: list[_Text]) -> Measurement:
    passes = sum(text.passes for text in ours)
    checked = [seconds for text in ours for seconds in text.checked]
    usual = median(seconds for text in plain for seconds in text.plain)
    drafts = max(1, len(checked))
    return Measurement(
        plain_pass_seconds=usual,
        draft_pass_seconds=median(checked) if checked else usual,
        draft_seconds=median(s for text in ours for s in text.drafting) if checked else 0.0,
        drafts_share=len(checked) / passes,
        tokens_per_pass=sum(text.tokens for text in ours) / passes,
        mean_acceptance_length=1 + sum(text.counts.accepted for text in ours) / drafts,
        rows_per_draft=1 + sum(text.counts.drafted for text in ours) / drafts,
        acceptance_by_prompt={
            name: text.tokens / text.passes for (name, _), text in zip(PROMPTS, ours, strict=True)
        },
    )
