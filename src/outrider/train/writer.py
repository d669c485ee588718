"""The target makes up prompts and answers them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from outrider import LLM, SamplingParams
from outrider.core.errors import ConfigError
from outrider.train.tasks import FOLLOW_UPS, Task, task_of
from outrider.train.texts import Text

MARK = "\u2063mark\u2063"  # stands for a user's words in a chat template
LONGEST_WORDS = 96  # tokens of a prompt that the target makes up freely
ASKING = 0.3  # of the work for a text, where the target makes up its prompt, too
# Of four texts in a row, two are free talk, one of them with a second answer, and two are tasks.
KINDS = ("free", "task", "followed up", "task")

Numbered = tuple[int, Text]
Tell = Callable[[float], None]  # so much of a text more is done


class Writer:
    """Text number i depends on the seed and on i alone, whichever process writes it, and whenever.
    Runs with other seeds write other texts: prompts, tasks and noise are counted from a place that
    the seed decides, and two such places lie far apart."""

    def __init__(
        self, llm: LLM, longest: int, temperature: float, seed: int, tell: Tell = lambda part: None
    ) -> None:
        self.llm, self.longest, self.temperature = llm, longest, temperature
        self.first = random.Random(seed).getrandbits(48)
        self._tell = tell

    def self_written(self, numbers: Sequence[int]) -> list[Numbered]:
        """The target makes up what a user might say, and answers it: no data are needed."""
        talks = self.llm.tokenizer is not None and self.llm.tokenizer.chat_template is not None
        kinds = {i: KINDS[i % len(KINDS)] if talks else "free" for i in numbers}
        asked = self._made_up(kinds)
        rest, half, most = 1 - ASKING, self.longest // 2, 3 * self.longest // 4
        once = [(i, self._ids(words)) for i, words in asked.items() if kinds[i] != "followed up"]
        twice = [(i, self._ids(words)) for i, words in asked.items() if kinds[i] == "followed up"]
        found = self._continued(once, most, self.longest, rest)
        first = self._continued(twice, 3 * half // 4, half, rest / 2)
        second = [(i, self._follow_up(i, asked[i], text)) for i, text in first]
        found += self._continued(second, most, self.longest, rest / 2)
        return sorted(found, key=lambda numbered: numbered[0])

    def answered(self, prompts: Sequence[tuple[int, str]]) -> list[Numbered]:
        """Prompts of a user, answered by the target."""
        ids = [(i, self._ids(prompt)) for i, prompt in prompts]
        return self._continued(ids, self.longest // 2, self.longest, 1.0)

    def _made_up(self, kinds: dict[int, str]) -> dict[int, str]:
        """A user's words for each number, where there are any."""
        before, after = _users_words(self.llm.tokenizer)
        free = SamplingParams(
            temperature=1.0,
            max_tokens=min(LONGEST_WORDS, max(1, self.longest // 4)),
            stop=[after] if after else None,
        )
        task = SamplingParams(
            temperature=self.temperature, max_tokens=max(1, 3 * self.longest // 8)
        )
        start: Any = before or [_start(self.llm.tokenizer)]
        starts = [
            self._ids(self._task(i).ask) if kind == "task" else start for i, kind in kinds.items()
        ]
        params = [
            replace(task if kind == "task" else free, seed=self.first + i)
            for i, kind in kinds.items()
        ]
        results = self.llm.generate(starts, params, use_tqdm=lambda: self._tell(ASKING))
        words = {}
        for (i, kind), result in zip(kinds.items(), results, strict=True):
            said = result.outputs[0].text.strip()
            if said:
                words[i] = (
                    self._task(i).give.replace("{material}", said) if kind == "task" else said
                )
        return words

    def _next_question(self, number: int) -> str:
        return FOLLOW_UPS[(self.first + number // len(KINDS)) % len(FOLLOW_UPS)]

    def _task(self, number: int) -> Task:
        return task_of(self.first + number)

    def _follow_up(self, number: int, asked: str, text: Text) -> list[int]:
        """The prompt of a talk's second answer: the first, and both questions."""
        answer = self.llm.tokenizer.decode(text.tokens[text.prompt :], skip_special_tokens=True)
        talk = [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": self._next_question(number)},
        ]
        return self.llm.chat_prompt(talk)

    def _continued(
        self, prompts: Sequence[tuple[int, list[int]]], prompt: int, longest: int, part: float
    ) -> list[Numbered]:
        """Those whose prompt has at most `prompt` tokens, up to `longest` tokens in all."""
        fitting = [(i, ids) for i, ids in prompts if 0 < len(ids) <= prompt]
        params = [
            SamplingParams(
                temperature=self.temperature, max_tokens=longest - len(ids), seed=self.first + i
            )
            for i, ids in fitting
        ]
        asked: list[Any] = [ids for _, ids in fitting]
        results = self.llm.generate(asked, params, use_tqdm=lambda: self._tell(part))
        answers = [result.outputs[0].token_ids for result in results]
        return [
            (i, Text([*ids, *answer], len(ids)))
            for (i, ids), answer in zip(fitting, answers, strict=True)
            if len(answer) > 1
        ]

    def _ids(self, prompt: str) -> list[int]:
        if self.llm.tokenizer.chat_template is None:  # it goes on with the text
            ids: list[int] = self.llm.tokenizer(prompt)["input_ids"]
            return ids
        return self.llm.chat_prompt([{"role": "user", "content": prompt}])


def _users_words(tokenizer: Any) -> tuple[str, str]:
    """What stands before and after a user's words in the chat template; "" where there is none."""
    if tokenizer is None:
        raise ConfigError("the target has no tokenizer, and so nothing that it could be asked")
    if tokenizer.chat_template is None:
        return "", ""
    talk = [{"role": "user", "content": MARK}]
    text: str = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=False)
    before, _, after = text.partition(MARK)
    return before, after.strip()


def _start(tokenizer: Any) -> int:
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise ConfigError(
        "the target's tokenizer has no token that starts or ends a text, so it cannot make up "
        "prompts; give some with --data FILE"
    )
