"""llama.cpp, through llama-cpp-python: plain and with prompt lookup."""

from itertools import islice
from typing import Any

from outrider.bench.peers.serve import Emit, Generate, Job, serve


def load(job: Job, draft_model: Any = None) -> Generate:
    from llama_cpp import Llama

    model = Llama(
        job.gguf,
        n_ctx=job.context,
        n_threads=job.threads,
        n_threads_batch=job.threads,
        n_gpu_layers=0 if job.device == "cpu" else -1,
        draft_model=draft_model,
        logits_all=draft_model is not None,  # a draft is checked at all of its positions
        verbose=False,
    )
    end = model.token_eos()

    def generate(prompt: list[int], emit: Emit) -> None:
        model.reset()  # else a repeated prompt would be read from the last round's cache
        for token in islice(model.generate(prompt, temp=0.0), job.max_tokens):
            emit([token])
            if token == end:
                break

    return generate


def prompt_lookup(job: Job) -> Generate:
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    return load(job, LlamaPromptLookupDecoding(num_pred_tokens=job.num_speculative_tokens))


if __name__ == "__main__":
    serve({"none": load, "prompt_lookup": prompt_lookup}, "llama-cpp-python")
