"""Two processes learn what one learns."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.tiny import make_tiny, make_tokenizer

from outrider.cli import main
from outrider.train.ranks import ALONE, Ranks, join

# What each of the processes runs: the command, with a look at what became of its parameters.
PROGRAM = """
import os
import sys
import torch
from outrider.cli import main
from outrider.train import run

teach = run.train

def train(model, head, *rest):
    judged = teach(model, head, *rest)
    own = torch.cat([p.detach().flatten() for p in head.parameters() if p.requires_grad])
    all_of_them = [torch.empty_like(own) for _ in range(2)]
    torch.distributed.all_gather(all_of_them, own)
    os.write(1, f"equal on both: {torch.equal(*all_of_them)}\\n".encode())  # whole, or not at all
    return judged

run.train = train
sys.exit(main.run(sys.argv[1:]))
"""


def test_shares_are_the_whole() -> None:
    shares = [list(Ranks(rank, 3).share(range(7))) for rank in range(3)]
    assert shares == [[0, 3, 6], [1, 4], [2, 5]]
    assert list(ALONE.share(range(3))) == [0, 1, 2] and ALONE.first
    assert join("cpu") == (ALONE, "cpu")


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(tmp_path: Path) -> None:
    target = make_tiny("llama", tmp_path / "target", num_hidden_layers=4)
    make_tokenizer(target)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def arguments(out: str) -> list[str]:
        given = {
            "target": target, "out": tmp_path / out, "texts": 20, "longest": 60, "steps": 6,
            "texts-per-step": 8, "device": "cpu", "dtype": "float32", "learning-rate": 0.01,
        }  # fmt: skip
        return ["train", "dspark", *(f"--{key}={value}" for key, value in given.items())]

    assert main.run(arguments("one")) == 0
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         str(program), *arguments("two")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal on both: True") == 2
    assert done.stderr.count("tokens per pass on held-out text") == 1  # only one of them talks
    one, two = (load_file(tmp_path / out / "model.safetensors") for out in ("one", "two"))
    assert _without_times(tmp_path / "one") == _without_times(tmp_path / "two")
    for name, tensor in one.items():
        # Of bfloat16's rounding at most, after steps that each move a weight by about 0.01.
        assert torch.allclose(tensor.float(), two[name].float(), rtol=1 / 64, atol=1e-3), name


def _without_times(folder: Path) -> list[str]:
    lines = (folder / "texts.jsonl").read_text().splitlines()
    return [line for line in lines if "tokens" in line]
