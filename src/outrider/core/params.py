"""What a user may ask of one request."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from torch import Tensor

from outrider.core.documents import Document, GivenDocuments, as_documents
from outrider.core.errors import InvalidRequest

# (output tokens along the row's own path, logits [vocabulary]) -> logits [vocabulary]; must be pure
LogitsProcessor = Callable[[list[int], Tensor], Tensor]

GREEDY_BELOW = 1e-5  # temperatures under this are treated as 0, as in vLLM


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Names, meanings and defaults are vLLM's, except `max_tokens=None`: until the end token or
    the end of the context."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1: all tokens
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    bad_words: list[str] | None = None
    logits_processors: list[LogitsProcessor] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None  # alternatives per token; 0 gives only the chosen token's
    logprobs_mode: Literal["raw", "processed"] = "raw"
    # False: none. {"method": …, "num_speculative_tokens": …}: instead of the engine's own choice.
    speculation: dict[str, Any] | Literal[False] | None = None
    # Texts, or {"name": …, "text": …}: drafts are copied from them, and quotations are reported.
    documents: GivenDocuments | None = field(default=None, repr=False)

    stop_strings: list[str] = field(init=False, repr=False)
    document_list: tuple[Document, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        _require_list("stop", stops)
        object.__setattr__(self, "stop_strings", list(stops))
        object.__setattr__(self, "document_list", as_documents(self.documents))
        self._check_numbers()
        self._check_texts()
        self._check_others()

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def penalised(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @property
    def truncates(self) -> bool:
        """Whether some tokens are left out of the draw."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @cached_property
    def adjusts(self) -> bool:
        """Whether the logits themselves are changed, before temperature and truncation."""
        return bool(self.penalised or self.logit_bias or self.logits_processors)

    def _check_numbers(self) -> None:
        _require_integer("n", self.n, 1)
        _require_range("temperature", self.temperature, 0, math.inf)
        _require_range("top_p", self.top_p, 0, 1, open_low=True)
        _require_integer("top_k", self.top_k, -1)
        _require_range("min_p", self.min_p, 0, 1)
        _require_range("repetition_penalty", self.repetition_penalty, 0, math.inf, open_low=True)
        _require_range("presence_penalty", self.presence_penalty, -2, 2)
        _require_range("frequency_penalty", self.frequency_penalty, -2, 2)
        _require_integer("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None:
            _require_integer("max_tokens", self.max_tokens, 1)
            if self.min_tokens > self.max_tokens:
                raise InvalidRequest(
                    f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}"
                )
        if self.seed is not None:
            _require_integer("seed", self.seed, 0)
            if self.seed >= 1 << 64:
                raise InvalidRequest(f"seed={self.seed} must be below 2**64")
        if self.logprobs is not None:
            _require_integer("logprobs", self.logprobs, 0)
        if self.logprobs_mode not in ("raw", "processed"):
            raise InvalidRequest(
                f"logprobs_mode={self.logprobs_mode!r} must be 'raw' or 'processed'"
            )

    def _check_texts(self) -> None:
        _require_list("bad_words", self.bad_words or [])
        for name, texts in (("stop", self.stop_strings), ("bad_words", self.bad_words or [])):
            for text in texts:
                if not isinstance(text, str) or not text:
                    raise InvalidRequest(f"{name} holds {text!r}; give non-empty strings")
                if not text.isascii() and _has_surrogate(text):
                    raise InvalidRequest(f"{name} holds {text!r}, which is not valid Unicode text")

    def _check_others(self) -> None:
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(f"{name}={getattr(self, name)!r} must be True or False")
        if self.speculation is not None and self.speculation is not False:
            self._check_speculation()
        _require_list("stop_token_ids", self.stop_token_ids or [])
        for token in self.stop_token_ids or []:
            _require_integer("stop_token_ids entry", token, 0)
        if not isinstance(self.logit_bias or {}, dict):
            raise InvalidRequest("logit_bias must be a dict of token ids to numbers")
        for token, bias in (self.logit_bias or {}).items():
            _require_integer("logit_bias token id", token, 0)
            number = isinstance(bias, (int, float)) and not isinstance(bias, bool)
            if not number or math.isnan(bias) or bias == math.inf:
                raise InvalidRequest(f"logit_bias of token {token} is {bias!r}; give a number")
        _require_list("logits_processors", self.logits_processors or [])
        for processor in self.logits_processors or []:
            if not callable(processor):
                raise InvalidRequest(f"logits_processors holds {processor!r}, not a function")

    def _check_speculation(self) -> None:
        known = ("method", "num_speculative_tokens")
        if not isinstance(self.speculation, dict) or not set(self.speculation) <= set(known):
            raise InvalidRequest(
                f"speculation={self.speculation!r} must be None, False or a dict with 'method' "
                "and 'num_speculative_tokens'; other options belong to the engine"
            )


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)


def _require_list(name: str, value: object) -> None:
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest(f"{name}={value!r} must be a list")


def _require_integer(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InvalidRequest(f"{name}={value!r} must be a whole number of at least {low}")


def _require_range(
    name: str, value: object, low: float, high: float, open_low: bool = False
) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    largest = sys.float_info.max  # an int may be larger than any float
    if not number or not low <= value <= min(high, largest) or (open_low and value == low):  # type: ignore[operator]
        above = "above" if open_low else "at least"
        limit = "" if high == math.inf else f" and at most {high:g}"
        raise InvalidRequest(f"{name}={value!r} must be a number {above} {low:g}{limit}")
