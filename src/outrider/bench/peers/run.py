"""`run_peers`: the cells of other systems, and why those that are missing are missing."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, NamedTuple

from outrider.bench.cells import BASE, Run, cells_of
from outrider.bench.peers.process import PeerFailed, Worker
from outrider.bench.peers.serve import Job
from outrider.bench.peers.talk import Talk
from outrider.bench.workloads import Prompt, categories
from outrider.core.errors import ConfigError, ModelError, unknown_name
from outrider.model import zoo
from outrider.model.machine import cores
from outrider.model.source import locate


class Peer(NamedTuple):
    module: str
    speculation: str  # its own name for what it does beside plain decoding
    reads_gguf: bool = False


PEERS = {
    "transformers": Peer("outrider.bench.peers.transformers", "prompt_lookup"),
    "llama.cpp": Peer("outrider.bench.peers.llama_cpp", "prompt_lookup", reads_gguf=True),
    "openvino": Peer("outrider.bench.peers.openvino", "prompt_lookup", reads_gguf=True),
    "vllm": Peer("outrider.bench.peers.vllm", "ngram"),
}
# What no peer tells about its speculation.
UNKNOWN = (
    "mean_acceptance_length",
    "accepted_per_position",
    "drafts",
    "drafted",
    "accepted",
    "steps",
    "phases",
)


@dataclass(frozen=True)
class PeerOptions:
    model: str
    gguf: Path | None = None  # default: the zoo model's, or the model itself if it is a GGUF
    max_tokens: int = 128
    num_speculative_tokens: int = 8
    repeats: int = 3
    threads: int | None = None  # default: all cores that this process may use
    timeout: float = 900.0  # seconds for one peer, loading and all modes together
    dtype: str = "auto"  # these two as Outrider understands them
    device: str = "auto"


def run_peers(
    names: list[str], prompts: list[Prompt], options: PeerOptions
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Cells as in results.json, and `{"system", "reason"}` for what could not be measured.

    Greedy, one request at a time. What a peer does, or fails to do, raises nothing here.
    """
    for name in names:
        if name not in PEERS:
            raise ConfigError(unknown_name("peer", name, PEERS))
    if not names:
        return [], []
    cells: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    talk = Talk(options.model, prompts)
    for name in names:
        runs, versions, reasons = _run_peer(name, talk, options)
        for cell in cells_of(runs, categories(prompts), options.max_tokens):
            cells.append(_as_peer(name, versions, cell.to_dict()))
        skipped += [{"system": name, "reason": reason} for reason in reasons]
    return cells, skipped


def _run_peer(
    name: str, talk: Talk, options: PeerOptions
) -> tuple[list[Run], dict[str, str], list[str]]:
    """What was measured until it was done, failed or ran out of time, its versions, the reasons."""
    runs: list[Run] = []
    versions: dict[str, str] = {}
    failures: dict[str, str] = {}
    deadline = monotonic() + options.timeout
    modes = (BASE, PEERS[name].speculation)
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for mode in modes:
            try:
                job = _job(mode, PEERS[name], talk, options)
                worker = Worker(name, PEERS[name].module, asdict(job), deadline)
                workers[mode] = stack.enter_context(worker)
                versions |= worker.start()
                worker.ask(talk.opening)  # warm-up
            except (PeerFailed, ModelError, OSError) as error:
                failures[mode] = str(error)
        # Repeats take turns between the modes, so that a noisy minute hurts both alike.
        for repeat in range(options.repeats):
            for mode in [mode for mode in workers if mode not in failures]:
                try:
                    runs.extend(_repeat(workers[mode], mode, repeat, talk))
                except PeerFailed as error:
                    failures[mode] = str(error)
    if len(failures) == len(modes) and len(set(failures.values())) == 1:
        return runs, versions, [failures[BASE]]
    return runs, versions, [f"{_called(mode)}: {reason}" for mode, reason in failures.items()]


def _called(mode: str) -> str:
    return "plain" if mode == BASE else mode


def _job(mode: str, peer: Peer, talk: Talk, options: PeerOptions) -> Job:
    from outrider.model.loading import choose_device, choose_dtype

    device = choose_device(options.device)
    path = locate(options.model)
    gguf = (options.gguf or _gguf(options.model, path)) if peer.reads_gguf else None
    return Job(
        mode=mode,
        model=str(path),
        gguf=None if gguf is None else str(gguf),
        max_tokens=options.max_tokens,
        num_speculative_tokens=options.num_speculative_tokens,
        threads=options.threads or cores(),
        context=talk.context(options.max_tokens),
        dtype=str(choose_dtype(options.dtype, device)).removeprefix("torch."),
        device=str(device),
    )


def _gguf(model: str, path: Path) -> Path:
    if model in zoo.ZOO:
        return zoo.gguf(model)
    if path.suffix == ".gguf":
        return path
    raise ModelError(f"reads GGUF files only, and {model} is none")


def _repeat(worker: Worker, mode: str, repeat: int, talk: Talk) -> Iterator[Run]:
    """Every prompt once: a run per category, as soon as it is whole."""
    for category in categories(talk.prompts):
        answers = [
            answer
            for prompt in talk.prompts
            if prompt.category == category
            for answer in talk.converse(prompt, worker.ask)
        ]
        yield _sum_up(answers, mode, category, repeat)


def _sum_up(answers: list[dict[str, Any]], mode: str, category: str, repeat: int) -> Run:
    streamed = [a for a in answers if a["first"] is not None]
    later = [(len(a["tokens"]) - a["with_first"], a["seconds"] - a["first"]) for a in streamed]
    gaps = [seconds / count for count, seconds in later if count > 0]
    return Run(
        drafter=mode,
        category=category,
        batch_size=1,
        temperature=0.0,
        repeat=repeat,
        requests=len(answers),
        tokens=sum(len(a["tokens"]) for a in answers),
        seconds=sum(a["seconds"] for a in answers),
        decode_tokens=sum(count for count, _ in later),
        decode_seconds=sum(seconds for _, seconds in later),
        time_to_first_token=median(a["first"] for a in streamed) if streamed else 0.0,
        inter_token_latency=median(gaps) if gaps else None,
        peak_memory_bytes=max((a["memory"] for a in answers if a["memory"]), default=None),
    )


def _as_peer(name: str, versions: dict[str, str], cell: dict[str, Any]) -> dict[str, Any]:
    known = {**cell, "system": name, "versions": versions, **dict.fromkeys(UNKNOWN)}
    if not cell["time_to_first_token"]:  # a peer that gives its answer only as a whole
        known["time_to_first_token"] = None
    return known
