"""results.json: written after every run, so that nothing measured is lost."""

import copy
import hashlib
import json
import os
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from outrider import __version__
from outrider.bench.best_fixed import against_best_fixed
from outrider.bench.cells import Run, cells_of
from outrider.bench.options import BenchOptions, DrafterSpec
from outrider.bench.workloads import Prompt, categories
from outrider.core.errors import ConfigError

SCHEMA = 1
FILE = "results.json"
PREVIOUS = "results.previous.json"  # what the file held before a new benchmark began
SAME = ("arguments", "prompts_sha256", "outrider", "versions", "hardware")  # for a resumed one
HOW_MUCH = ("repeat", "precision", "max_repeat")  # arguments that may change: what is there counts


class Results:
    """The content of results.json. `runs` are the measurements, `cells` sum them up."""

    def __init__(self, data: dict[str, Any], folder: Path) -> None:
        self.data = data
        self.path = folder / FILE
        self.runs = [Run(**run) for run in data["runs"]]

    @classmethod
    def new(
        cls,
        options: BenchOptions,
        prompts: list[Prompt],
        machine: dict[str, Any],  # versions, hardware and the dtype that was chosen
        folder: Path,
    ) -> "Results":
        return cls(_empty(options, prompts, machine), folder)

    @classmethod
    def resume(
        cls,
        options: BenchOptions,
        prompts: list[Prompt],
        machine: dict[str, Any],
        folder: Path,
    ) -> "Results":
        """What an interrupted benchmark left in the folder; it must have been the same one."""
        path = find_results(folder)
        data, wanted = read_results(path), _empty(options, prompts, machine)
        for name in SAME:
            old, new = data.get(name), wanted[name]
            if name == "arguments" and isinstance(old, dict):
                old = {**old, **{key: new[key] for key in HOW_MUCH}}
            if name == "versions" and isinstance(old, dict):
                old = {package: old.get(package) for package in new}  # without those of peers
            if old != new:
                raise ConfigError(
                    f"{path} is from a benchmark with other {name}"
                    f" ({_difference(old, new)}); --resume needs the same"
                )
        data["arguments"] = wanted["arguments"]
        try:
            return cls(data, folder)
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{path} cannot be resumed: its runs are damaged ({error})") from None

    @property
    def peers_done(self) -> set[str]:
        """Those with cells: one that was skipped may be there the next time."""
        return {cell["system"] for cell in self.data["cells"]} - {"outrider"}

    def ask_peers(self, names: list[str]) -> None:
        self.data["peers"] = list(dict.fromkeys([*self.data.get("peers", []), *names]))

    def add(self, runs: list[Run]) -> None:
        """Those of one measurement."""
        self.runs += runs
        self.save()

    def add_peer(self, cells: list[dict[str, Any]], skipped: list[dict[str, Any]]) -> None:
        systems = {entry["system"] for entry in (*cells, *skipped)}
        before = [entry for entry in self.data["skipped"] if entry["system"] not in systems]
        self.data["cells"] += cells
        self.data["skipped"] = before + skipped
        versions = self.data["versions"]
        for cell in cells:
            for package, version in (cell.get("versions") or {}).items():
                if versions.setdefault(package, version) != version:  # its own Python, not ours
                    versions[f"{package} (peer)"] = version
        self.save()

    def save(self) -> None:
        """All or nothing: a reader, or a crash in the middle, finds the old file or the new."""
        self.data["runs"] = [asdict(run) for run in self.runs]
        others = [cell for cell in self.data["cells"] if cell["system"] != "outrider"]
        names, options = self.data["categories"], self.data["arguments"]
        ours = cells_of(self.runs, names, options["max_tokens"], options["precision"])
        self.data["cells"] = [*(cell.to_dict() for cell in ours), *others]
        specs = [DrafterSpec(**spec) for spec in options["drafters"]]
        compared = against_best_fixed(self.runs, names, specs)
        self.data["best_fixed"] = [entry.to_dict() for entry in compared]
        partial = self.path.with_name(f"{FILE}.partial-{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
            partial.replace(self.path)
        except OSError as error:
            raise ConfigError(f"cannot write {self.path}: {error.strerror}") from None


def find_results(folder: Path) -> Path:
    path = folder / FILE
    if not path.exists():
        raise ConfigError(f"nothing to resume: there is no {path}; leave out --resume")
    return path


def make_room(folder: Path) -> None:
    """Keep the last results beside the new ones: nobody's measurements vanish by a new start."""
    path = folder / FILE
    try:
        if path.exists():
            path.replace(folder / PREVIOUS)
    except OSError as error:
        raise ConfigError(f"cannot write in {folder}: {error.strerror}") from None


def read_results(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error})") from None
    if not isinstance(data, dict) or not isinstance(data.get("cells"), list):
        raise ConfigError(f"{path} is not a results.json of outrider bench: it has no cells")
    if data.get("schema") != SCHEMA:
        raise ConfigError(
            f"{path} has schema {data.get('schema')!r}, this version reads {SCHEMA}; measure again"
        )
    return data


def _empty(options: BenchOptions, prompts: list[Prompt], machine: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps([asdict(prompt) for prompt in prompts])
    return {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "outrider": __version__,
        **copy.deepcopy(machine),
        "arguments": options.to_dict(),
        "seed": options.seed,
        "prompts_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "categories": categories(prompts),
        "peers": [],  # that were asked for
        "pass_cost": [],
        "cells": [],
        "best_fixed": [],
        "skipped": [],
        "runs": [],
    }


def _difference(old: Any, new: Any) -> str:
    """The first entry that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in (*new, *old):
            if old.get(key) != new.get(key):
                return f"{key}: {old.get(key)!r} there, {new.get(key)!r} now"
    return f"{old!r} there, {new!r} now"
