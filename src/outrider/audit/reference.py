"""The model as transformers runs it: no slots, no packing, none of our attention."""

import math

import torch
from torch import Tensor

from outrider.model.loading import LoadedModel, choose_device, fix_rotary, load_model
from outrider.model.memory import free_memory

ROWS = 2048  # tokens of one batched pass: bounds its memory
SHARE = 0.8  # of the free memory that a second copy of the weights may take


class Reference:
    """Teacher-forced passes; logits come as float64, so that softmax and sums add no rounding."""

    def __init__(self, loaded: LoadedModel) -> None:
        fix_rotary(loaded.model, loaded.context_length)
        self.loaded = loaded
        self.vocabulary = int(loaded.model.get_output_embeddings().weight.shape[0])

    @torch.inference_mode()
    def after(self, prompt: list[int], output: list[int]) -> Tensor:
        """[output, vocabulary]: the logits from which each token of `output` was chosen."""
        tokens = [*prompt, *output[:-1]]
        return self._forward([tokens], keep=len(output))[0].double()

    @torch.inference_mode()
    def last(self, texts: list[list[int]], alone: bool = False) -> Tensor:
        """[texts, vocabulary]: the logits after each of some texts of equal length.

        `alone` runs one text at a time: another shape, so that rounding falls differently.
        """
        step = 1 if alone else max(1, ROWS // len(texts[0]))
        parts = [
            self._forward(texts[i : i + step], keep=1)[:, 0] for i in range(0, len(texts), step)
        ]
        return torch.cat(parts).double()

    def _forward(self, texts: list[list[int]], keep: int) -> Tensor:
        """[texts, keep, vocabulary] of the last `keep` tokens."""
        ids = torch.tensor(texts, device=self.loaded.device)
        return self.loaded.model(input_ids=ids, use_cache=False, logits_to_keep=keep).logits.cpu()


def load_reference(
    model: str,
    dtype: torch.dtype,
    device: str,
    parameters: int | None = None,
    quantization: str | None = None,
) -> Reference:
    """In float32 where `parameters` of that size fit into memory, else in `dtype`."""
    place = choose_device(device)
    if parameters is not None and 4 * parameters <= SHARE * free_memory(place):
        dtype = torch.float32
    return Reference(load_model(model, dtype=dtype, device=device, quantization=quantization))


# How far plain decoding may lie from the reference before it is no longer rounding, in units of
# the last place of the largest logit: sums over a thousand terms, layer upon layer.
LIMIT = {torch.float32: 1024, torch.float16: 64, torch.bfloat16: 16}
FACTOR = 4  # two scores are compared (2), and the worst error seen need not be the worst (2)


def last_place(value: float, dtype: torch.dtype) -> float:
    """The spacing of `dtype` at this magnitude."""
    return float(torch.finfo(dtype).eps) * 2.0 ** math.floor(math.log2(max(abs(value), 1.0)))
