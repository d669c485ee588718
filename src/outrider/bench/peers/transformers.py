"""transformers: `generate`, plain and with prompt lookup."""

from pathlib import Path
from typing import Any

from outrider.bench.peers.serve import Emit, Generate, Job, serve


def load(job: Job, **speculation: Any) -> Generate:
    import torch
    from transformers.generation.streamers import BaseStreamer

    class Stream(BaseStreamer):
        """`generate` first puts the prompt, then each step's tokens."""

        def __init__(self, emit: Emit) -> None:
            self.emit, self.started = emit, False

        def put(self, value: Any) -> None:
            if self.started:
                self.emit(value.flatten().tolist())
            self.started = True

        def end(self) -> None:
            pass

    torch.set_num_threads(job.threads)
    model = _model(job).to(job.device).eval()
    end = model.generation_config.eos_token_id
    padding = end[0] if isinstance(end, list) else end

    def generate(prompt: list[int], emit: Emit) -> None:
        ids = torch.tensor([prompt], device=job.device)
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=job.max_tokens,
            pad_token_id=padding,
            streamer=Stream(emit),
            **speculation,
        )

    return generate


def _model(job: Job) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    dtype, path = getattr(torch, job.dtype), Path(job.model)
    if path.is_file():
        return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype)
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype)


def prompt_lookup(job: Job) -> Generate:
    return load(job, prompt_lookup_num_tokens=job.num_speculative_tokens)


if __name__ == "__main__":
    serve({"none": load, "prompt_lookup": prompt_lookup}, "transformers")
