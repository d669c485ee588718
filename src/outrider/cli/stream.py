"""Follow one streamed request: its text by origin, its time, its result."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outrider.core.errors import InvalidRequest
from outrider.core.outputs import Delta, RequestOutput

if TYPE_CHECKING:
    from outrider import LLM, SamplingParams

Write = Callable[[str, bool], None]  # (text, did it come from a draft?)


@dataclass
class Answer:
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    seconds: float = 0.0  # the whole request, reading the prompt included
    writing_seconds: float = 0.0  # after the first tokens
    writing_tokens: int = 0
    result: RequestOutput | None = None  # None when it was interrupted

    @property
    def tokens_per_second(self) -> float:
        return len(self.token_ids) / self.seconds if self.seconds else 0.0

    @property
    def writing_speed(self) -> float:
        """Tokens per second without the time to read the prompt."""
        return self.writing_tokens / self.writing_seconds if self.writing_seconds else 0.0


class Origins:
    """Splits the text of deltas by the origin of the tokens that completed it.

    A delta gives the text of several tokens at once, and that text may lag behind. So the tokens
    are turned into text once more, one by one, and each delta's text takes its share of that.
    """

    def __init__(self, llm: "LLM", prompt: str | list[int], params: "SamplingParams") -> None:
        from outrider.engine.detokenize import Detokenizer

        tokenizer = llm.tokenizer
        if isinstance(prompt, str):
            prompt = tokenizer(prompt)["input_ids"] if tokenizer else []
        self._detokenizer = Detokenizer(tokenizer, params.skip_special_tokens, prompt)
        self._queue: deque[tuple[str, bool]] = deque()
        self._last = False

    def split(self, delta: Delta) -> list[tuple[str, bool]]:
        for token, drafted in zip(delta.token_ids, delta.from_draft):
            self._queue.append((self._detokenizer.push(token), drafted))
        pieces: list[tuple[str, bool]] = []
        text = delta.text
        while text and self._queue:
            piece, self._last = self._queue.popleft()
            share, text = text[: len(piece)], text[len(piece) :]
            if len(share) < len(piece):
                self._queue.appendleft((piece[len(share) :], self._last))
            pieces.append((share, self._last))
        if text:
            pieces.append((text, self._last))  # the rest of the last character, at the end
        return [(piece, drafted) for piece, drafted in pieces if piece]


def follow(
    llm: "LLM",
    prompt: str | list[int],
    params: "SamplingParams",
    write: Write,
    stopped: Callable[[], bool] = lambda: False,
) -> Answer:
    """Run one request and hand its text to `write` as it comes.

    `stopped` is asked between steps, so that the engine is never left in the middle of one.
    """
    answer = Answer()
    origins = Origins(llm, prompt, params)
    stream: Any = llm.stream(prompt, params)  # a generator: closing it aborts the request
    start = first = time.perf_counter()
    try:
        for delta in stream:
            now = time.perf_counter()
            if answer.token_ids:
                answer.writing_tokens += len(delta.token_ids)
                answer.writing_seconds = now - first
            elif delta.token_ids:
                first = now
            answer.seconds = now - start
            answer.text += delta.text
            answer.token_ids += delta.token_ids
            for piece, drafted in origins.split(delta):
                write(piece, drafted)
            answer.result = delta.result
            if stopped():
                break
    finally:
        stream.close()
    if answer.result is not None and answer.result.error is not None:
        raise InvalidRequest(answer.result.error)
    return answer
