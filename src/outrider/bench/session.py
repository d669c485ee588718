"""A benchmark from start to end: load, measure, ask the peers, write everything down."""

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from outrider.bench.hardware import hardware, versions
from outrider.bench.options import BenchOptions
from outrider.bench.peers.run import PeerOptions, run_peers
from outrider.bench.results import Results, find_results, make_room
from outrider.bench.runner import Engines, fitting, pass_cost, plan
from outrider.bench.workloads import Prompt
from outrider.core.errors import OutriderError
from outrider.model import zoo


class Display(Protocol):
    """Where a benchmark says what it does."""

    def note(self, text: str) -> None: ...
    def stage(self, text: str) -> AbstractContextManager[None]: ...
    def bar(self, total: int) -> AbstractContextManager[Callable[[str, int], None]]: ...


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
        done = results.done
        keys = [key for key in plan(self.options, prompts) if key not in done]
        if not keys:
            return
        with self.display.stage("warming up"):
            engines.warm_up(self.options, prompts)
            if not results.data["pass_cost"]:
                results.data["pass_cost"] = pass_cost(engines.base)
        by_category: dict[str, list[Prompt]] = {}
        for prompt in prompts:
            by_category.setdefault(prompt.category, []).append(prompt)
        sizes = [max(len(by_category[k.setting.category]), k.setting.batch_size) for k in keys]
        with self.display.bar(sum(sizes)) as advance:
            for key in keys:
                category, batch_size, temperature = key.setting
                name = f"{key.drafter}, {category}, batch {batch_size}, T={temperature:g}"
                advance(name, 0)
                run = engines.measure(
                    key,
                    by_category[category],
                    self.options.max_tokens,
                    self.options.seed,
                    lambda name=name: advance(name, 1),  # type: ignore[misc]
                )
                results.add(run)

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
