"""What the benchmark's tests share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.tiny import make_tiny, make_tokenizer

from outrider.bench.cells import Run
from outrider.bench.options import BenchOptions, DrafterSpec, parse_drafters
from outrider.bench.plan import Measurement
from outrider.bench.workloads import Prompt

PROMPTS = [
    Prompt("a1", "chat", ("one two three, one two", "and then?")),
    Prompt("a2", "chat", ("the rider rides",)),
    Prompt("b1", "code", ("def ride(ahead): return ahead",)),
]
MACHINE = {"versions": {"python": "3"}, "hardware": {"cpu": "abacus", "gpu": None}}


def tiny_model(folder: Path, **changes: Any) -> str:
    model = make_tiny("llama", folder, seed=3, **changes)
    make_tokenizer(model)
    return str(model)


def tiny_options(model: str = "tiny", **changes: Any) -> BenchOptions:
    given: dict[str, Any] = {
        "model": model,
        "drafters": parse_drafters(["ngram:prompt_lookup_min=1"]),
        "batch_sizes": (1, 3),
        "max_tokens": 6,
        "repeat": 2,
        "dtype": "float32",
    }
    return BenchOptions(**{**given, **changes})


def a_run(drafter: str, category: str, repeat: int, speed: float, **changes: Any) -> Run:
    """A run of 100 tokens at this many tokens per second."""
    given: dict[str, Any] = {
        "drafter": drafter,
        "category": category,
        "batch_size": 1,
        "temperature": 0.0,
        "repeat": repeat,
        "requests": 2,
        "tokens": 100,
        "seconds": 100 / speed,
        "decode_tokens": 98,
        "decode_seconds": 90 / speed,
        "time_to_first_token": 0.1,
        "inter_token_latency": 1 / speed,
    }
    return Run(**{**given, **changes})


class Silent:
    """A display that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.totals: list[int] = []  # as expected from time to time
        self.advanced = 0

    def note(self, text: str) -> None:
        self.notes.append(text)

    @contextmanager
    def stage(self, text: str) -> Iterator[None]:
        yield

    @contextmanager
    def bar(self, estimated: bool) -> Iterator["Silent"]:
        self.estimated = estimated
        yield self

    def expect(self, more: int) -> None:
        self.totals.append(self.advanced + more)

    def advance(self, what: str, count: int) -> None:
        self.advanced += count


def measurement(drafter: str, category: str, batch_size: int, repeat: int = 0) -> Measurement:
    return Measurement(drafter, (category,), batch_size, 0.0, repeat)


def spec(label: str) -> DrafterSpec:
    """Without asking whether there is such a drafter."""
    method, _, length = label.partition(":k=")
    config = {"method": method} | ({"num_speculative_tokens": int(length)} if length else {})
    return DrafterSpec(label, config)
