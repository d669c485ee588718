"""`outrider audit` from the outside."""

import json

import pytest

from outrider.cli import main


def test_a_good_pair_passes(models, capsys):
    argv = ["audit", "--model", models.target, "--dtype", "float32", "--quick", "--samples", "96"]
    assert main.run([*argv, "--num-speculative-tokens", "3"]) == 0
    shown = capsys.readouterr().out
    assert "audit passed" in shown and "at most 1e-06" in " ".join(shown.split())
    assert main.run([*argv, "--drafter", "none", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] and found["drafter"] == "none" and found["dtype"] == "float32"
    assert {"name", "passed", "detail", "differences", "figures"} <= found["checks"][0].keys()
    assert 0 < found["detectable_total_variation"] < 1


@pytest.mark.slow
def test_the_default_model(capsys):
    assert main.run(["audit", "--dtype", "float32", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] and found["model"] == "smollm2-135m"
    sampled = next(check for check in found["checks"] if check["name"] == "distribution")
    assert sampled["figures"]["accepted"] > 100 and sampled["figures"]["rejected"] > 100
