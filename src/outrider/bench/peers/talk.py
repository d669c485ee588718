"""Conversations as token ids, rendered on our side so that every peer reads the same ones."""

from collections.abc import Callable, Iterator
from typing import Any

from outrider.bench.workloads import Prompt
from outrider.core.errors import ModelError
from outrider.model.source import locate

Answer = dict[str, Any]


class Talk:
    def __init__(self, model: str, prompts: list[Prompt]) -> None:
        self.prompts = prompts
        self._tokenizer = _read_tokenizer(model)

    @property
    def opening(self) -> list[int]:
        """The first question of all."""
        return self._ids([_said("user", self.prompts[0].turns[0])])

    def converse(self, prompt: Prompt, ask: Callable[[list[int]], Answer]) -> Iterator[Answer]:
        """The answers to all turns; each sees the ones before."""
        messages = []
        for turn in prompt.turns:
            messages.append(_said("user", turn))
            answer = ask(self._ids(messages))
            text = self._tokenizer.decode(answer["tokens"], skip_special_tokens=True)
            messages.append(_said("assistant", text))
            yield answer

    def context(self, max_tokens: int) -> int:
        """Tokens that the longest conversation may come to."""
        return max(
            len(self._ids([_said("user", turn) for turn in prompt.turns]))
            + len(prompt.turns) * (max_tokens + 16)  # an answer and what the template puts around
            for prompt in self.prompts
        )

    def _ids(self, messages: list[dict[str, str]]) -> list[int]:
        """As Outrider itself is asked; without a chat template that is the plain text."""
        if self._tokenizer.chat_template is None:
            text = "\n\n".join(message["content"] for message in messages) + "\n\n"
            return list(self._tokenizer(text)["input_ids"])
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        # The template writes the special tokens itself.
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _read_tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    from outrider.model.gguf_file import read_gguf_tokenizer
    from outrider.model.quiet import quiet_transformers

    path = locate(model, weights=False)
    if path.is_file():
        return read_gguf_tokenizer(path, context_length=1 << 20)
    with quiet_transformers():
        try:
            return AutoTokenizer.from_pretrained(path, local_files_only=True)
        except Exception as error:
            raise ModelError(f"the tokenizer of {model} cannot be read: {error}") from error
