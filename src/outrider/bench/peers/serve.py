"""A peer's own process: reads prompts as JSON lines, answers with tokens and times.

This half runs in the peer's environment, which may hold nothing but the peer: it and the adapters
import only the standard library until they load their peer.
"""

import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from queue import Queue
from threading import Thread
from time import perf_counter
from typing import Any

Emit = Callable[[list[int]], None]  # to be called with new tokens as soon as they are known
Generate = Callable[[list[int], Emit], None]


@dataclass(frozen=True)
class Job:
    """What the parent asks for, in the first line."""

    mode: str
    model: str  # a folder with safetensors, or a GGUF file
    gguf: str | None
    max_tokens: int
    num_speculative_tokens: int
    threads: int
    context: int  # tokens that the longest conversation can need
    dtype: str
    device: str


class Refused(Exception):
    """The peer cannot do this; the message says why."""


def serve(modes: dict[str, Callable[[Job], Generate]], package: str) -> None:
    """Loads one mode and tells the version of `package`, then generates for every line.

    The end of the input ends the process.
    """
    # Peers print to stdout as they like, also from C: the answers get a channel of their own.
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(**message: Any) -> None:
        print(json.dumps(message), file=channel, flush=True)

    lines: Queue[str] = Queue()
    Thread(target=_listen, args=(lines,), daemon=True).start()
    job = Job(**json.loads(lines.get()))
    try:
        generate = modes[job.mode](job)
    except ImportError as error:
        return answer(error=f"not installed ({_line(error)}); `make peers` installs it")
    except Refused as error:
        return answer(error=str(error))
    except Exception as error:
        return answer(error=f"cannot load the model: {_line(error)}")
    answer(ready=True, versions=_versions(package))
    while True:
        prompt = json.loads(lines.get())
        try:
            answer(**_timed(generate, prompt))
        except Exception as error:
            return answer(error=f"failed while generating: {_line(error)}")


def _versions(package: str) -> dict[str, str]:
    try:
        return {package: version(package)}
    except PackageNotFoundError:  # run from a source tree
        return {}


def _listen(lines: Queue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)  # the parent is done with us or gone: then the rest of an answer is for nobody


def _timed(generate: Generate, prompt: list[int]) -> dict[str, Any]:
    tokens: list[int] = []
    calls: list[tuple[float, int]] = []

    def emit(new: list[int]) -> None:
        calls.append((perf_counter(), len(new)))
        tokens.extend(new)

    start = perf_counter()
    generate(prompt, emit)
    seconds = perf_counter() - start
    # One call at the end says nothing about when the first token was there.
    first = calls[0][0] - start if len(calls) > 1 else None
    return {
        "tokens": tokens,
        "seconds": seconds,
        "first": first,  # seconds until the first token
        "with_first": calls[0][1] if calls else 0,  # a step may have brought several at once
        "memory": _peak_memory(),
    }


def _peak_memory() -> int | None:
    """Peak resident bytes of this process; unknown where a GPU may hold the model."""
    torch = sys.modules.get("torch")
    status = Path("/proc/self/status")
    if not status.exists() or (torch is not None and torch.cuda.is_available()):
        return None
    # Not getrusage: its peak begins with what the process that started this one had.
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
    return int(found[1]) * 1024 if found else None


def _line(error: BaseException) -> str:
    """The first line is the message; what follows is often a dump of C++ source lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])[:240]}" if lines else repr(error)
