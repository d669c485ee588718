"""How often proposals hold: by drafter, confidence and depth, and by request."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from math import exp, log
from operator import mul

from outrider.core.tree import ROOT, TokenTree
from outrider.drafters.shapes import Shape

BINS = 10  # of confidence
PRIOR = 6.0  # how many observations the first guess is worth
MEMORY = 200.0  # observations of a bin; older ones fade
HOPE = 0.6  # a drafter that gives no confidence is believed this much at first
DEEPEST = 16
CAUTION = 3.0  # how many observations it takes to believe that a request differs from others
REQUEST_KEEP = 0.9  # of a request's own record, per step
HIGHEST = 0.98
ALIKE = 16  # steps per factor of e in which odds are told apart
OTHERS = (0.14, 0.06, 0.04, 0.03, 0.02, 0.015, 0.01)  # of guesses after the first, at first


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

    def learn(self, hit: bool) -> None:
        if self.count >= MEMORY:
            self.hits *= 1 - 1 / MEMORY
            self.count *= 1 - 1 / MEMORY
        self.hits += hit
        self.count += 1

    def mean(self, prior: float) -> float:
        return (self.hits + PRIOR * prior) / (self.count + PRIOR)


@dataclass
class Track:
    """One drafter's record over all requests: what newcomers inherit."""

    nodes: dict[tuple[int, int], Rate] = field(default_factory=dict)  # by confidence and depth
    levels: list[Rate] = field(default_factory=lambda: [Rate() for _ in range(DEEPEST)])
    # Of first guesses by depth, and of second, third, … ones wherever they are.
    firsts: list[Rate] = field(default_factory=lambda: [Rate() for _ in range(DEEPEST)])
    others: list[Rate] = field(default_factory=lambda: [Rate() for _ in OTHERS])
    # Per bin, the chance as a + b * confidence; kept until something is learned of that bin.
    _lines: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)

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
                a, b = old * a + (1 - old) * rate.hits / rate.count, old * b
        return a, b

    def level_chance(self, depth: int) -> float:
        """That some node at this depth holds, given one above it: all that is known beforehand."""
        return _down_to(depth, self.levels)

    def outlook(self, shape: Shape, odds: float) -> list[float]:
        """Per node of a tree that is not drafted yet: the chance that the text of a request, which
        departs from others by `odds`, runs through it."""
        firsts = [in_odds(_down_to(d, self.firsts), odds) for d in range(1, max(shape.depths) + 1)]
        others = [in_odds(r.mean(p), odds) for r, p in zip(self.others, OTHERS, strict=True)]
        chances: list[float] = []
        for parent, rank, depth in zip(shape.parents, shape.ranks, shape.depths, strict=True):
            above = 1.0 if parent == ROOT else chances[parent]
            chance = others[min(rank, len(others)) - 1] if rank else firsts[depth - 1]
            chances.append(above * min(chance, HIGHEST))
        return chances

    def levels_outlook(self, deepest: int, odds: float) -> list[float]:
        """The same where nothing is known but depths: per depth, the chance to get so far."""
        chances = (in_odds(self.level_chance(d), odds) for d in range(1, deepest + 1))
        return list(accumulate((min(chance, HIGHEST) for chance in chances), mul))

    def learn_node(self, confidence: float, depth: int, held: bool) -> None:
        confidence_bin, depth_bin = _confidence_bin(confidence), _depth_bin(depth)
        self.nodes.setdefault((confidence_bin, depth_bin), Rate()).learn(held)
        for deeper in range(depth_bin, DEPTH_BINS[-1] + 1):
            self._lines.pop((confidence_bin, deeper), None)

    def learn_level(self, depth: int, hits: list[bool]) -> None:
        """Of the nodes below the one that was reached, which held, the first guess first."""
        if depth <= DEEPEST:
            self.levels[depth - 1].learn(any(hits))
            self.firsts[depth - 1].learn(hits[0])
        for rate, hit in zip(self.others, hits[1:], strict=False):
            rate.learn(hit)


def _down_to(depth: int, rates: list[Rate]) -> float:
    """Each depth starts from what the one above it has shown."""
    chance = HOPE
    for rate in rates[: min(depth, DEEPEST)]:
        chance = rate.mean(chance)
    return min(chance, HIGHEST)


def in_odds(chance: float, factor: float) -> float:
    """The chance whose odds are `factor` times as good."""
    return factor * chance / (1 - chance + factor * chance)


def alike(odds: float) -> float:
    """The same number for odds that lie within a few percent of each other."""
    return exp(round(log(odds) * ALIKE) / ALIKE)


@dataclass
class Record:
    """How one request departs from its drafter's track: in odds, from sums that fade."""

    held: float = 0.0
    expected: float = 0.0
    failed: float = 0.0
    feared: float = 0.0

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

    def fade(self) -> None:
        self.held *= REQUEST_KEEP
        self.expected *= REQUEST_KEEP
        self.failed *= REQUEST_KEEP
        self.feared *= REQUEST_KEEP


def path_chances(tree: TokenTree, track: Track, record: Record) -> list[float]:
    """Per node: that the target's text runs through it."""
    odds = record.odds
    if tree.confidence is None:
        own = [track.level_chance(depth) for depth in tree.depths]
    else:
        own = track.node_chances(tree.confidence, tree.depths)
    chances: list[float] = []
    for parent, chance in zip(tree.parents, own, strict=True):
        above = 1.0 if parent == ROOT else chances[parent]
        better = odds * chance
        chance = better / (1 - chance + better)  # in_odds
        chances.append(above * (chance if chance < HIGHEST else HIGHEST))
    return chances


def learn(tree: TokenTree, text: list[int], track: Track, record: Record) -> None:
    """The target wrote `text` where `tree` was proposed, whether or not the tree was checked: so
    a drafter that is not trusted at present keeps being judged, for nothing."""
    record.fade()
    for depth, (siblings, token) in enumerate(_reached(tree, text), 1):
        hits = [tree.tokens[node] == token for node in siblings]
        if tree.confidence is None:
            record.learn(track.level_chance(depth), any(hits))
        else:
            for node, hit in zip(siblings, hits, strict=True):
                record.learn(track.node_chance(tree.confidence[node], depth), hit)
                track.learn_node(tree.confidence[node], depth, hit)
        track.learn_level(depth, hits)


def _reached(tree: TokenTree, text: list[int]) -> Iterator[tuple[list[int], int]]:
    """Level by level along the text: the nodes proposed there, and the token that was written."""
    for parent, token in zip([ROOT, *tree.follow(text)], text, strict=False):
        siblings = tree.children.get(parent)
        if siblings is None:
            return
        yield siblings, token
