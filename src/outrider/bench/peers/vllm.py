"""vLLM on an NVIDIA GPU: plain and with its n-gram drafter."""

from typing import Any

from outrider.bench.peers.serve import Emit, Generate, Job, Refused, serve


def load(job: Job, **speculation: Any) -> Generate:
    import torch

    if not torch.cuda.is_available():
        raise Refused("needs an NVIDIA GPU, and torch sees none here")
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=job.model,
        dtype=job.dtype,
        max_model_len=job.context,
        enable_prefix_caching=False,  # else a repeated prompt would be read from the last round's
        gpu_memory_utilization=0.42,  # the other mode's process lives at the same time
        **speculation,
    )
    params = SamplingParams(temperature=0.0, max_tokens=job.max_tokens)

    def generate(prompt: list[int], emit: Emit) -> None:
        result = engine.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)[0]
        emit(list(result.outputs[0].token_ids))

    return generate


def ngram(job: Job) -> Generate:
    lookup = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    draft = {"method": "ngram", "num_speculative_tokens": job.num_speculative_tokens, **lookup}
    return load(job, speculative_config=draft)


if __name__ == "__main__":
    serve({"none": load, "ngram": ngram}, "vllm")
