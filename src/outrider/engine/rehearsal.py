"""What each drafter takes, seen at the first start: it drafts for texts of nobody's.

Kept per model, device and version like the passes' times, and for each drafter on its own. Only
those that run a model, of which the policy wants to know before it asks; lookups tell within a
few steps. On a GPU, where every size of draft would be captured for it, drafters are timed while
they work.
"""

import json
from pathlib import Path
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch import nn

from outrider.core.params import SamplingParams
from outrider.drafters.base import Drafter
from outrider.engine.policy.calibration import file_of, keep
from outrider.engine.policy.timing import ROUTINE, Timing
from outrider.engine.stopwatch import Stopwatch

if TYPE_CHECKING:
    from outrider.engine.engine import Engine

TEXTS = (1, 8, 32)  # at once
ROUNDS = 2  # of each: in the first, products are prepared and kernels built
PROMPT = ROUTINE + 8  # tokens: enough to tell what reading takes
STEPS = 6  # of each: prompts are read in one or two, and drafts must read them in the next
DRAFTED = 3  # tokens at a time, for each
WRITTEN = STEPS * (1 + DRAFTED)  # at most
LONG = 2.0  # seconds: after so many, no more is tried


def rehearse(engine: "Engine") -> None:
    """Before the first request comes, which it leaves no trace for but the times."""
    if engine.max_model_len <= WRITTEN:
        return
    for drafter in engine.drafting.crew.members:
        if drafter.light or not drafter.longest:
            continue
        file = file_of(engine.runner, _what(engine, drafter))
        timing = _read(file)
        if timing is None:
            _draft_for_nobody(engine, drafter.name)
            timing = engine.policy.timings[drafter.name].before_work()
            if timing.known():
                keep(file, timing.kept())
        engine.policy.timings[drafter.name] = timing


def _what(engine: "Engine", drafter: Drafter) -> Any:
    """All that its time depends on but the target: where it was read from is not among it."""
    models = [runner.model for runner in drafter.runners]
    models += [part for part in vars(drafter).values() if isinstance(part, nn.Module)]
    weights = [(str(p.dtype), list(p.shape)) for model in models for p in model.parameters()]
    options = dict(drafter.config.options)
    if weights:
        options.pop("model", None)
    # A name may stand for several classes: tokenizers decide how a draft model is followed.
    who = drafter.name, type(drafter).__qualname__, weights, options
    room = min(engine.kv.total, TEXTS[-1] * (PROMPT + WRITTEN)), engine.scheduler.max_rows
    return who, _prompt(engine), engine.config.max_num_seqs, room


def _prompt(engine: "Engine") -> int:
    return min(PROMPT, engine.max_model_len - WRITTEN)


def _draft_for_nobody(engine: "Engine", drafter: str) -> None:
    params = SamplingParams(
        temperature=0.0,
        max_tokens=WRITTEN,
        ignore_eos=True,
        speculation={"method": drafter, "num_speculative_tokens": DRAFTED},
    )
    # They would be looked up in, which says nothing and may take long.
    documents, engine.intake.documents = engine.intake.documents, ()
    draw, start = Random(0), perf_counter()
    for texts in [count for count in TEXTS if count <= engine.config.max_num_seqs] * ROUNDS:
        _draft(engine, [_random(engine, draw) for _ in range(texts)], params)
        if perf_counter() - start > LONG:
            break
    engine.intake.documents = documents
    engine.forget()
    engine.steps, engine.scheduler.preemptions = 0, 0
    engine.drafting.calls.model_seconds = 0.0
    engine.stopwatch = Stopwatch(engine.runner, engine.drafting)
    engine.seconds.clear()


def _random(engine: "Engine", draw: Random) -> list[int]:
    """A prompt like no other, as what was read before is not read again. A vocabulary may be padded
    with ids that stand for nothing."""
    tokenizer = engine.loaded.tokenizer
    known = engine.runner.vocabulary if tokenizer is None else len(tokenizer)
    return draw.choices(range(min(known, engine.runner.vocabulary)), k=_prompt(engine))


def _draft(engine: "Engine", prompts: list[list[int]], params: SamplingParams) -> None:
    names = [engine.add(prompt, params) for prompt in prompts]
    for _ in range(STEPS):
        engine.step()
    for name in names:
        engine.abort(name)


def _read(file: Path) -> Timing | None:
    try:
        return Timing.of(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError, AttributeError):
        return None  # never measured, or a file of another kind, which is replaced
