"""What it tells that several drafters guess the same, or each something else."""

from collections import defaultdict
from typing import NamedTuple

from outrider.core.tree import ROOT
from outrider.drafters.merging import Union
from outrider.engine.policy.acceptance import HIGHEST, Record, in_odds

KEEP = 0.98  # of what was learned, per guess


class Voice(NamedTuple):
    """A guess of one drafter."""

    drafter: str
    agreed: bool | None  # whether all who guess there say the same; None: nobody else does
    chance: float  # once the text has come there, as if this drafter were alone


class Concord:
    """A copy that a model does not guess seldom holds, and one that it guesses as well holds more
    often than each of the two would think. By how much is learned for each drafter, in odds."""

    def __init__(self) -> None:
        self._records: defaultdict[tuple[str, bool], Record] = defaultdict(Record)

    def chances(self, union: Union, drafters: list[str], chances: list[list[float]]) -> list[float]:
        """Per node of the union: that the target's text runs through it; `chances[t][i]`: the same
        of node i of tree t, as if it were alone."""
        paths: list[float] = []
        voices = _voices(union, drafters, chances)
        for parent, heard in zip(union.tree.parents, voices, strict=True):
            above = 1.0 if parent == ROOT else paths[parent]
            paths.append(above * max(map(self._chance, heard)))
        return paths

    def _chance(self, voice: Voice) -> float:
        if voice.agreed is None:
            return voice.chance
        odds = self._records[voice.drafter, voice.agreed].odds
        return min(in_odds(voice.chance, odds), HIGHEST)

    def learn(
        self, union: Union, drafters: list[str], chances: list[list[float]], text: list[int]
    ) -> None:
        """The target wrote `text` where these trees were proposed, checked or not."""
        tree = union.tree
        voices = _voices(union, drafters, chances)
        for parent, token in zip([ROOT, *tree.follow(text)], text, strict=False):
            for node in tree.children.get(parent, ()):
                for drafter, agreed, chance in voices[node]:
                    if agreed is not None:
                        record = self._records[drafter, agreed]
                        record.fade(KEEP)
                        record.learn(chance, tree.tokens[node] == token)


def _voices(union: Union, drafters: list[str], chances: list[list[float]]) -> list[list[Voice]]:
    """Per node: who guesses it."""
    parents, origins = union.tree.parents, union.origins
    speakers: defaultdict[int, set[int]] = defaultdict(set)  # the trees that go on there
    for parent, origin in zip(parents, origins, strict=True):
        speakers[parent].update(origin)
    voices = []
    for parent, origin in zip(parents, origins, strict=True):
        agreed = len(origin) == len(speakers[parent]) if len(speakers[parent]) > 1 else None
        heard = []
        for number, node in origin.items():
            above = 1.0 if parent == ROOT else chances[number][origins[parent][number]]
            chance = chances[number][node] / above if above else 0.0
            heard.append(Voice(drafters[number], agreed, chance))
        voices.append(heard)
    return voices
