"""The check of a request at the door: everything that could not be served is refused here."""

from dataclasses import dataclass
from typing import Any

from outrider.core.documents import Document, refuse_equal_names
from outrider.core.errors import ConfigError, InvalidRequest
from outrider.core.params import SamplingParams
from outrider.model.loading import LoadedModel


@dataclass
class Checked:
    ids: list[int]
    text: str | None
    limit: int  # output tokens at most
    stop_ids: frozenset[int]
    bad_words: list[list[int]]


def check_unicode(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{what} is not valid Unicode text: {error.reason} at character {error.start}"
        ) from None


class Intake:
    def __init__(
        self,
        loaded: LoadedModel,
        vocabulary: int,
        max_model_len: int,
        documents: tuple[Document, ...] = (),
    ) -> None:
        if documents and loaded.tokenizer is None:
            raise ConfigError("documents need a tokenizer, and this model has none")
        self.loaded = loaded
        self.vocabulary = vocabulary
        self.max_model_len = max_model_len
        self.documents = documents  # for every request

    def check(self, prompt: str | list[int] | dict[str, Any], params: SamplingParams) -> Checked:
        ids, text = self._prompt_ids(prompt)
        if not ids:
            raise InvalidRequest("the prompt is empty; give at least one token")
        room = self.max_model_len - len(ids)
        if room < 1:
            raise InvalidRequest(
                f"the prompt has {len(ids)} tokens, but with at least one more to write only "
                f"{self.max_model_len} fit; shorten it or raise max_model_len or kv_cache_tokens"
            )
        if params.stop_strings and self.loaded.tokenizer is None:
            raise InvalidRequest("stop strings need a tokenizer, and this model has none")
        self._check_documents(params.document_list)
        stop_ids = frozenset(params.stop_token_ids or ())
        if not params.ignore_eos:
            stop_ids |= self.loaded.eos_ids
        self._check_ids("stop_token_ids", list(params.stop_token_ids or ()))
        self._check_ids("logit_bias", list(params.logit_bias or ()))
        limit = room if params.max_tokens is None else min(room, params.max_tokens)
        return Checked(ids, text, limit, stop_ids, self._bad_words(params.bad_words or []))

    def _prompt_ids(self, prompt: Any) -> tuple[list[int], str | None]:
        if isinstance(prompt, dict):
            unknown = set(prompt) - {"prompt_token_ids", "prompt"}
            if unknown or "prompt_token_ids" not in prompt:
                raise InvalidRequest(
                    f"a prompt given as a dict needs 'prompt_token_ids', not {sorted(prompt)}"
                )
            ids, text = prompt["prompt_token_ids"], prompt.get("prompt")
        elif isinstance(prompt, str):
            ids, text = self._encode(prompt), prompt
        else:
            ids, text = prompt, None
        if not isinstance(ids, list) or any(type(i) is not int for i in ids):
            raise InvalidRequest(
                f"a prompt is a string, a list of token ids or {{'prompt_token_ids': [...]}}, "
                f"not {type(prompt).__name__}"
            )
        self._check_ids("the prompt", ids)
        return list(ids), text

    def _encode(self, text: str) -> list[int]:
        if self.loaded.tokenizer is None:
            raise InvalidRequest("this model has no tokenizer; give the prompt as token ids")
        check_unicode("the prompt", text)
        ids: list[int] = self.loaded.tokenizer(text)["input_ids"]
        return ids

    def _check_ids(self, what: str, ids: list[int]) -> None:
        for i in ids:
            if not 0 <= i < self.vocabulary:
                raise InvalidRequest(
                    f"{what} holds token id {i}, but the model's ids end at {self.vocabulary - 1}"
                )

    def _check_documents(self, own: tuple[Document, ...]) -> None:
        if own and self.loaded.tokenizer is None:
            raise InvalidRequest("documents need a tokenizer, and this model has none")
        refuse_equal_names([*self.documents, *own], InvalidRequest)

    def _bad_words(self, words: list[str]) -> list[list[int]]:
        """A word is banned at the start of a text and after a space, as in vLLM."""
        if not words:
            return []
        if self.loaded.tokenizer is None:
            raise InvalidRequest("bad_words need a tokenizer, and this model has none")
        found: list[list[int]] = []
        for word in words:
            for spelling in (word, " " + word.lstrip()):
                ids = self.loaded.tokenizer(spelling, add_special_tokens=False)["input_ids"]
                if ids and ids not in found:
                    found.append(ids)
        return found
