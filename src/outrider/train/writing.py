"""The target writes the texts that its drafter learns from."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from outrider import LLM, SamplingParams
from outrider.core.errors import ConfigError
from outrider.model.loading import choose_device
from outrider.train.display import Display
from outrider.train.ranks import Ranks
from outrider.train.settings import Settings
from outrider.train.texts import Text, Written, add_texts, load_texts, read_prompts, save_texts

FILE = "texts.jsonl"
AT_ONCE = 1024  # texts that a process writes before they are stored
AT_LEAST = 16  # are asked for: if none of them comes to anything, none will
SEQUENCES = 256  # in one pass of a GPU
MARK = "\u2063mark\u2063"  # stands for a user's words in a chat template
LONGEST_PROMPT = 96  # tokens of a prompt that the target makes up
ASKING = 0.2  # of the work for a text, where the target makes up its prompt, too
FOLLOWED_UP = 3  # one answer of so many is asked about once more
# Drafters that have seen only short prompts guess badly after long ones, and copy nothing.
FOLLOW_UPS = [
    "Summarise that in two sentences.",
    "Write that again, shorter.",
    "Write that again and correct every mistake.",
    "List the most important points of that.",
    "Which names and numbers occur in that? Answer as JSON.",
    "Translate that into French.",
    "Translate that into German.",
    "Write the same for a child.",
    "Quote the sentence of that which matters most, and say why.",
    "Go on.",
]

Numbered = tuple[int, Text]
Tell = Callable[[float], None]  # so much of a text more is done


def write_texts(asked: Settings, ranks: Ranks, display: Display) -> Written:
    """Those in the folder and, where they are too few, more: stored as they come."""
    file = asked.out / FILE
    here = load_texts(file) if ranks.first and file.exists() else Written([])
    found = ranks.from_first(here)
    if len(found.texts) < asked.texts:
        prompts = None if asked.data == "self" else read_prompts(Path(asked.data))
        found = _more(asked, found, prompts, file, ranks, display)
    if len(found.texts) < 2:
        raise ConfigError(
            f"only {len(found.texts)} texts were written; raise --texts or --longest, or give "
            "prompts that the target answers with --data FILE"
        )
    return replace(found, texts=found.texts[: asked.texts])


def _more(
    asked: Settings,
    found: Written,
    prompts: list[str] | None,
    file: Path,
    ranks: Ranks,
    display: Display,
) -> Written:
    llm = _engine(asked)
    longest = min(asked.longest, llm.engine.max_model_len)
    if llm.tokenizer is not None and llm.tokenizer.chat_template is None:
        display.note(f"{asked.target} has no chat template: it goes on with plain text instead")
    if ranks.first:
        save_texts(found, file)  # without what a kill may have left half written
    with display.writing(len(found.texts), asked.texts) as bar:
        writer = Writer(
            llm, longest, asked.temperature, asked.seed, lambda part: bar.add(part * ranks.count)
        )
        in_vain = 0  # prompts in a row
        while len(found.texts) < asked.texts:
            begun = time.monotonic()
            missing = asked.texts - len(found.texts)
            wanted = min(AT_ONCE * ranks.count, max(AT_LEAST, missing))
            own = ranks.share(range(found.used, found.used + wanted))
            if prompts is None:
                part = writer.self_written(own)
            else:  # after the last, the first is answered once more: otherwise
                part = writer.answered([(i, prompts[i % len(prompts)]) for i in own])
            new = sorted(ranks.gather(part), key=lambda numbered: numbered[0])
            more = Written(
                [text for _, text in new],
                found.used + wanted,
                found.seconds + time.monotonic() - begun,
            )
            if ranks.first:
                add_texts(more, file)
            found = replace(more, texts=found.texts + more.texts)
            bar.reached(min(asked.texts, len(found.texts)))
            in_vain = 0 if new else in_vain + wanted
            if in_vain >= max(AT_LEAST, len(prompts or ())):
                display.note(f"no more texts than {len(found.texts)} can be had")
                break
    return found


def _engine(asked: Settings) -> LLM:
    """Plain decoding: in batches as large as these, drafts gain nothing."""
    many = {"max_num_seqs": SEQUENCES, "kv_cache_tokens": SEQUENCES * asked.longest}
    on_gpu = choose_device(asked.device).type == "cuda"
    return LLM(
        asked.target, None, device=asked.device, dtype=asked.dtype, **(many if on_gpu else {})
    )


class Writer:
    """Text number i is drawn with the seed plus i, whichever process writes it, and whenever."""

    def __init__(
        self, llm: LLM, longest: int, temperature: float, seed: int, tell: Tell = lambda part: None
    ) -> None:
        self.llm, self.longest, self.temperature, self.seed = llm, longest, temperature, seed
        self._tell = tell

    def self_written(self, numbers: Sequence[int]) -> list[Numbered]:
        """The target makes up what a user might say, and answers it: no data are needed."""
        before, after = _users_words(self.llm.tokenizer)
        params = SamplingParams(
            temperature=1.0,
            max_tokens=min(LONGEST_PROMPT, max(1, self.longest // 4)),
            stop=[after] if after else None,
        )
        starts: list[Any] = [before or [_start(self.llm.tokenizer)]] * len(numbers)
        made_up = self.llm.generate(
            starts,
            [replace(params, seed=self.seed + i) for i in numbers],
            use_tqdm=lambda: self._tell(ASKING),
        )
        words = [output.outputs[0].text.strip() for output in made_up]
        asked = {i: w for i, w in zip(numbers, words) if w}
        if self.llm.tokenizer.chat_template is None:
            return self._answers(list(asked.items()), 1 - ASKING)
        once = {i: w for i, w in asked.items() if i % FOLLOWED_UP}
        twice = {i: w for i, w in asked.items() if i not in once}
        found = self._answers(list(once.items()), 1 - ASKING)
        found += self._followed_up(twice, 1 - ASKING)
        return sorted(found, key=lambda numbered: numbered[0])

    def answered(self, prompts: Sequence[tuple[int, str]]) -> list[Numbered]:
        """Prompts of a user, answered by the target."""
        return self._answers(prompts, 1.0)

    def _answers(self, prompts: Sequence[tuple[int, str]], part: float) -> list[Numbered]:
        ids = [(i, self._ids(prompt)) for i, prompt in prompts]
        return self._continued(ids, self.longest // 2, self.longest, part)

    def _followed_up(self, asked: dict[int, str], part: float) -> list[Numbered]:
        """The second answer of a talk; the first, and the questions, stand before it."""
        half = self.longest // 2
        ids = [(i, self._ids(prompt)) for i, prompt in asked.items()]
        talks = []
        for i, first in self._continued(ids, 3 * half // 4, half, part / 2):
            answer = self.llm.tokenizer.decode(
                first.tokens[first.prompt :], skip_special_tokens=True
            )
            talk = [
                {"role": "user", "content": asked[i]},
                {"role": "assistant", "content": answer},
                {"role": "user", "content": FOLLOW_UPS[i // FOLLOWED_UP % len(FOLLOW_UPS)]},
            ]
            talks.append((i, self.llm.chat_prompt(talk)))
        return self._continued(talks, 3 * self.longest // 4, self.longest, part / 2)

    def _continued(
        self, prompts: Sequence[tuple[int, list[int]]], prompt: int, longest: int, part: float
    ) -> list[Numbered]:
        """Those whose prompt has at most `prompt` tokens, up to `longest` tokens in all."""
        fitting = [(i, ids) for i, ids in prompts if 0 < len(ids) <= prompt]
        params = [
            SamplingParams(
                temperature=self.temperature, max_tokens=longest - len(ids), seed=self.seed + i
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
