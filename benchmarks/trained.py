"""What a trained drafter gives on a GPU, against plain decoding in the same run.

    python benchmarks/trained.py --model ./Qwen2.5-Coder-1.5B-Instruct --drafter ./drafter
    python benchmarks/trained.py --model ./model --drafter ./drafter --prompts prompts.jsonl

By category of prompt: tokens per checked draft with chains of fixed length, and tokens per second
of `auto` with the drafter, batch 1; or, with --together, all prompts at once, eight of them under
way at any time. Greedy, medians of repeats.
"""

import json
from typing import Any

from gpu import load_prompts, median_speed, parser_of, tell

from outrider import LLM, SamplingParams
from outrider.core.outputs import Speculation

LENGTH = 5  # guesses of a chain
BATCH = 8
LENGTH_TOGETHER = 3  # where as many texts share a pass, rows are dearer


def checked(llm: LLM, texts: list[str], tokens: int) -> Speculation:
    """Counters of all texts together."""
    params = SamplingParams(max_tokens=tokens, temperature=0)
    total = Speculation()
    for text in texts:
        talk = [{"role": "user", "content": text}]
        total.add(llm.chat([talk], params, use_tqdm=False)[0].speculation)
    return total


def engines(model: str, drafter: str, length: int) -> dict[str, LLM]:
    options: dict[str, Any] = {"device": "cuda", "dtype": "bfloat16", "max_model_len": 4096}
    options |= {"memory_utilization": 0.3, "max_num_seqs": BATCH}  # three engines
    return {
        "plain": LLM(model, None, **options),
        "fixed": LLM(model, {"model": drafter, "num_speculative_tokens": length}, **options),
        "auto": LLM(model, {"method": "auto", "model": drafter}, **options),
    }


def one_by_one(
    llms: dict[str, LLM], prompts: dict[str, list[str]], tokens: int, repeats: int
) -> dict[str, Any]:
    found: dict[str, Any] = {"by category": {}}
    counted = Speculation()
    totals = dict.fromkeys(llms, 0.0)
    for category, texts in prompts.items():
        spoken = checked(llms["fixed"], texts, tokens)
        counted.add(spoken)
        speeds = {name: median_speed(llm, texts, tokens, 1, repeats) for name, llm in llms.items()}
        for name, speed in speeds.items():
            totals[name] += len(texts) / speed  # seconds per token and text
        found["by category"][category] = {
            "tokens per draft": spoken.mean_acceptance_length,
            "tok/s": speeds,
            "auto / plain": speeds["auto"] / speeds["plain"],
        }
        print(category, json.dumps(found["by category"][category]), flush=True)
    found["tokens per draft"] = counted.mean_acceptance_length
    found["held by depth"] = counted.accepted_per_position
    found["drafts"] = counted.drafts
    found["fixed / plain"] = totals["plain"] / totals["fixed"]
    found["auto / plain"] = totals["plain"] / totals["auto"]
    return found


def all_together(
    llms: dict[str, LLM], prompts: dict[str, list[str]], tokens: int, repeats: int
) -> dict[str, Any]:
    texts = [text for several in prompts.values() for text in several]
    speeds = {
        name: median_speed(llm, texts, tokens, len(texts), repeats) for name, llm in llms.items()
    }
    return {
        "tok/s": speeds,
        "fixed / plain": speeds["fixed"] / speeds["plain"],
        "auto / plain": speeds["auto"] / speeds["plain"],
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--drafter", required=True, help="folder that `outrider train` wrote")
    parser.add_argument("--together", action="store_true", help="eight at once, not one by one")
    arguments = parser.parse_args()
    prompts = load_prompts(arguments.prompts, arguments.per_category)
    length = LENGTH_TOGETHER if arguments.together else LENGTH
    llms = engines(arguments.model, arguments.drafter, length)
    how = (llms, prompts, arguments.tokens, arguments.repeats)
    found = all_together(*how) if arguments.together else one_by_one(*how)
    tell({"guesses of a fixed chain": length, **found}, arguments)


if __name__ == "__main__":
    main()
