"""Starting a peer in a process of its own, asking it, and ending it whatever happened."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from time import monotonic
from types import TracebackType
from typing import Any

PACKAGE = Path(__file__).parents[2]
GRACE = 5  # seconds to end by itself


class PeerFailed(Exception):
    """Why a peer gives no (further) answers."""


class Worker:
    """One mode of one peer, answering JSON lines until the deadline."""

    def __init__(self, name: str, module: str, job: dict[str, Any], deadline: float) -> None:
        self.deadline = deadline
        self._folder = tempfile.TemporaryDirectory(prefix="outrider-peer-")
        folder = Path(self._folder.name)
        # Only this package, not what is installed beside it: the peer has libraries of its own.
        (folder / "outrider").symlink_to(PACKAGE, target_is_directory=True)
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        threads = {"OMP_NUM_THREADS": str(job["threads"])}
        self._log = (folder / "stderr").open("w+b")
        self._process = subprocess.Popen(
            [interpreter(name), "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ | threads | {"PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # so that processes that the peer starts end with it
            text=True,
            encoding="utf-8",
        )
        self._answers: Queue[str] = Queue()
        Thread(target=self._listen, daemon=True).start()
        self._first = job

    def start(self) -> dict[str, str]:
        """The versions of what the peer runs."""
        versions: dict[str, str] = self.ask(self._first).get("versions", {})
        return versions

    def ask(self, message: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=max(0.0, self.deadline - monotonic()))
        except BrokenPipeError:
            line = ""
        except Empty:
            raise PeerFailed("did not finish in time; --peer-timeout allows more") from None
        if not line:
            raise PeerFailed(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerFailed(answer["error"])
        return answer

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()  # the peer's loop ends with its input
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE if kind is None and monotonic() < self.deadline else 0)
        _kill_group(self._process.pid)
        self._process.wait()
        self._log.close()
        self._folder.cleanup()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _last_words(self) -> str:
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._log.seek(0)
        lines = self._log.read()[-4000:].decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()][-1:]
        return f"its process ended with {how}" + "".join(f": {line[:240]}" for line in said)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def interpreter(name: str) -> str:
    """OUTRIDER_PEER_<NAME>, else what `make peers` made, else the Python that runs this."""
    variable = f"OUTRIDER_PEER_{name.replace('.', '_').upper()}"
    if chosen := os.environ.get(variable):
        return chosen
    for root in (Path.cwd(), PACKAGE.parents[1]):
        python = root / ".venv-peers" / name / "bin" / "python"
        if python.exists():
            return str(python)
    return sys.executable
