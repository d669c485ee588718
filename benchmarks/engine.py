"""Figures of the engine on this machine, as the README quotes them.

    python benchmarks/engine.py            # default model, about three minutes on two cores
    python benchmarks/engine.py --out results.json

Load time from the warm cache, one request at a time against 32 at once, cost of a pass against its
number of rows, and peak memory. Ratios are of one run on one machine; medians of repeats.
"""

import argparse
import json
import platform
import resource
import statistics
import sys
import time
from pathlib import Path

import torch
import transformers

from outrider import LLM, SamplingParams, __version__
from outrider.bench.runner import pass_cost
from outrider.model.machine import cpu_name

QUESTIONS = [
    "Why is the sky blue?",
    "Write a haiku about rain.",
    "List three uses of copper.",
    "Give me a recipe for pancakes.",
    "Explain photosynthesis to a child.",
    "Write a Python function that reverses a list.",
    "Name the planets of the solar system in order.",
    "Describe a cat without using the word cat.",
]


def tokens_per_second(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> float:
    start = time.perf_counter()
    results = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    return sum(len(result.outputs[0].token_ids) for result in results) / seconds


def concurrency(llm: LLM, tokens: int, repeats: int) -> dict[str, float]:
    """32 different requests at once against one at a time, same lengths."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    chats = [
        llm.chat_prompt([{"role": "user", "content": f"{question} (Version {i})"}])
        for i in range(4)
        for question in QUESTIONS
    ]
    llm.generate(chats[:2], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    one = statistics.median(tokens_per_second(llm, [chats[i]], params) for i in range(repeats))
    all_32 = statistics.median(tokens_per_second(llm, chats, params) for _ in range(repeats))
    return {"one": one, "32 at once": all_32, "ratio": all_32 / one}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the figures as JSON, too")
    arguments = parser.parse_args()

    LLM(arguments.model, "none")  # fills the cache if need be
    start = time.perf_counter()
    llm = LLM(arguments.model, "none")
    results = {
        "model": arguments.model,
        "dtype": str(llm.engine.loaded.dtype),
        "device": str(llm.engine.loaded.device),
        "machine": cpu_name(),
        "threads": torch.get_num_threads(),
        "versions": {
            "outrider": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "arguments": sys.argv[1:],
        "load_seconds": time.perf_counter() - start,
        "pass_milliseconds": pass_cost(llm),
        "tokens_per_second": concurrency(llm, arguments.tokens, arguments.repeats),
        "peak_rss_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    print(json.dumps(results, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
