"""OpenVINO GenAI: plain and with prompt lookup, from the same GGUF as llama.cpp."""

from outrider.bench.peers.serve import Emit, Generate, Job, Refused, serve

NGRAM = 3  # longest suffix looked up; GenAI has no default


def load(job: Job) -> Generate:
    return _load(job, lookup=False)


def prompt_lookup(job: Job) -> Generate:
    return _load(job, lookup=True)


def _load(job: Job, lookup: bool) -> Generate:
    import numpy
    import openvino_genai as genai
    from openvino import Tensor

    class Stream(genai.StreamerBase):
        def __init__(self, emit: Emit) -> None:
            super().__init__()
            self.emit = emit

        def write(self, token: int | list[int]) -> "genai.StreamingStatus":
            self.emit(token if isinstance(token, list) else [token])
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    options = {"INFERENCE_NUM_THREADS": job.threads} | ({"prompt_lookup": True} if lookup else {})
    try:
        pipeline = genai.LLMPipeline(job.gguf, "CPU", **options)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[-200:]
        raise Refused(
            f"OpenVINO GenAI {genai.__version__} cannot read the GGUF: {reason}"
        ) from None
    config = genai.GenerationConfig(max_new_tokens=job.max_tokens, do_sample=False)
    config.set_eos_token_id(pipeline.get_tokenizer().get_eos_token_id())
    if lookup:
        config.num_assistant_tokens = job.num_speculative_tokens
        config.max_ngram_size = NGRAM

    def generate(prompt: list[int], emit: Emit) -> None:
        ids = numpy.array([prompt], dtype=numpy.int64)
        inputs = genai.TokenizedInputs(Tensor(ids), Tensor(numpy.ones_like(ids)))
        pipeline.generate(inputs, config, Stream(emit))

    return generate


if __name__ == "__main__":
    serve({"none": load, "prompt_lookup": prompt_lookup}, "openvino-genai")
