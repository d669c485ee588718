"""Every model is tried at load: a packed pass through our attention must equal the model's own.

Families differ in what they hand to a registered attention function. Rather than keep a list of
good ones, the first pass is compared with transformers' forward, and a model that differs is
refused with the reason.
"""

import logging
from array import array

import torch
from torch import Tensor, nn

from outrider.core.errors import ModelError
from outrider.model.attention import NAME, LayerCall, LayerKV, Pass, attending
from outrider.model.loading import LoadedModel
from outrider.model.quantized import KINDS as WEIGHTS_ONLY
from outrider.model.segment import Segment, group_segments

log = logging.getLogger(__name__)

# Two short texts of different length, packed: a leak from one into the other shows.
PROBE_LENGTHS = (5, 9)
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}  # relative; 16-bit types: LOW_PRECISION
LOW_PRECISION = 5e-2
# Either may be the one to trust: some releases drop Gemma 2's soft cap in "sdpa", and "eager"
# rounds scores to 16 bits, which moves the logits of Qwen 2.5 by a third.
OWN_ATTENTION = ("eager", "sdpa")


@torch.inference_mode()
def admit(loaded: LoadedModel) -> list[LayerCall]:
    """Bind the model to our attention; its layers in order, or ModelError with the reason."""
    model, kind = loaded.model, loaded.model.config.model_type
    probes = [[(7 * i + 3 + n) % 97 % _vocabulary(model) for i in range(n)] for n in PROBE_LENGTHS]
    own = []
    for attention in OWN_ATTENTION:
        _use_attention(model, attention)
        own.append(torch.cat([_own_logits(model, loaded.device, probe) for probe in probes]))
    _use_attention(model, NAME)
    layers = _record(loaded, probes)
    _check_layers(model, layers)
    got = _packed_logits(loaded, layers, probes)
    error = min(difference(got, expected) for expected in own)
    allowed = allowed_error(loaded)
    if not error <= allowed:  # also catches NaN
        raise ModelError(
            f"{loaded.name} ({kind}) cannot be run: its packed pass differs from transformers' own "
            f"by {error:.1e} (allowed {allowed:.0e}); this family is not supported"
        )
    if _rounds_activations(loaded):
        log.warning(
            "%s: %s may round activations by all rows of a product together; then texts depend on "
            "their neighbours in a batch, drafts included. Weight-only methods do not do that",
            loaded.name, loaded.quantization,
        )  # fmt: skip
    return layers


def _rounds_activations(loaded: LoadedModel) -> bool:
    return loaded.quantization not in (None, *WEIGHTS_ONLY)


def allowed_error(loaded: LoadedModel) -> float:
    """What `difference` may be between two ways that do the same. A checkpoint's own quantisation
    may round activations, too, whatever precision they arrive in."""
    if _rounds_activations(loaded):
        return LOW_PRECISION
    return TOLERANCE.get(loaded.dtype, LOW_PRECISION)


def difference(got: Tensor, expected: Tensor) -> float:
    """The upper quartile of the rows' relative errors; both [rows, vocabulary].

    Not the worst row: in low precision, rounding may send a token to another expert. A leak or a
    wrong position shows in most rows of the second probe.
    """
    # A row of zeros (a padding token with no embedding) is measured by the size of the others.
    scale = torch.maximum(expected.norm(dim=1), 1e-3 * expected.norm(dim=1).max())
    errors = (got - expected).norm(dim=1) / scale
    return float(errors.quantile(0.75))


def _vocabulary(model: nn.Module) -> int:
    return int(model.get_output_embeddings().weight.shape[0])  # type: ignore[operator]


def _own_logits(model: nn.Module, device: torch.device, tokens: list[int]) -> Tensor:
    """[tokens, vocabulary] by transformers' own attention."""
    output = model(input_ids=torch.tensor([tokens], device=device), use_cache=False)
    return output.logits[0].float()


def _use_attention(model: nn.Module, name: str) -> None:
    # transformers only warns when a family cannot switch; the call count below is our check.
    noisy = logging.getLogger("transformers.modeling_utils")
    level = noisy.level
    noisy.setLevel(logging.ERROR)
    try:
        model.set_attn_implementation(name)  # type: ignore[operator]
    except ValueError:
        pass  # a family that refuses is caught by the call count, too
    finally:
        noisy.setLevel(level)


def _segments(probes: list[list[int]]) -> list[Segment]:
    segments, first = [], 1
    for probe in probes:
        slots = array("q", range(first, first + len(probe)))
        segments.append(Segment.chain(probe, slots, array("q"), logits_from=0))
        first += len(probe)
    return segments


def _run(loaded: LoadedModel, probes: list[list[int]], recorded: list[LayerCall] | None) -> Tensor:
    """[all probe tokens, vocabulary]."""
    segments = _segments(probes)
    slots = [slot for segment in segments for slot in segment.slots]
    step = Pass(
        torch.tensor(slots, device=loaded.device),
        [group.to(loaded.device) for group in group_segments(segments)],
        recorded=recorded,
    )
    tokens = [token for probe in probes for token in probe]
    positions = [position for segment in segments for position in segment.positions]
    with attending(step):
        output = loaded.model(
            input_ids=torch.tensor([tokens], device=loaded.device),
            position_ids=torch.tensor([positions], device=loaded.device),
            use_cache=False,
        )
    return output.logits[0].float()


def _record(loaded: LoadedModel, probes: list[list[int]]) -> list[LayerCall]:
    recorded: list[LayerCall] = []
    _run(loaded, probes, recorded)
    return recorded


def _check_layers(model: nn.Module, layers: list[LayerCall]) -> None:
    config = model.config.get_text_config()  # type: ignore[union-attr, operator]
    kind, expected = config.model_type, config.num_hidden_layers
    if len(layers) != expected or len({id(layer.module) for layer in layers}) != expected:
        raise ModelError(
            f"{kind} models are not supported: {len(layers)} of {expected} layers go through "
            "transformers' attention interface, which Outrider builds on"
        )
    types = getattr(config, "layer_types", None) or []
    for index, (kind_of_layer, layer) in enumerate(zip(types, layers, strict=False)):
        if kind_of_layer == "sliding_attention" and layer.window is None:
            raise ModelError(f"{kind}: layer {index} slides, but its window is not handed over")
    if getattr(config, "attn_logit_softcapping", None) and any(x.softcap is None for x in layers):
        raise ModelError(
            f"{kind}: attention scores are soft-capped, but the cap is not handed over"
        )


def _packed_logits(loaded: LoadedModel, layers: list[LayerCall], probes: list[list[int]]) -> Tensor:
    """[all probe tokens, vocabulary], through real slots."""
    slots = sum(PROBE_LENGTHS) + 1
    for layer in layers:
        keys = torch.zeros(slots, layer.kv_heads, layer.head_size)
        values = torch.zeros(slots, layer.kv_heads, layer.value_head_size)
        layer.module.outrider_kv = LayerKV(  # type: ignore[assignment]
            keys.to(loaded.device, loaded.dtype), values.to(loaded.device, loaded.dtype)
        )
    return _run(loaded, probes, recorded=None)
