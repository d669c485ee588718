"""Prompts as conversations, so many at once, and the clock beside them."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter

from outrider.bench.workloads import Prompt
from outrider.core.dictation import Dictation
from outrider.core.errors import InvalidRequest, OutriderError
from outrider.core.outputs import Delta, RequestOutput
from outrider.core.params import SamplingParams
from outrider.engine.llm import LLM


@dataclass
class Answer:
    """One turn, as a user with a stopwatch sees it."""

    asked: float
    first: float = 0.0  # when the first token came
    last: float = 0.0
    tokens: int = 0
    tokens_at_first: int = 0  # that came with the first
    gaps: list[float] = field(default_factory=list)  # per token after the first
    result: RequestOutput | None = None
    dictation: Dictation | None = None

    def take(self, delta: Delta, now: float) -> None:
        count = len(delta.token_ids)
        if count and not self.tokens:
            self.first, self.tokens_at_first = now, count
        elif count:
            # Tokens of one step come together; each has its share of the wait.
            self.gaps += [(now - self.last) / count] * count
        if count:
            self.last = now
        self.tokens += count
        self.result = delta.result


@dataclass
class Conversation:
    prompt: Prompt
    copy: int = 0  # of several that fill a batch
    messages: list[dict[str, str]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return len(self.answers) == len(self.prompt.turns)

    def ask(self) -> None:
        turn = self.prompt.turns[len(self.answers)]
        # Copies differ from their first word on, or the prefix cache would read them for nothing.
        if self.copy and not self.answers:
            turn = f"({self.copy + 1}) {turn}"
        self.messages.append({"role": "user", "content": turn})

    @property
    def place(self) -> str:
        """Names the turn that comes next, among all of a benchmark."""
        return f"{self.prompt.id}/{self.copy}/{len(self.answers)}"

    def seed(self, base: int) -> int:
        """Fixed by prompt, copy and turn, so that every drafter is asked for the same text."""
        name = f"{base}/{self.place}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])


def conversations(prompts: list[Prompt], batch_size: int) -> list[Conversation]:
    """Each prompt once; more often only if there are fewer than run at once."""
    count = max(len(prompts), batch_size)
    endless = (Conversation(p, copy) for copy in range(count) for p in prompts)
    return list(islice(endless, count))


def prompt_ids(llm: LLM, messages: list[dict[str, str]]) -> str | list[int]:
    """A model without a chat template continues the plain text of the conversation."""
    if llm.tokenizer is not None and llm.tokenizer.chat_template is not None:
        return llm.chat_prompt(messages)
    return "\n\n".join(message["content"] for message in messages) + "\n\n"


class Clock:
    """Stands still while others have their turn."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._since: float | None = None  # where it runs

    def go(self) -> None:
        self._since = perf_counter()

    def stop(self) -> None:
        self._spent, self._since = self.now, None

    @property
    def now(self) -> float:
        return self._spent + (0.0 if self._since is None else perf_counter() - self._since)


class Floor:
    """Lets conversations talk to one engine, `batch_size` at a time. `texts` says by places what is
    to be answered, where that is not left to the engine."""

    def __init__(
        self,
        llm: LLM,
        batch_size: int,
        temperature: float,
        max_tokens: int,
        seed: int,
        texts: Mapping[str, list[int]] | None = None,
    ) -> None:
        self.llm = llm
        self.texts = texts
        self.batch_size = batch_size
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.base_seed = seed
        self.speaking: dict[str, Conversation] = {}  # by the id of the request under way
        self.clock = Clock()

    def turns(self, talks: list[Conversation], finished_one: Callable[[], None]) -> Iterator[int]:
        """A step of the engine in each, which tells how many tokens were written so far. A place
        that becomes free is taken at once, as on a busy server."""
        waiting, written = deque(talks), 0
        try:
            while waiting or self.speaking:
                self.clock.go()
                while waiting and len(self.speaking) < self.batch_size:
                    self._ask(waiting.popleft())
                deltas = self.llm.engine.step()
                now = self.clock.now
                for delta in deltas:
                    self._hear(delta, now, finished_one)
                    written += len(delta.token_ids)
                self.clock.stop()
                yield written
        finally:
            for request_id in self.speaking:
                self.llm.engine.abort(request_id)
            self.speaking.clear()

    def _ask(self, talk: Conversation) -> None:
        talk.ask()
        params = SamplingParams(
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=talk.seed(self.base_seed),
        )
        dictation = None if self.texts is None else Dictation(self.texts[talk.place])
        asked = self.clock.now
        prompt = prompt_ids(self.llm, talk.messages)
        request_id = self.llm.engine.add(prompt, params, dictation=dictation)
        talk.answers.append(Answer(asked, dictation=dictation))
        self.speaking[request_id] = talk

    def _hear(self, delta: Delta, now: float, finished_one: Callable[[], None]) -> None:
        talk = self.speaking[delta.request_id]
        talk.answers[-1].take(delta, now)
        if delta.result is None:
            return
        del self.speaking[delta.request_id]
        if delta.result.error is not None:
            raise OutriderError(f"prompt {talk.prompt.id!r} failed: {delta.result.error}")
        talk.messages.append({"role": "assistant", "content": delta.result.outputs[0].text})
        if not talk.over:
            try:
                self._ask(talk)
                return
            except InvalidRequest:
                pass  # the conversation has outgrown the context and ends early, for all alike
        finished_one()
