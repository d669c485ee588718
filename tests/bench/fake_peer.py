"""A peer whose behaviour a test chooses by environment variables, one for each mode."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from outrider.bench.peers.serve import Emit, Generate, Job, Refused, serve


def load(job: Job) -> Generate:
    behaviour = os.environ.get(f"FAKE_{job.mode.upper()}", "well")
    if behaviour == "missing":
        import no_such_library  # noqa: F401
    if behaviour == "refuse":
        raise Refused("has no taste for this model")
    if behaviour == "break":
        raise RuntimeError("bad\n  weights\n")
    if behaviour == "chatter":
        subprocess.run(["echo", '{"error": "not an answer"}'], check=True)
        print("loading 100 %")
    return generator(job, behaviour)


def generator(job: Job, behaviour: str) -> Generate:
    count = 0

    def generate(prompt: list[int], emit: Emit) -> None:
        nonlocal count
        count += 1
        if count > 3:  # the warm-up and a first repeat of two prompts went well
            misbehave(behaviour)
        time.sleep(60 if behaviour == "slow" else 0.01)
        new = [10 + len(prompt) % 7] * job.max_tokens
        if behaviour == "whole":
            emit(new)
        elif behaviour == "empty ends":
            emit(new)
            emit([])
        else:
            for token in new:
                emit([token])

    return generate


def misbehave(behaviour: str) -> None:
    if behaviour == "hang":
        child = subprocess.Popen(["sleep", "60"])
        Path(os.environ["FAKE_NOTE"]).write_text(f"started {child.pid}")
        time.sleep(60)
    if behaviour == "die":
        print("free(): invalid pointer", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGABRT)
    if behaviour == "raise":
        raise ValueError("no more tokens")


MODES: dict[str, Callable[[Job], Generate]] = {"none": load, "lookup": load}

if __name__ == "__main__":
    serve(MODES, "numpy")
