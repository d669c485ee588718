"""Texts in fixed groups of similar length: what a lesson is put together from."""

from typing import Any

from outrider.model.features import Tap
from outrider.model.memory import free_memory
from outrider.train.batch import Batch, Vocabulary, see
from outrider.train.texts import Text

KEPT = 0.4  # of the free memory: for what the target said about texts that will come again


class Sheets:
    """A sheet is always seen as a whole. So it is worth keeping, and what the target says about a
    text does not depend on the lesson: a run that was killed goes on to the same result."""

    def __init__(
        self,
        model: Any,
        taps: tuple[Tap, ...],
        words: Vocabulary,
        texts: list[Text],
        texts_per_sheet: int,
    ) -> None:
        self._model, self._taps, self._words = model, taps, words
        by_length = sorted(texts, key=lambda text: len(text.tokens))  # little padding
        self._texts = [
            by_length[i : i + texts_per_sheet] for i in range(0, len(texts), texts_per_sheet)
        ]
        self._seen: dict[int, Batch] = {}
        self._room = int(KEPT * free_memory(words.ids.device))

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> Batch:
        if index in self._seen:
            return self._seen[index]
        batch = see(self._model, self._texts[index], self._taps, self._words)
        if batch.bytes <= self._room:
            self._seen[index] = batch
            self._room -= batch.bytes
        return batch

    def learned(self, index: int) -> int:
        """Tokens of the sheet that the target wrote."""
        return sum(len(text.tokens) - text.prompt for text in self._texts[index])
