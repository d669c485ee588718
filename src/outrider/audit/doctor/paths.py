"""Which fast paths one loaded model really takes, and why not the others."""

from typing import Any

import torch

from outrider.audit.doctor.machine import FastPath
from outrider.drafters.trained import TrainedDrafter
from outrider.engine.llm import LLM
from outrider.model.layout import count_laid_out
from outrider.model.runner import Runner


def model_paths(llm: LLM) -> list[FastPath]:
    """The target's, then those of its draft models."""
    found = _paths(llm.engine.runner, "")
    for runner in llm.engine.drafting.runners:
        found += _paths(runner, "draft model: ")
    for drafter in llm.engine.drafting.root.members:
        if isinstance(drafter, TrainedDrafter) and drafter.device.type == "cuda":
            found.append(FastPath("draft loop", drafter.loop is not None, drafter.loop_way))
    return found


def _paths(runner: Runner, whose: str) -> list[FastPath]:
    named = [_weights(runner), *(_gpu(runner) if runner.device.type == "cuda" else _cpu(runner))]
    return [FastPath(f"{whose}{name}", on, why) for name, on, why in named]


def _weights(runner: Runner) -> tuple[str, bool, str]:
    loaded = runner.loaded
    dtype = str(loaded.dtype).removeprefix("torch.")
    if loaded.quantization is None:
        return "quantised weights", False, f"all in {dtype}; --quantization int8 or int4 is smaller"
    return "quantised weights", True, f"{loaded.quantization}; activations and KV in {dtype}"


def _gpu(runner: Runner) -> list[tuple[str, bool, str]]:
    graphs: Any = runner.graphs
    on = graphs is not None
    fused = on and graphs.fused
    eager = f"passes go kernel by kernel: {runner.way}"
    chained = fused and torch.cuda.get_device_capability(runner.device) >= (9, 0)
    prompts = fused and graphs.prompts is not None
    told = {
        "CUDA graphs": (on, f"a pass over up to {runner.replayed_rows} rows is one launch"),
        "fused layers": (fused, "a handful of kernels per layer, for prompts, too"),
        "prompts as graphs": (prompts, "one of medium length is one launch"),
        "tree attention": (on, "by Triton, over slots, split along the context"),
        "choice in the pass": (on, "tokens are chosen on the device where no option needs more"),
        "running ahead": (on, "the next plain pass starts before this one's tokens are known"),
        "chained kernels": (chained, "kernels start while the one before ends"),
    }
    missing = dict.fromkeys(told, runner.way if on else eager)
    if fused:
        missing["chained kernels"] = "needs compute capability 9.0"
        missing["prompts as graphs"] = f"for bfloat16 without windows only ({runner.way})"
    return [(name, is_on, why if is_on else missing[name]) for name, (is_on, why) in told.items()]


def _cpu(runner: Runner) -> list[tuple[str, bool, str]]:
    laid_out, layers = count_laid_out(runner.model)
    few = "passes over a few rows cost little more than over one"
    told = f"{laid_out} of {layers} layers; {few}" if laid_out else "float32 and bfloat16 only"
    return [
        ("packed passes", True, f"rows of all requests in one pass of the module ({runner.way})"),
        ("SDPA attention", True, "torch's kernel over gathered slots, with the tree as a mask"),
        ("weights for few rows", bool(laid_out), told),
        ("CUDA graphs", False, "the model runs on a CPU"),
    ]
