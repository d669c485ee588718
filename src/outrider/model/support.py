"""Which architectures can be run, decided from the configuration before any weight is read."""

from typing import Any

from transformers import AutoModelForCausalLM

from outrider.core.errors import ModelError

ATTENTION_LAYERS = {"full_attention", "sliding_attention"}


def refuse_unsupported(config: Any) -> None:
    """Raises, naming the reason, for what the engine's one packed pass cannot express.

    What slips through (a module that ignores what it is given) is found by the parity probe that
    runs once the weights are loaded.
    """
    reason = _reason(config)
    if reason:
        kind = getattr(config, "model_type", type(config).__name__)
        raise ModelError(f"{kind} models are not supported: {reason}")


def _reason(config: Any) -> str | None:
    if getattr(config, "is_encoder_decoder", False):
        return "they are encoder-decoder models, and only decoders are"
    if _is_multimodal(config):
        return "the configuration is multimodal; give a text-only checkpoint of the model"
    layers = set(getattr(config, "layer_types", None) or ())
    if "chunked_attention" in layers or getattr(config, "attention_chunk_size", None):
        return "they attend in chunks, which tree attention cannot express yet"
    if layers - ATTENTION_LAYERS:
        return (
            f"not all layers are attention ({', '.join(sorted(layers - ATTENTION_LAYERS))}), and "
            "a recurrent state cannot go back to before a rejected draft"
        )
    model_class = _causal_class(config)
    if model_class is None:
        return "transformers has no causal language model for them"
    return _class_reason(config, model_class)


def _class_reason(config: Any, model_class: Any) -> str | None:
    if getattr(model_class, "_is_stateful", False):
        return "they are recurrent, and their state cannot go back to before a rejected draft"
    # Only encoders such as BERT have the key as False: they see the text after a token, too.
    if getattr(config, "is_decoder", None) is False and hasattr(config, "type_vocab_size"):
        return "they are encoders that look at both sides of a token"
    if getattr(config, "use_bidirectional_attention", False):
        return "they look at both sides of a token"
    if not getattr(model_class, "_supports_attention_backend", True):
        return f"{model_class.__name__} does not let its attention be replaced"
    return None


def _is_multimodal(config: Any) -> bool:
    try:
        return config.get_text_config() is not config
    except ValueError:  # several text parts
        return True


def _causal_class(config: Any) -> Any | None:
    """The class that will be loaded; a stand-in that passes if the checkpoint brings its own."""
    if "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}):
        return object
    try:
        return AutoModelForCausalLM._model_mapping[type(config)]
    except KeyError:
        return None
