"""A benchmark from start to end: load, measure, ask the peers, write everything down."""

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import torch

from outrider.bench.cells import Run
from outrider.bench.hardware import hardware, versions
from outrider.bench.options import BenchOptions
from outrider.bench.peers.run import PeerOptions, run_peers
from outrider.bench.plan import Measurement, Plan, side_by_side
from outrider.bench.results import Results, find_results, make_room
from outrider.bench.runner import Engines, fitting, pass_cost
from outrider.bench.texts import Texts
from outrider.bench.workloads import Prompt
from outrider.core.errors import OutriderError
from outrider.model import zoo


class Bar(Protocol):
    """How far the measuring has come, in conversations."""

    def expect(self, more: int) -> None: ...
    def advance(self, what: str, count: int) -> None: ...


class Display(Protocol):
    """Where a benchmark says what it does."""

    def note(self, text: str) -> None: ...
    def stage(self, text: str) -> AbstractContextManager[None]: ...
    def bar(self, estimated: bool) -> AbstractContextManager[Bar]: ...


@dataclass
class Session:
    options: BenchOptions
    folder: Path
    display: Display
    resume: bool = False
    peers: list[str] = field(default_factory=list)
    peer_timeout: float = PeerOptions.timeout
    gguf: Path | None = None
    results: Results | None = None  # once there is something to keep

    def run(self, prompts: list[Prompt]) -> Results:
        if self.resume:
            find_results(self.folder)  # before a model is loaded for nothing
        if self.options.model in zoo.ZOO:
            zoo.pull(self.options.model)  # first: it shows a progress of its own
        engines, prompts = self._load(prompts)
        results = self.results = self._open(engines, prompts)
        self._measure(engines, prompts, results)
        del engines
        self._run_peers(prompts, results)
        return results

    def _load(self, prompts: list[Prompt]) -> tuple[Engines, list[Prompt]]:
        with self.display.stage(f"loading {self.options.model}"):
            engines = Engines.load(self.options)
        if self.options.same_texts:
            engines.check_dictation()
        prompts, problems = fitting(engines.base, prompts)
        for problem in problems:
            self.display.note(problem)
        return engines, prompts

    def _open(self, engines: Engines, prompts: list[Prompt]) -> Results:
        loaded = engines.base.engine.loaded
        dtype = str(loaded.dtype).removeprefix("torch.")
        machine = {"versions": versions(), "hardware": hardware(loaded.device), "dtype": dtype}
        if self.resume:
            results = Results.resume(self.options, prompts, machine, self.folder)
            results.ask_peers(self.peers)
            return results
        make_room(self.folder)
        results = Results.new(self.options, prompts, machine, self.folder)
        results.ask_peers(self.peers)
        results.save()  # a folder that cannot be written shows before hours of measuring
        return results

    def _measure(self, engines: Engines, prompts: list[Prompt], results: Results) -> None:
        plan = Plan(self.options, prompts)
        rounds = self._rounds(plan, results)
        first = next(rounds, None)
        if first is None:
            return
        with self.display.stage("warming up"):
            engines.warm_up(self.options, prompts)
            if not results.data["pass_cost"]:
                results.data["pass_cost"] = pass_cost(engines.base)
        texts = self._texts(engines, prompts) if self.options.same_texts else None
        with self.display.bar(estimated=self.options.precision is not None) as bar:
            for due in chain([first], rounds):
                bar.expect(plan.conversations_left(results.runs, due[0].repeat))
                for together in side_by_side(due) if engines.take_turns else [[m] for m in due]:
                    results.add(self._measured(engines, together, prompts, texts, bar))

    def _texts(self, engines: Engines, prompts: list[Prompt]) -> Texts:
        if self.resume:
            return Texts.read(self.folder)
        with self.display.stage("writing the texts that all are to write"):
            texts = Texts.written_by(engines.base, self.options, prompts)
        texts.save(self.folder)
        return texts

    def _rounds(self, plan: Plan, results: Results) -> Iterator[list[Measurement]]:
        """What is still to be measured, repeat by repeat; each looks at what the last one left."""
        for repeat in range(self.options.most_repeats):
            due = plan.due(results.runs, repeat)
            if due and repeat >= self.options.least_repeats:
                count = len(plan.imprecise(results.runs))
                self.display.note(f"repeat {repeat + 1}: {count} ratios are not precise enough yet")
            if due:
                yield due

    def _measured(
        self,
        engines: Engines,
        together: list[Measurement],
        prompts: list[Prompt],
        texts: Texts | None,
        bar: Bar,
    ) -> list[Run]:
        _, names, batch_size, temperature, _ = together[0]
        drafters = " and ".join(measurement.drafter for measurement in together)
        what = f"{drafters}, {' to '.join((names[0], *names[1:][-1:]))}"
        what += f", batch {batch_size}, T={temperature:g}"
        bar.advance(what, 0)
        return engines.measure(
            together,
            prompts,
            self.options.max_tokens,
            self.options.seed,
            lambda: bar.advance(what, 1),
            texts,
        )

    def _run_peers(self, prompts: list[Prompt], results: Results) -> None:
        _give_back_memory()
        for name in self.peers:
            if name in results.peers_done:
                continue
            with self.display.stage(f"measuring {name}"):
                try:
                    cells, skipped = run_peers([name], prompts, self._peer_options())
                except OutriderError as error:
                    cells, skipped = [], [{"system": name, "reason": str(error)}]
            results.add_peer(cells, skipped)
            for entry in skipped:
                self.display.note(f"{entry['system']} skipped: {entry['reason']}")

    def _peer_options(self) -> PeerOptions:
        given: dict[str, Any] = {
            name: getattr(self.options, name) for name in ("model", "max_tokens", "dtype", "device")
        }
        return PeerOptions(
            **given, repeats=self.options.repeat, timeout=self.peer_timeout, gguf=self.gguf
        )


def _give_back_memory() -> None:
    """A peer may want most of the GPU for itself."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
