"""How often proposals hold: by drafter, confidence and depth, and by request."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

import numpy as np

from outrider.core.tree import ROOT, TokenTree
from outrider.drafters.shapes import Shape

BINS = 10  # of confidence
PRIOR = 6.0  # how many observations the first guess is worth
MEMORY = 200.0  # observations of a bin; older ones fade
LEVEL_MEMORY = 256.0  # of a level: how texts begin tells little of how they go on
HOPE = 0.7  # a drafter that gives no confidence is believed this much at first
LASTING = 2048.0  # observations by which a drafter is known for good
PROMISED = 128.0  # that what it has shown in its training counts for
BETTER = 2.5  # the odds of a text of another kind may be so much better than of those before it
PARTING = 7 / 8  # of what levels have shown is kept when a text leaves: others may be of that kind
CLAIMS_PARTING = 1 / 2  # and of how far its confidence was right: what texts of one kind have shown
DEEPEST = 16
NEWS = 4.0  # drafts for one text: the next one tells half as much of others as the first
CAUTION = 3.0  # how many observations it takes to believe that a request differs from others
REQUEST_KEEP = 0.9  # of a request's own record, per step
HIGHEST = 0.98
NEVER = 1e-300  # the chance of what is not there, whose logarithm is a number
OTHERS = (0.14, 0.06, 0.04, 0.03, 0.02, 0.015, 0.01)  # of guesses after the first, at first


Numbers = TypeVar("Numbers", float, np.ndarray)

DEPTH_BINS = (0, 1, 2, 3, 3, 4)  # of depths 0 (there is none), 1, 2, …; the last for all deeper


def _confidence_bin(confidence: float) -> int:
    return min(int(confidence * BINS), BINS - 1)


def _depth_bin(depth: int) -> int:
    return DEPTH_BINS[depth if depth < len(DEPTH_BINS) else -1]


@dataclass
class Rate:
    """A share, with fading memory."""

    hits: float = 0.0
    count: float = 0.0
    memory: float = MEMORY

    def learn(self, hit: float, weight: float = 1.0) -> None:
        """`hit` is a chance where nobody has seen whether it was one."""
        if self.count >= self.memory:
            self.hits *= 1 - weight / self.memory
            self.count *= 1 - weight / self.memory
        self.hits += weight * hit
        self.count += weight

    def mean(self, prior: float) -> float:
        return (self.hits + PRIOR * prior) / (self.count + PRIOR)

    def fade(self, keep: float) -> None:
        self.hits *= keep
        self.count *= keep


def _levels() -> list[Rate]:
    return [Rate(memory=LEVEL_MEMORY) for _ in range(DEEPEST)]


@dataclass
class Track:
    """One drafter's record over all requests: what newcomers inherit."""

    nodes: dict[tuple[int, int], Rate] = field(default_factory=dict)  # by confidence and depth
    levels: list[Rate] = field(default_factory=_levels)
    # Of first guesses by depth, and of second, third, … ones wherever they are.
    firsts: list[Rate] = field(default_factory=_levels)
    others: list[Rate] = field(default_factory=lambda: [Rate() for _ in OTHERS])
    lasting: Rate = field(default_factory=lambda: Rate(memory=LASTING))  # of the first level
    # Per bin, the chance as a + b * confidence; kept until something is learned of that bin.
    _lines: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def promised(cls, shares: Sequence[float]) -> "Track":
        """Of a drafter whose guesses are known to hold so often, by depth, where one came so deep:
        as if it had shown that here."""
        track = cls()
        for depth, share in enumerate(shares[:DEEPEST], 1):
            track._learn_level(depth, share, [share], PROMISED)
        return track

    def node_chance(self, confidence: float, depth: int) -> float:
        """That a node of this confidence holds, given its parent: each depth starts from what the
        depth above has shown, the first from the drafter's own word."""
        return self.node_chances([confidence], [depth])[0]

    def node_chances(self, confidences: list[float], depths: list[int]) -> list[float]:
        """The same for many nodes at once: a tree is judged in every step."""
        lines, known, last = self._lines, len(DEPTH_BINS) - 1, BINS - 1
        found = []
        for confidence, depth in zip(confidences, depths, strict=True):
            place = int(confidence * BINS)
            key = (place if place < last else last, DEPTH_BINS[depth if depth < known else known])
            line = lines.get(key)
            if line is None:
                line = lines[key] = self._line(*key)
            chance = line[0] + line[1] * confidence
            found.append(chance if chance < HIGHEST else HIGHEST)
        return found

    def _line(self, confidence_bin: int, deepest: int) -> tuple[float, float]:
        a, b = 0.0, 1.0
        for depth in range(1, deepest + 1):
            rate = self.nodes.get((confidence_bin, depth))
            if rate is not None:
                old = PRIOR / (rate.count + PRIOR)
                a, b = old * a + rate.hits / (rate.count + PRIOR), old * b
        return a, b

    @property
    def hope(self) -> float:
        """What is expected of first guesses for texts of which nothing is known: what the drafter
        was like in general. One that was never right is not hoped for."""
        return self.lasting.mean(HOPE)

    def part(self) -> None:
        """A text has left. Those that follow are likely of another kind, and are judged anew."""
        for rate in (*self.levels, *self.firsts):
            rate.fade(PARTING)
        for rate in self.nodes.values():
            rate.fade(CLAIMS_PARTING)
        self._lines.clear()

    def level_chance(self, depth: int) -> float:
        """That some node at this depth holds, given one above it: all that is known beforehand."""
        return self.level_chances([depth])[0]

    def level_chances(self, depths: Sequence[int]) -> list[float]:
        """The same for many depths at once."""
        known = _each_depth(self.levels, self.hope)
        return [known[min(depth, DEEPEST) - 1] for depth in depths]

    def outlooks(self, shapes: Sequence[Shape], odds: np.ndarray) -> np.ndarray:
        """Of trees that are not drafted yet: the chances that the texts of requests run through
        their nodes; odds [requests], by which these depart from others -> [requests, shapes,
        nodes], as many as the largest has."""
        firsts = _each_depth(self.firsts, self.hope)
        # Who is seldom right with a first guess is so with a second, of which little was seen.
        as_hoped = min(1.0, firsts[0] / HOPE)
        others = [r.mean(as_hoped * prior) for r, prior in zip(self.others, OTHERS, strict=True)]
        logs = np.log(_likely([*firsts, *others, NEVER], odds))  # [kinds, requests]
        return np.exp(logs.T @ _kinds(tuple(shapes))).reshape(len(odds), len(shapes), -1)

    def levels_outlook(self, deepest: int, odds: np.ndarray) -> np.ndarray:
        """The same where nothing is known but depths: the chances to get so far, [requests,
        depths]."""
        levels = self.level_chances(range(1, deepest + 1))
        return _likely(levels, odds).cumprod(0).T

    def learn_node(self, confidence: float, depth: int, held: bool) -> None:
        confidence_bin, depth_bin = _confidence_bin(confidence), _depth_bin(depth)
        self.nodes.setdefault((confidence_bin, depth_bin), Rate()).learn(held)
        for deeper in range(depth_bin, DEPTH_BINS[-1] + 1):
            self._lines.pop((confidence_bin, deeper), None)

    def learn_level(self, depth: int, hits: list[bool], weight: float = 1.0) -> None:
        """Of the nodes below the one that was reached, which held, the first guess first."""
        self._learn_level(depth, any(hits), [*map(float, hits)], weight)

    def suppose_level(self, depth: int, chances: list[float], weight: float) -> None:
        """The same of nodes that hold with these chances; below one that the text had some chance
        to come to, that is part of the weight."""
        self._learn_level(depth, min(sum(chances), HIGHEST), chances, weight)

    def _learn_level(self, depth: int, some: float, each: list[float], weight: float) -> None:
        if depth == 1:
            self.lasting.learn(some, weight)
        if depth <= DEEPEST:
            self.levels[depth - 1].learn(some, weight)
            self.firsts[depth - 1].learn(each[0], weight)
        for rate, hit in zip(self.others, each[1:], strict=False):
            rate.learn(hit, weight)


def _each_depth(rates: list[Rate], hope: float) -> list[float]:
    """Each depth starts from what the one above it has shown; but while little is seen of itself,
    from no more than is hoped for at first: what held above may have been how texts begin, which
    is easily guessed, and a batch of texts would all be drafted for as deep at once."""
    chances, chance = [], hope
    for rate in rates:
        seen = rate.count / (rate.count + PRIOR)
        chance = rate.mean(min(chance, HOPE + seen * (1 - HOPE)))
        chances.append(min(chance, HIGHEST))
    return chances


@lru_cache(maxsize=32)
def _kinds(shapes: tuple[Shape, ...]) -> np.ndarray:
    """How many guesses of each kind lie on the path to each node: first ones by depth, then others
    by rank; the last kind never holds, and stands where a shape has no more nodes.
    [kinds, shapes * nodes]. Trees that may be drafted are judged in every step."""
    most = max(map(len, shapes))
    counts = np.zeros((len(shapes), most, DEEPEST + len(OTHERS) + 1))
    for tree, shape in zip(counts, shapes, strict=True):
        for node, (parent, rank, depth) in enumerate(zip(shape.parents, shape.ranks, shape.depths)):
            if parent != ROOT:
                tree[node] = tree[parent]
            kind = DEEPEST + min(rank, len(OTHERS)) if rank else min(depth, DEEPEST)
            tree[node, kind - 1] += 1
        tree[len(shape) :, -1] = 1
    return counts.reshape(-1, counts.shape[-1]).T.copy()


def in_odds(chance: Numbers, factor: Numbers) -> Numbers:
    """The chance whose odds are `factor` times as good."""
    return factor * chance / (1 - chance + factor * chance)


def _likely(chances: list[float], odds: np.ndarray) -> np.ndarray:
    """The same for many chances and factors: [chances, factors]."""
    return np.minimum(in_odds(np.array(chances)[:, None], odds), HIGHEST)


@dataclass
class Record:
    """How guesses of one kind, as those for one request, depart from their drafter's track: in
    odds, from sums that fade."""

    held: float = 0.0
    expected: float = 0.0
    failed: float = 0.0
    feared: float = 0.0
    seen: int = 0  # drafts

    @property
    def news(self) -> float:
        """How much the next draft tells of other texts. They differ from each other: a hundred
        drafts for one, which is the last of its batch as it is hard to guess, tell little."""
        return NEWS / (NEWS + self.seen)

    @property
    def odds(self) -> float:
        better = (self.held + CAUTION) / (self.expected + CAUTION)
        return better * (self.feared + CAUTION) / (self.failed + CAUTION)

    def learn(self, chance: float, held: bool) -> None:
        """`chance` as the track gave it, unadjusted."""
        self.held += held
        self.expected += chance
        self.failed += not held
        self.feared += 1 - chance

    def fade(self, keep: float = REQUEST_KEEP) -> None:
        self.held *= keep
        self.expected *= keep
        self.failed *= keep
        self.feared *= keep


def path_chances(tree: TokenTree, track: Track, record: Record) -> list[float]:
    """Per node: that the target's text runs through it."""
    odds = record.odds
    chances: list[float] = []
    for parent, chance in zip(tree.parents, _believed(tree, track), strict=True):
        above = 1.0 if parent == ROOT else chances[parent]
        better = odds * chance
        chance = better / (1 - chance + better)  # in_odds
        chances.append(above * (chance if chance < HIGHEST else HIGHEST))
    return chances


def learn(tree: TokenTree, text: list[int], track: Track, record: Record) -> None:
    """The target wrote `text` where `tree` was proposed, whether or not the tree was checked: so
    a drafter that is not trusted at present keeps being judged, for nothing."""
    record.fade()
    news = record.news
    believed = _believed(tree, track)
    for depth, (siblings, token) in enumerate(_reached(tree, text), 1):
        hits = [tree.tokens[node] == token for node in siblings]
        if tree.confidence is None:
            record.learn(believed[siblings[0]], any(hits))
        else:
            for node, hit in zip(siblings, hits, strict=True):
                record.learn(believed[node], hit)
                track.learn_node(tree.confidence[node], depth, hit)
        if tree.confidence is None or depth == 1:
            track.learn_level(depth, hits, news)
    if tree.confidence is not None and max(tree.depths, default=0) > 1:
        _suppose_below(tree, _believed(tree, track), track, record.odds, news)
    record.seen += 1


def _believed(tree: TokenTree, track: Track) -> list[float]:
    """Per node, the chance that it holds, given its parent, as the track has it."""
    if tree.confidence is None:
        return track.level_chances(tree.depths)
    return track.node_chances(tree.confidence, tree.depths)


def _suppose_below(
    tree: TokenTree, believed: list[float], track: Track, odds: float, news: float
) -> None:
    """What deeper levels promise, by the chances of their nodes. Whether they hold is seen only
    where the nodes above were likely enough to be checked: learned from those alone, drafts would
    seem to hold the better, the deeper they go."""
    node, depth, reached = ROOT, 1, news
    while siblings := tree.children.get(node):
        if depth > 1:
            chances = [min(in_odds(believed[i], odds), HIGHEST) for i in siblings]
            track.suppose_level(depth, chances, reached)
        node, depth = siblings[0], depth + 1
        reached *= min(in_odds(believed[node], odds), HIGHEST)


def _reached(tree: TokenTree, text: list[int]) -> Iterator[tuple[list[int], int]]:
    """Level by level along the text: the nodes proposed there, and the token that was written."""
    for parent, token in zip([ROOT, *tree.follow(text)], text, strict=False):
        siblings = tree.children.get(parent)
        if siblings is None:
            return
        yield siblings, token
