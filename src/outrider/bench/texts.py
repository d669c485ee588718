"""The texts that all drafters are made to write, where a benchmark is asked for the same texts."""

import json
from collections.abc import Iterable
from pathlib import Path

from outrider.bench.conversation import Conversation, Floor, conversations
from outrider.bench.options import BenchOptions
from outrider.bench.workloads import Prompt, categories
from outrider.core.errors import ConfigError
from outrider.engine.llm import LLM

FILE = "texts.json"  # beside results.json: a benchmark that goes on must dictate the same


class Texts:
    """Plain decoding's own answers, by temperature and by the places of conversations."""

    def __init__(self, by_temperature: dict[str, dict[str, list[int]]]) -> None:
        self._by_temperature = by_temperature

    def at(self, temperature: float) -> dict[str, list[int]]:
        return self._by_temperature[f"{temperature:g}"]

    @classmethod
    def written_by(cls, llm: LLM, options: BenchOptions, prompts: list[Prompt]) -> "Texts":
        """As many at once as there ever are: smaller batches have the first of these."""
        most = max(options.batch_sizes)
        found = {}
        for temperature in options.temperatures:
            talks: list[Conversation] = []
            for name in categories(prompts):
                talks += conversations([p for p in prompts if p.category == name], most)
            floor = Floor(llm, most, temperature, options.max_tokens, options.seed)
            for _ in floor.turns(talks, lambda: None):
                pass
            found[f"{temperature:g}"] = dict(_answers(talks))
            llm.engine.forget()
        return cls(found)

    def save(self, folder: Path) -> None:
        try:
            (folder / FILE).write_text(json.dumps(self._by_temperature), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {folder / FILE}: {error.strerror}") from None

    @classmethod
    def read(cls, folder: Path) -> "Texts":
        try:
            return cls(json.loads((folder / FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot go on: {folder / FILE} is needed ({error})") from None


def _answers(talks: Iterable[Conversation]) -> Iterable[tuple[str, list[int]]]:
    for talk in talks:
        again = Conversation(talk.prompt, talk.copy)
        for answer in talk.answers:
            assert answer.result is not None
            yield again.place, answer.result.outputs[0].token_ids
            again.answers.append(answer)
