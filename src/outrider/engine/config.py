"""The engine's options, their defaults, and how unknown ones are refused."""

from dataclasses import dataclass, fields
from typing import Any

import torch

from outrider.core.documents import Document, GivenDocuments, as_documents
from outrider.core.errors import ConfigError, unknown_name

GPU_ROWS, CPU_ROWS = 2048, 512  # of a pass, where the user does not say


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Names are vLLM's where it has one."""

    tokenizer: str | None = None  # another folder or hub id than the model's
    revision: str | None = None  # of a hub id
    dtype: str | torch.dtype = "auto"
    device: str = "auto"
    quantization: str | None = None  # of the weights: int8 or int4; a checkpoint may bring its own
    trust_remote_code: bool = False
    max_model_len: int | None = None  # default: what the model was trained for
    max_num_seqs: int = 64  # sequences in one pass
    max_num_batched_tokens: int | None = None  # rows in one pass: prompts, roots, tree nodes
    kv_cache_tokens: int | None = None  # slots; default: from free memory
    # Share of the memory left beside the weights of all models, for slots, graphs and passes.
    memory_utilization: float = 0.5
    enable_prefix_caching: bool = True
    reproducible: bool = False  # bitwise the same text for any drafter and batch; costs speed
    documents: GivenDocuments | None = None  # for every request; see SamplingParams

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> "EngineConfig":
        known = {field.name for field in fields(cls)}
        for name in options:
            if name not in known:
                raise ConfigError(unknown_name("option", name, [*known, "speculative_config"]))
        return cls(**options)

    def __post_init__(self) -> None:
        _ = self.document_list  # refused now, not when it is needed
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_tokens"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name}={value!r} must be a whole number of at least 1")
        if not 0 < self.memory_utilization <= 1:
            raise ConfigError(
                f"memory_utilization={self.memory_utilization} must be above 0 and at most 1"
            )

    @property
    def document_list(self) -> tuple[Document, ...]:
        return as_documents(self.documents, ConfigError)

    def longest_text(self, model: str, longest: int) -> int:
        """Tokens, where the model was made for so many."""
        if self.max_model_len is not None and self.max_model_len > longest:
            raise ConfigError(
                f"max_model_len={self.max_model_len} is above what {model} was made for ({longest})"
            )
        return self.max_model_len or longest

    def pass_rows(self, on_gpu: bool) -> int:
        """Prompts are read in parts, so that nobody waits long; a GPU reads more at once."""
        return self.max_num_batched_tokens or (GPU_ROWS if on_gpu else CPU_ROWS)
