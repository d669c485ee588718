"""Figures of a model on a GPU, as docs/performance.md quotes them.

    python benchmarks/gpu.py --model ./Qwen2.5-Coder-1.5B-Instruct
    python benchmarks/gpu.py --model ./model --prompts prompts.jsonl --per-category 4 --out gpu.json

Start to first token; plain decoding at batch 1, 8 and 64; the pass over trees and over a long
context against the pass over one row; how busy the device is while it decodes; `auto` against plain
by category of prompt. Greedy, bfloat16, medians of repeats. Ratios are of one run on one machine.
"""

import argparse
import json
import statistics
import time
from array import array
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import transformers
import triton

from outrider import LLM, SamplingParams, __version__
from outrider.model.segment import Segment

PROMPTS = Path(__file__).parents[1] / "src" / "outrider" / "bench" / "prompts.jsonl"
LONG = 16384
TURNS = 8  # of what is compared, one after the other, again and again
OPTIONS: dict[str, dict[str, Any]] = {
    "top-p": {"temperature": 0.8, "top_p": 0.9, "seed": 1},
    "penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.2},
    "logprobs": {"logprobs": 5},
}


def load_prompts(file: Path, per_category: int) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for line in file.read_text().splitlines():
        prompt = json.loads(line)
        if len(found[prompt["category"]]) < per_category:
            found[prompt["category"]].append(prompt["turns"][0])
    return found


def written(llm: LLM, texts: list[str], tokens: int, batch: int, **options: Any) -> float:
    """Tokens per second, `batch` requests at a time, reading of prompts included."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, **{"temperature": 0, **options})
    chats = [[{"role": "user", "content": text}] for text in texts]
    total, start = 0, time.perf_counter()
    for first in range(0, len(chats), batch):
        results = llm.chat(chats[first : first + batch], params, use_tqdm=False)
        total += sum(len(result.outputs[0].token_ids) for result in results)
    return total / (time.perf_counter() - start)


def median_speed(llm: LLM, texts: list[str], tokens: int, batch: int, repeats: int) -> float:
    speeds = []
    for repeat in range(1 + repeats):  # the first run captures graphs
        llm.engine.forget()
        speed = written(llm, texts, tokens, batch)
        speeds += [speed] if repeat else []
    return statistics.median(speeds)


def in_turns(
    llms: dict[str, LLM], texts: list[str], tokens: int, turns: int
) -> tuple[float, dict[str, list[float]]]:
    """All texts at once, by one engine after the other, again and again: the last one's speed over
    the first one's, by medians, and all speeds. A run takes less than a second, so that a machine's
    moods would pass for a difference."""
    speeds: dict[str, list[float]] = {name: [] for name in llms}
    for turn in range(1 + turns):  # the first captures graphs
        for name, llm in llms.items():
            llm.engine.forget()
            speed = written(llm, texts, tokens, len(texts))
            speeds[name] += [speed] if turn else []
    first, *_, last = (statistics.median(each) for each in speeds.values())
    return last / first, speeds


def with_options(llm: LLM, texts: list[str], tokens: int) -> dict[str, dict[str, float]]:
    """All texts at once with options that cost more than the likeliest token."""
    found = {}
    for name, options in OPTIONS.items():
        written(llm, texts, tokens, len(texts), **options)
        steps, replayed = llm.engine.stopwatch.writing_steps, llm.engine.stopwatch.replayed_steps
        speed = written(llm, texts, tokens, len(texts), **options)
        share = (llm.engine.stopwatch.replayed_steps - replayed) / (
            llm.engine.stopwatch.writing_steps - steps
        )
        found[name] = {"tok/s": speed, "share of steps from graphs": share}
    return found


def passes_in_turns(llm: LLM, shapes: dict[str, list[tuple[int, int]]]) -> dict[str, float]:
    """Medians of turns of all: the device's clock is not the same from one second to the next."""
    turns = [
        {name: pass_milliseconds(llm, shape) for name, shape in shapes.items()}
        for _ in range(TURNS)
    ]
    return {name: statistics.median(turn[name] for turn in turns) for name in shapes}


@torch.inference_mode()
def pass_milliseconds(llm: LLM, shapes: list[tuple[int, int]], repeats: int = 40) -> float:
    """Of passes over (context, rows) each, one after the other, the host never in the way."""
    segments, first = [], 1
    for context, rows in shapes:
        before = array("q", range(first, first + context))
        slots = array("q", range(first + context, first + context + rows))
        parents = [-1, *[0] * (rows - 1)]  # a root and its children
        segments.append(Segment([5] * rows, parents, slots, before, logits_from=0))
        first += context + rows
    runner = llm.engine.runner
    for _ in range(3):
        runner.launch(segments)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        runner.launch(segments)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeats


def idle_share(llm: LLM, texts: list[str], tokens: int) -> float:
    """Of the time between the first and the last kernel of decode loops, one for each text."""
    idle, total = map(sum, zip(*(idle_and_total(llm, text, tokens) for text in texts), strict=True))
    return idle / total


def idle_and_total(llm: LLM, text: str, tokens: int) -> tuple[float, float]:
    """Microseconds. What was written for the text before is forgotten: it would be looked up."""
    llm.engine.forget()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        written(llm, [text], tokens, 1)
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    spans = spans[len(spans) // 10 :]  # not the reading of the prompt
    busy, reached = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    total = reached - spans[0][0]
    return total - busy, total


def measure(
    model: str, drafter: Any, prompts: dict[str, list[str]], tokens: int, repeats: int
) -> dict[str, Any]:
    texts = [text for several in prompts.values() for text in several]
    options = {"device": "cuda", "dtype": "bfloat16", "max_num_seqs": 64}
    start = time.perf_counter()
    plain = LLM(model, None, **options)  # type: ignore[arg-type]
    written(plain, texts[:1], 1, 1)
    found: dict[str, Any] = {"seconds to first token": time.perf_counter() - start}
    found["passes over few rows"] = plain.engine.runner.way
    many = (texts * 64)[:64]
    found["plain tok/s"] = {
        "1": median_speed(plain, texts[:8], tokens, 1, repeats),
        "8": median_speed(plain, many[:8], tokens, 8, repeats),
        "64": median_speed(plain, many, tokens, 64, repeats),
    }
    plain.engine.forget()
    shapes = {f"{rows} rows, 512 of context": [(512, rows)] for rows in (1, 4, 8, 16, 17, 32, 64)}
    shapes |= {f"{n} texts of 512": [(512, 1)] * n for n in (8, 64)}
    if plain.engine.max_model_len > LONG:
        shapes |= {f"{rows} rows, {LONG} of context": [(LONG, rows)] for rows in (1, 16)}
    found["pass ms"] = passes_in_turns(plain, shapes)
    auto = LLM(model, drafter, **options)  # type: ignore[arg-type]
    found["auto / plain"] = {}
    for category, several in prompts.items():
        speeds = [median_speed(llm, several, tokens, 1, repeats) for llm in (plain, auto, plain)]
        found["auto / plain"][category] = 2 * speeds[1] / (speeds[0] + speeds[2])
        print(f"  {category}: {found['auto / plain'][category]:.2f}x", flush=True)
    found["auto / plain, 64 at once"], found["64 at once, tok/s"] = in_turns(
        {"plain": plain, "auto": auto}, many, tokens, TURNS
    )
    found["auto, 64 at once"] = with_options(auto, many, tokens // 4)
    firsts = [several[0] for several in prompts.values()]
    # Last: behind it, in the same process, `auto` was slower than in one without a profiler.
    found["idle share"] = {
        "none": idle_share(plain, firsts, tokens),
        "auto": idle_share(auto, firsts, tokens),
    }
    return found


def tell(found: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Print the figures with what they were measured with, and write them where that was asked."""
    found["versions"] = {
        "outrider": __version__,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "transformers": transformers.__version__,
        "gpu": torch.cuda.get_device_name(),
    }
    found["arguments"] = {name: str(value) for name, value in vars(arguments).items()}
    text = json.dumps(found, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


def parser_of(about: str) -> argparse.ArgumentParser:
    """Of what all benchmarks on a GPU are told; `about`: a script's own words."""
    parser = argparse.ArgumentParser(description=about.split("\n")[0])
    parser.add_argument("--model", required=True, help="folder, .gguf file or hub id")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSONL: category, turns")
    parser.add_argument("--per-category", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the figures here, too")
    return parser


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--drafter", help="folder of a trained one, for `auto`")
    arguments = parser.parse_args()
    drafter = {"method": "auto", "model": arguments.drafter} if arguments.drafter else "auto"
    prompts = load_prompts(arguments.prompts, arguments.per_category)
    found = measure(arguments.model, drafter, prompts, arguments.tokens, arguments.repeats)
    tell(found, arguments)


if __name__ == "__main__":
    main()
