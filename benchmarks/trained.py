"""What a trained drafter gives on a GPU, against plain decoding in the same run.

    python benchmarks/trained.py --model ./Qwen2.5-Coder-1.5B-Instruct --drafter ./drafter
    python benchmarks/trained.py --model ./model --drafter ./drafter --prompts prompts.jsonl

By category of prompt: tokens per checked draft with chains of fixed length, and tokens per second
of `auto` with the drafter, batch 1; then all prompts together, eight of them under way at any time.
Greedy, medians of repeats.
"""

import json
from typing import Any

from gpu import load_prompts, median_speed, parser_of, tell

from outrider import LLM, SamplingParams
from outrider.core.outputs import Speculation

LENGTH = 5  # guesses of a chain
BATCH = 8


def checked(llm: LLM, texts: list[str], tokens: int) -> Speculation:
    """Counters of all texts together."""
    params = SamplingParams(max_tokens=tokens, temperature=0)
    total = Speculation()
    for text in texts:
        talk = [{"role": "user", "content": text}]
        total.add(llm.chat([talk], params, use_tqdm=False)[0].speculation)
    return total


def measure(
    model: str, drafter: str, prompts: dict[str, list[str]], tokens: int, repeats: int
) -> dict[str, Any]:
    options: dict[str, Any] = {"device": "cuda", "dtype": "bfloat16", "max_model_len": 4096}
    options |= {"memory_utilization": 0.3, "max_num_seqs": BATCH}  # three engines
    plain = LLM(model, None, **options)
    fixed = LLM(model, {"model": drafter, "num_speculative_tokens": LENGTH}, **options)
    auto = LLM(model, {"method": "auto", "model": drafter}, **options)
    found: dict[str, Any] = {"by category": {}}
    counted = Speculation()
    totals = {"plain": 0.0, "fixed": 0.0, "auto": 0.0}
    for category, texts in prompts.items():
        spoken = checked(fixed, texts, tokens)
        counted.add(spoken)
        speeds = {
            name: median_speed(llm, texts, tokens, 1, repeats)
            for name, llm in (("plain", plain), ("fixed", fixed), ("auto", auto))
        }
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
    texts = [text for several in prompts.values() for text in several]
    together = {
        name: median_speed(llm, texts, tokens, len(texts), repeats)
        for name, llm in (("plain", plain), ("fixed", fixed), ("auto", auto))
    }
    found[f"{BATCH} at once"] = {
        "tok/s": together,
        "fixed / plain": together["fixed"] / together["plain"],
        "auto / plain": together["auto"] / together["plain"],
    }
    return found


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--drafter", required=True, help="folder that `outrider train` wrote")
    arguments = parser.parse_args()
    prompts = load_prompts(arguments.prompts, arguments.per_category)
    found = measure(
        arguments.model, arguments.drafter, prompts, arguments.tokens, arguments.repeats
    )
    tell(found, arguments)


if __name__ == "__main__":
    main()
