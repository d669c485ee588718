"""Retrieval: what follows in the documents where they read like the end of the text."""

import warnings
from collections import OrderedDict
from functools import cache
from random import Random
from typing import Any, NamedTuple

import numpy as np

from outrider.core.documents import Document, as_documents
from outrider.core.errors import ConfigError
from outrider.core.request import Request
from outrider.core.tree import ROOT, TokenTree
from outrider.core.verdict import Span
from outrider.drafters.base import DraftConfig
from outrider.drafters.lazy_tokens import LazyTokens
from outrider.drafters.lookup import LookupDrafter
from outrider.drafters.merging import best_nodes
from outrider.drafters.text_index import TextIndex
from outrider.model.loading import LoadedModel

WINDOW = 16  # tokens at the text's end that are looked up
VOTE = 12  # places whose next characters are the same, so many, vote for one continuation
LEAST_SHARE = 0.2  # of the votes, that a continuation needs
BRANCHES = 3  # continuations in one tree
TWIG = 8  # tokens of all but the first of them
LARGE = 50_000  # characters of a document from which it is indexed by itself
REMEMBERED = 4_000_000  # characters of documents that stay indexed, some 30 bytes each
UNFINISHED = "\ufffd"  # what a decoder writes for a part of a character


class Source:
    """Some documents that are searched together."""

    def __init__(self, texts: tuple[str, ...], tokenizer: Any) -> None:
        self.text = "\0".join(texts)
        firsts = [0, *np.cumsum([len(text) + 1 for text in texts]).tolist()]
        self.index = TextIndex(self.text)
        self.tokens = LazyTokens(self.text, firsts, tokenizer)


class Continuation(NamedTuple):
    source: Source
    place: int
    weight: float


class Texts(NamedTuple):
    """What may follow, as tokens with their weights; `total` counts all that was found."""

    each: list[tuple[list[int], float]]
    total: float


class DocumentsDrafter(LookupDrafter):
    """Copies from the documents of the request, of the engine and of its own option."""

    name = "documents"
    options = {"documents": None}  # noqa: RUF012  for all requests, only to draft from

    def __init__(self, config: DraftConfig, target: LoadedModel) -> None:
        super().__init__(config, target)
        self.tokenizer: Any = target.tokenizer
        self.given = as_documents(self.option("documents"), ConfigError)
        if self.given and self.tokenizer is None:
            raise ConfigError("drafter 'documents' needs a tokenizer, and this model has none")
        self._remembered: OrderedDict[tuple[str, ...], Source] = OrderedDict()
        self._sources: dict[Request, list[Source]] = {}

    @classmethod
    def audit_config(cls, target: str) -> dict[str, Any]:
        # Audits draw from a few words; whatever may follow some of them should stand somewhere.
        words = Random(0).choices(["red", "green", "blue", "one", "two", "a"], k=400)
        return {"method": cls.name, "documents": [" ".join(words)]}

    def serves(self, request: Request) -> bool:
        return bool(self.given or request.documents)

    def observe(self, spans: list[Span]) -> None:
        for span in spans:  # so that documents are indexed with the prompt, not while drafting
            self._sources_of(span.request)

    def release(self, request: Request) -> None:
        self._sources.pop(request, None)

    def reset(self) -> None:
        given = {document.text for document in self.given}  # no request has brought those
        self._remembered = OrderedDict(
            (texts, source) for texts, source in self._remembered.items() if given.issuperset(texts)
        )

    def _sources_of(self, request: Request) -> list[Source]:
        found = self._sources.get(request)
        if found is None:
            shared = _groups((*self.given, *request.shared_documents))
            groups = [*shared, *_groups(request.params.document_list)]
            found = [self._source(group) for group in groups if self._can_read()]
            self._sources[request] = found
        return found

    def _can_read(self) -> bool:
        if self.tokenizer.is_fast:
            return True
        warnings.warn(
            "nothing is drafted from documents: only a fast tokenizer tells where tokens end",
            stacklevel=2,
        )
        return False

    def _source(self, texts: tuple[str, ...]) -> Source:
        """Indexed once for all requests that bring the same texts; the oldest are forgotten."""
        source = self._remembered.pop(texts, None) or Source(texts, self.tokenizer)
        self._remembered[texts] = source
        size = sum(len(each.text) for each in self._remembered.values())
        while size > REMEMBERED and len(self._remembered) > 1:
            size -= len(self._remembered.popitem(last=False)[1].text)
        return source

    def lookup(self, request: Request, ahead: list[int], budget: int) -> TokenTree:
        sources = self._sources_of(request)
        if not sources or budget < 1:
            return TokenTree.empty()
        tail, begun = self._tail([*request.tokens[-WINDOW:], *ahead][-WINDOW:])
        match, total, found = _vote(sources, tail)
        texts = Texts([], total)
        for rank, (source, place, weight) in enumerate(found):
            count = budget if rank == 0 else min(budget, TWIG)
            tokens = source.tokens.after(place, len(begun) + count)
            if tokens[: len(begun)] == begun and len(tokens) > len(begun):
                texts.each.append((tokens[len(begun) :], weight))
        if not texts.each:
            return TokenTree.empty()
        # The more text there is, the more of it agrees by chance.
        reach = max(4, match - (len(found[0].source.text).bit_length() - 10) // 3)
        return self._tree(texts, [_copies(reach + 4 * depth) for depth in range(budget)])

    def _tail(self, tokens: list[int]) -> tuple[str, list[int]]:
        """The text's end, and the tokens behind it that are a part of a character only."""
        for whole in range(len(tokens), max(0, len(tokens) - 4), -1):
            text: str = self.tokenizer.decode(
                tokens[:whole], skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
            if not text.endswith(UNFINISHED):
                return text, tokens[whole:]
        return "", []

    def _tree(self, texts: Texts, copies: list[float]) -> TokenTree:
        """The texts, joined where they begin alike, and cut to the likeliest nodes.

        copies: the chance at each depth that the target follows any of them; as many as nodes may
        be proposed.
        """
        if len(texts.each) == 1:  # as mostly
            [(chain, weight)] = texts.each
            confidence = [copies[0] * weight / texts.total, *copies[1 : len(chain)]]
            return TokenTree.chain(chain, self.name, confidence=confidence)
        tokens: list[int] = []
        parents: list[int] = []
        weights: list[float] = []
        going_on = {ROOT: texts.total}  # node -> the weight of texts that do not end there
        known: dict[tuple[int, int], int] = {}  # (parent, token) -> node
        for text, weight in texts.each:
            node = ROOT
            for token in text:
                if node != ROOT:
                    going_on[node] = going_on.get(node, 0.0) + weight
                if (node, token) not in known:
                    known[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                    weights.append(0.0)
                node = known[node, token]
                weights[node] += weight
        tree = TokenTree(tokens, parents, self.name)
        tree.confidence = []
        chances: list[float] = []
        for weight, parent, depth in zip(weights, parents, tree.depths, strict=True):
            tree.confidence.append(copies[depth - 1] * weight / going_on[parent])
            chances.append(tree.confidence[-1] * (1.0 if parent == ROOT else chances[parent]))
        return tree.select(best_nodes(chances, len(copies)))


def _groups(documents: tuple[Document, ...]) -> list[tuple[str, ...]]:
    """Texts that are searched together. The few large ones stand alone: they are indexed once,
    whatever else a request brings."""
    texts = [document.text for document in documents]
    large = max(LARGE, sum(map(len, texts)) / 4)
    rest = tuple(text for text in texts if len(text) < large)
    return [*((text,) for text in texts if len(text) >= large), *([rest] if rest else [])]


def _vote(sources: list[Source], tail: str) -> tuple[int, float, list[Continuation]]:
    """The longest match in characters, the weight of all places, and the heaviest continuations."""
    found = [(source, *source.index.after(tail)) for source in sources]
    match = max((int(agree.max()) for _, _, agree in found if len(agree)), default=0)
    votes: dict[str, Continuation] = {}
    total = 0.0
    for source, places, agree in found:
        for place, length in zip(places.tolist(), agree.tolist(), strict=True):
            weight = 2.0 ** ((length - match) / 4)
            total += weight
            text = source.text[place : place + VOTE]
            other = votes.get(text, Continuation(source, place, 0.0))
            votes[text] = other._replace(weight=other.weight + weight)
    chosen = [each for each in votes.values() if each.weight >= LEAST_SHARE * total]
    return match, total, sorted(chosen, key=lambda each: -each.weight)[:BRANCHES]


@cache
def _copies(reach: int) -> float:
    """The chance that a text goes on agreeing which has agreed for so many characters.

    Fitted to answers of a small model about documents of 1 kB to 2 MB.
    """
    return 1 - 1 / (1 + (reach / 9.5) ** 2)
