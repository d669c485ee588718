"""What each drafter takes, seen at the first start: it drafts for texts of nobody's.

Kept per model, device and version like the passes' times, and for each drafter on its own. Only
those that run a model, of which the policy wants to know before it asks; lookups tell within a
few steps. On a GPU, where every size of draft would be captured for it, drafters are timed while
they work.
"""

import json
from dataclasses import asdict
from pathlib import Path
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING, Any

from outrider.core.params import SamplingParams
from outrider.engine.policy.calibration import file_of, keep
from outrider.engine.policy.timing import ROUTINE, Timing

if TYPE_CHECKING:
    from outrider.engine.engine import Engine

TEXTS = (1, 8, 32)  # at once
ROUNDS = 2  # of each: in the first, products are prepared and kernels built
PROMPT = ROUTINE + 8  # tokens: enough to tell what reading takes
STEPS = 6  # of each: prompts are read in one or two, and drafts must read them in the next
DRAFTED = 3  # tokens at a time, for each
LONG = 2.0  # seconds: after so many, no more texts at once are tried


def rehearse(engine: "Engine") -> None:
    """Before the first request comes, which it leaves no trace for but the times."""
    for drafter in engine.drafting.crew.members:
        if drafter.light or not drafter.longest:
            continue
        config = drafter.config
        what = [drafter.name, config.options, config.verification, engine.config.max_num_seqs]
        file = file_of(engine.runner, what)
        timing = _read(file)
        if timing is None:
            _draft_for_nobody(engine, drafter.name)
            keep(file, asdict(engine.policy.timings[drafter.name]))
        else:
            engine.policy.timings[drafter.name] = timing


def _draft_for_nobody(engine: "Engine", drafter: str) -> None:
    draw, vocabulary, start = Random(0), range(engine.runner.vocabulary), perf_counter()
    written = STEPS * (1 + DRAFTED)  # at most
    prompt = max(1, min(PROMPT, engine.max_model_len - written))
    params = SamplingParams(
        temperature=0.0,
        max_tokens=written,
        ignore_eos=True,
        speculation={"method": drafter, "num_speculative_tokens": DRAFTED},
    )
    for texts in [count for count in TEXTS if count <= engine.config.max_num_seqs]:
        for _ in range(ROUNDS):  # never of the same prompts, which would have been read
            prompts = [draw.choices(vocabulary, k=prompt) for _ in range(texts)]
            names = [engine.add(each, params) for each in prompts]
            for _ in range(STEPS):
                engine.step()
            for name in names:
                engine.abort(name)
        if perf_counter() - start > LONG:
            break
    engine.forget()
    engine.steps, engine.drafting.model_seconds = 0, 0.0
    engine.seconds.clear()


def _read(file: Path) -> Timing | None:
    try:
        kept = json.loads(file.read_text())
        return Timing(**{name: _by_size(value) for name, value in kept.items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return None  # never measured, or a file of another kind, which is replaced


def _by_size(value: Any) -> Any:
    """JSON has made words of the sizes."""
    return {int(k): float(v) for k, v in value.items()} if isinstance(value, dict) else value
