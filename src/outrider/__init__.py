"""Lossless speculative decoding of any Hugging Face causal language model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from outrider.core.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from outrider.core.errors import ConfigError, InvalidRequest, ModelError, OutriderError
    from outrider.core.outputs import CompletionOutput, Delta, Logprob, RequestOutput, Speculation
    from outrider.core.params import SamplingParams
    from outrider.engine.engine import Engine
    from outrider.engine.llm import LLM

# Name -> the module that holds it. torch takes seconds to import, so nothing is until it is used.
_EXPORTS = {
    "LLM": "outrider.engine.llm",
    "Engine": "outrider.engine.engine",
    "SamplingParams": "outrider.core.params",
    "RequestOutput": "outrider.core.outputs",
    "CompletionOutput": "outrider.core.outputs",
    "Delta": "outrider.core.outputs",
    "Logprob": "outrider.core.outputs",
    "Speculation": "outrider.core.outputs",
    "OutriderError": "outrider.core.errors",
    "ConfigError": "outrider.core.errors",
    "InvalidRequest": "outrider.core.errors",
    "ModelError": "outrider.core.errors",
}

__all__ = [
    "LLM",
    "CompletionOutput",
    "ConfigError",
    "Delta",
    "Engine",
    "InvalidRequest",
    "Logprob",
    "ModelError",
    "OutriderError",
    "RequestOutput",
    "SamplingParams",
    "Speculation",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value  # the next access is a plain look-up
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
