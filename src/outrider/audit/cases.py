"""The requests of an audit: natural prompts, options that really bite, and a prompt to sample."""

import random
from dataclasses import dataclass
from typing import Any

from outrider.audit.judge import Ask
from outrider.core.outputs import RequestOutput
from outrider.core.params import SamplingParams
from outrider.engine.llm import LLM

# All but the last repeat themselves, so that drafters that copy have something to propose.
PROMPTS = (
    "Colours: red, green, blue, yellow. Again: red, green, blue, yellow. Again: red, green,",
    "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n    return a",
    "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is",
    "Once upon a time there was a lighthouse keeper who",
)
WORDS = (" red", " blue", " green", " one", " two", " cat", " dog", " a", " b", " c")
SYMBOLS = 3  # different tokens of the sampled prompt: few outcomes, so that each is well counted
SAMPLED_PROMPT = 32  # long enough that every pair of them has occurred
BIAS = 100.0  # leaves practically nothing to all other tokens


@dataclass(frozen=True)
class Builder:
    """Makes requests for one model."""

    llm: LLM
    seed: int
    tokens: int

    def ask(self, check: str, name: str, prompt: list[int], **options: Any) -> Ask:
        params = SamplingParams(**{"max_tokens": self.tokens, "seed": self.seed, **options})
        return Ask(check, name, params, self.llm.engine.intake.check(prompt, params))

    def prompts(self) -> list[list[int]]:
        if self.llm.tokenizer is not None:
            return [self.llm.tokenizer(text)["input_ids"] for text in PROMPTS]
        rng = random.Random(self.seed)
        vocabulary = self.llm.engine.runner.vocabulary
        starts = [[rng.randrange(vocabulary) for _ in range(12)] for _ in PROMPTS]
        return [start + start[:6] for start in starts]

    def base(self) -> list[Ask]:
        """Greedy and seeded, for every prompt; log-probabilities to see how large rounding is."""
        prompts = [(f"prompt {i}", self.seed + i, ids) for i, ids in enumerate(self.prompts())]
        return [
            self.ask(check, name, ids, temperature=temperature, logprobs=3, seed=seed)
            for check, temperature in (("greedy", 0.0), ("seeded", 1.0))
            for name, seed, ids in prompts
        ]

    def options(self, base: list[Ask], plain: list[RequestOutput], drawn: bool) -> list[Ask]:
        """Each option alone, on texts that are known without it, so that it surely bites. The end
        token is ignored: texts that all end early would show little.

        `drawn`: texts at T > 0 cannot be compared (traversal), so options that also act on greedy
        texts are tried on those alone.
        """
        half = len(base) // 2
        asks = [
            self.ask(
                name, base[i].name, base[i].prompt, seed=self.seed + i, ignore_eos=True, **options
            )
            for i in range(2)
            for name, options in _draws_only()
        ]
        for at in (0, 1) if drawn else (0, half + 1):
            start = base[at]
            for name, options in self._bites(plain[at].outputs[0].token_ids):
                same = {"temperature": start.params.temperature, "seed": start.params.seed}
                where = f"{start.check}, {start.name}"
                asks.append(self.ask(name, where, start.prompt, ignore_eos=True, **same, **options))
        return asks

    def _bites(self, text: list[int]) -> list[tuple[str, dict[str, Any]]]:
        """Options that act on a text at any temperature; `text` is written without them."""
        middle = text[len(text) // 2]
        early = text[min(3, len(text) - 1)]
        # With few tokens to choose from, a text repeats itself, and penalties decide it.
        different = list(dict.fromkeys(text))
        few, several = dict.fromkeys(different[:3], 20.0), dict.fromkeys(different[:8], 20.0)
        found: list[tuple[str, dict[str, Any]]] = [
            ("repetition_penalty", {"repetition_penalty": 1.2, "logit_bias": few}),
            ("presence_penalty", {"presence_penalty": 2.0, "logit_bias": several}),
            ("frequency_penalty", {"frequency_penalty": 1.2, "logit_bias": few}),
            ("logit_bias", {"logit_bias": {early: -100.0, middle: 2.0}}),
            ("min_tokens", {"stop_token_ids": [early], "min_tokens": self.tokens // 2}),
            ("stop_token_ids", {"stop_token_ids": [middle]}),
            ("logprobs", {"logprobs": 3}),
            (
                "processed logprobs",
                {"logprobs": 2, "logprobs_mode": "processed", "frequency_penalty": 0.7},
            ),
        ]
        if self.llm.tokenizer is None:
            return found
        word = self.llm.tokenizer.decode([early])
        stop = self.llm.tokenizer.decode(text)[len(text) // 2 :][:4]
        if word.strip() and "\ufffd" not in word:
            found.append(("bad_words", {"bad_words": [word.strip()]}))
        if stop and "\ufffd" not in stop:
            found.append(("stop", {"stop": [stop]}))
        return found


def symbols(tokenizer: Any, vocabulary: int, eos_ids: frozenset[int]) -> list[int]:
    """A few tokens, words where there is a tokenizer."""
    found: list[int] = []
    if tokenizer is not None:
        for word in WORDS:
            ids = tokenizer(word, add_special_tokens=False)["input_ids"]
            if len(ids) == 1 and ids[0] not in found:
                found.append(ids[0])
    others = [*range(vocabulary // 2, vocabulary), *range(vocabulary // 2)]
    found += [i for i in others if i not in {*found, *eos_ids}][:SYMBOLS]
    return found[:SYMBOLS]


def sampled_prompt(tokenizer: Any, tokens: list[int], seed: int) -> list[int]:
    """These tokens in random order.

    Every pair of them occurs, so drafters that copy propose at each position; and what follows is
    uncertain, so the proposals are sometimes right and sometimes wrong.
    """
    rng = random.Random(seed)
    start = tokenizer("")["input_ids"] if tokenizer is not None else []  # what every text has
    return start + [rng.choice(tokens) for _ in range(SAMPLED_PROMPT)]


def _draws_only() -> list[tuple[str, dict[str, Any]]]:
    """Options that do nothing to greedy texts."""
    return [
        ("temperature", {"temperature": 0.6}),
        ("top_k", {"top_k": 5}),
        ("top_p", {"top_p": 0.7}),
        ("min_p", {"min_p": 0.1}),
    ]
