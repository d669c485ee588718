"""Thousands of requests through a pool that is too small for them, each text then judged.

    python benchmarks/crowd.py --model ./Qwen2.5-Coder-1.5B-Instruct
    python benchmarks/crowd.py --model ./model --requests 2000 --slots 6000 --out crowd.json
    python benchmarks/crowd.py --model ./model --reproducible

Greedy requests of mixed length. The pool forces preemption; at the end no slot may be missing. Then
transformers reads every text: how far is each token from the best score at its place? What is more
than rounding is a fault. With --reproducible, some texts are written alone instead, by an engine
that never drafts, and must be equal to the bit.
"""

import random
import time
from itertools import islice
from typing import Any

import torch
from gpu import load_prompts, parser_of, tell
from torch import Tensor

from outrider import LLM, SamplingParams
from outrider.audit.reference import FACTOR, last_place, load_reference
from outrider.core.outputs import RequestOutput

SHORTEST, LONGEST = 8, 192  # tokens that a request asks for
TOGETHER = 16  # texts that transformers reads at once


def requests_of(texts: list[str], count: int, llm: LLM) -> tuple[list[list[int]], list[Any]]:
    """Prompts of any length, by cutting those that there are."""
    rng = random.Random(0)
    ids = [llm.tokenizer(text)["input_ids"] for text in texts]  # type: ignore[misc]
    prompts, params = [], []
    for i in range(count):
        prompt = ids[i % len(ids)]
        prompts.append(prompt[: rng.randint(4, min(len(prompt), 512))])
        wanted = rng.randint(SHORTEST, LONGEST)
        params.append(SamplingParams(temperature=0, max_tokens=wanted, ignore_eos=True))
    return prompts, params


def served(llm: LLM, prompts: list[list[int]], params: list[Any]) -> tuple[list[Any], dict]:
    start = time.perf_counter()
    results = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    llm.engine.kv.check()  # raises where a slot is missing
    tokens = sum(len(result.outputs[0].token_ids) for result in results)
    return results, {
        "requests": len(results),
        "tokens": tokens,
        "tok/s": tokens / seconds,
        "preemptions": llm.engine.scheduler.preemptions,
        "slots": llm.engine.kv.total,
    }


@torch.inference_mode()
def judged(model: str, dtype: torch.dtype, results: list[RequestOutput]) -> dict[str, Any]:
    """Distances from the best score. Both scores are rounded, and so is all before them."""
    reference = load_reference(model, dtype, "cuda", parameters=1).loaded.model  # in float32
    worst, ties, largest = 0.0, 0, 0.0
    waiting = iter(sorted(results, key=lambda r: len(r.outputs[0].token_ids)))
    while some := list(islice(waiting, TOGETHER)):
        distance, highest = distances(reference, some)
        worst, largest = max(worst, float(distance.max())), max(largest, highest)
        ties += int((distance > 0).sum())
    allowed = FACTOR * last_place(largest, dtype)
    return {
        "tokens that are not the best in float32": ties,
        "worst distance": worst,
        "rounding explains": allowed,
        "passed": worst <= allowed,
    }


def distances(reference: Any, results: list[RequestOutput]) -> tuple[Tensor, float]:
    """[tokens] of all texts, and the largest logit."""
    texts = [[*r.prompt_token_ids, *r.outputs[0].token_ids] for r in results]
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts]).cuda()
    found, highest = [], 0.0
    logits = reference(input_ids=ids, use_cache=False).logits  # [texts, longest, vocabulary]
    for row, text, result in zip(logits, texts, results, strict=True):
        written = result.outputs[0].token_ids
        scores = row[len(text) - len(written) - 1 : len(text) - 1]
        chosen = scores.gather(1, torch.tensor(written).cuda()[:, None])[:, 0]
        found.append(scores.amax(1) - chosen)
        highest = max(highest, float(scores.abs().max()))
    return torch.cat(found), highest


def equal_alone(
    llm: LLM, results: list[RequestOutput], params: list[Any], every: int
) -> dict[str, int]:
    """How many of some texts are the same when they are written alone."""
    chosen = range(0, len(results), every)
    alone = [
        llm.generate([results[i].prompt_token_ids], params[i], use_tqdm=False)[0] for i in chosen
    ]
    pairs = [(results[i].outputs[0], each.outputs[0]) for i, each in zip(chosen, alone)]
    equal = sum(together.token_ids == single.token_ids for together, single in pairs)
    return {"written alone": len(alone), "equal": equal}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--slots", type=int, default=6000, help="of the pool")
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--reproducible", action="store_true", help="compare with texts alone")
    parser.add_argument("--alone", type=int, default=50, help="texts that are written alone")
    arguments = parser.parse_args()
    several = load_prompts(arguments.prompts, arguments.per_category).values()
    options: dict[str, Any] = {"device": "cuda", "dtype": "bfloat16", "memory_utilization": 0.4}
    options["reproducible"] = arguments.reproducible
    pool = {"max_num_seqs": 64, "kv_cache_tokens": arguments.slots}
    llm = LLM(arguments.model, arguments.drafter, **pool, **options)
    prompts, params = requests_of([t for s in several for t in s], arguments.requests, llm)
    results, found = served(llm, prompts, params)
    found["passes over few rows"] = llm.engine.runner.way
    print(found, flush=True)
    if arguments.reproducible:
        plain = LLM(arguments.model, None, **options)
        every = max(1, arguments.requests // arguments.alone)
        found |= equal_alone(plain, results, params, every)
    else:
        found |= judged(arguments.model, torch.bfloat16, results)
    tell(found, arguments)


if __name__ == "__main__":
    main()
