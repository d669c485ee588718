import os
from pathlib import Path

import pytest

from outrider.model.machine import cores, cpu_info, cpu_name

CPUINFO = """\
processor\t: 0
model name\t: Abacus: 7 rods
flags\t\t: fpu avx2

processor\t: 1
model name\t: another
"""


def test_the_first_processor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self: CPUINFO)
    assert cpu_name() == "Abacus: 7 rods"
    assert cpu_info()["flags"] == "fpu avx2" and cpu_info()["processor"] == "0"


def test_without_linux_there_is_still_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert cpu_info() == {} and cpu_name()


def test_cores_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 9}, raising=False)
    assert cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert cores() == 7
