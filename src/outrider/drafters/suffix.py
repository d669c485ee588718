"""Suffix decoding: what followed the longest passages that the text has repeated so far."""

import math
from typing import Any, NamedTuple

from outrider.core.errors import ConfigError
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.base import DraftConfig
from outrider.drafters.copying import Continuation, Grower
from outrider.drafters.lookup import LookupDrafter
from outrider.drafters.occurrences import Archive, Matches, Occurrences
from outrider.model.loading import LoadedModel

MOST_MATCHES = 8  # in each of the two; more of them cost time and gain nothing
MOST_TOKENS = 2_000_000  # of all finished requests together; about 100 MB
PROMPT_TAIL = 24  # tokens of a finished prompt that are kept, so that its answer's start is found
# Where nobody weighs gain against cost, a less likely token is not worth its row.
LEAST_TOKEN = 0.2

TRUST_AT_FIRST = 0.4
LEARNING_RATE = 0.1  # of trust, per token
OWN_TEXT = 0.8  # by how much matches in the request's own text are trusted more than others


class Reading(NamedTuple):
    """The matches of a text as far as it was read, and how many of the matches so far went on."""

    matches: Matches
    trust: float = TRUST_AT_FIRST

    def after(self, matches: Matches, judge: bool) -> "Reading":
        """One token later, where these are the matches."""
        if not judge or not self.matches:
            return Reading(matches, self.trust)
        held = sum([length for place, length in self.matches.items() if place + 1 in matches])
        share = held / sum(self.matches.values())
        return Reading(matches, self.trust + LEARNING_RATE * (share - self.trust))


class View(NamedTuple):
    own: Reading  # of the text against itself
    shared: Reading  # against requests that have finished


class _State:
    """What is known of a running request."""

    def __init__(self, longest: int) -> None:
        self.index = Occurrences(1, MOST_MATCHES, longest)  # over its own text
        self.view = View(Reading({}), Reading({}))
        self.read = 0  # tokens


class SuffixDrafter(LookupDrafter):
    """Copies from the request's own text, and from those of requests that have finished.

    Matches of the text's end are followed from token to token. What came after them makes a tree,
    where longer matches count for more, as do more of them. Its size follows from that: paths end
    where their probability falls below `suffix_decoding_min_token_prob`.

    `suffix_decoding_max_tree_depth` is the longest match that is told from shorter ones, and the
    deepest tree. `suffix_decoding_max_spec_factor`, if given, limits the nodes to this multiple of
    the longest match. `suffix_decoding_max_cached_requests` finished requests are remembered, the
    oldest forgotten first. All users share them: texts do not depend on them, but a user can find
    out by timing what others were answered. 0 remembers nothing.
    """

    name = "suffix"
    options = {  # noqa: RUF012
        "suffix_decoding_max_tree_depth": 24,
        "suffix_decoding_max_cached_requests": 10_000,
        "suffix_decoding_max_spec_factor": None,
        "suffix_decoding_min_token_prob": 0.1,
    }

    def __init__(self, config: DraftConfig, target: LoadedModel) -> None:
        super().__init__(config, target)
        self.deepest = self._whole_number("suffix_decoding_max_tree_depth", least=2)
        self.factor = self._factor()
        least_token = 0.0 if config.num_speculative_tokens is None else LEAST_TOKEN
        self._grower = Grower(self.deepest, self._least_path(), least_token)
        texts = self._whole_number("suffix_decoding_max_cached_requests", least=0)
        index = Occurrences(2, MOST_MATCHES, self.deepest)
        self.archive = Archive(index, texts, MOST_TOKENS) if texts else None
        self._states: dict[Request, _State] = {}
        self._finished: list[list[int]] = []  # texts that the archive does not have yet

    def _whole_number(self, name: str, least: int) -> int:
        value = self.option(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{name}={value!r} must be a whole number of at least {least}")
        return value

    def _factor(self) -> float | None:
        value = self.option("suffix_decoding_max_spec_factor")
        if value is None:
            return None
        if not _is_number(value) or not 0 < value < math.inf:
            raise ConfigError(
                f"suffix_decoding_max_spec_factor={value!r} must be a number above 0, or None for "
                "no limit"
            )
        return float(value)

    def _least_path(self) -> float:
        value = self.option("suffix_decoding_min_token_prob")
        if not _is_number(value) or not 0 <= value <= 1:
            raise ConfigError(
                f"suffix_decoding_min_token_prob={value!r} must be a number from 0 to 1"
            )
        return float(value)

    def lookup(self, request: Request, ahead: list[int], budget: int) -> TokenTree:
        state = self._read(request)
        text, view = request.tokens, state.view
        if ahead:
            text = [*text, *ahead]
            for end in range(len(request.tokens), len(text)):
                view = self._read_token(state.index, view, text, end, judge=False)
        continuations = self._continuations(view, text, min(budget, self.deepest))
        if self.factor is not None:
            longest = max((found.length for found in continuations), default=0)
            budget = min(budget, int(self.factor * longest))
        return self._grower.grow(continuations, budget, self.name)

    def _read(self, request: Request) -> _State:
        """Take in what was committed since the last time."""
        state = self._states.get(request)
        if state is None:
            state = self._states[request] = _State(self.deepest)
        text = request.tokens
        if len(text) - state.read > self.deepest:
            # Matches that began earlier would not be told from those that begin here.
            state.read = len(text) - self.deepest
            state.index.extend(text, state.read)
            own, shared = state.view
            state.view = View(Reading({}, own.trust), Reading({}, shared.trust))
        for end in range(state.read, len(text)):
            judge = end >= len(request.prompt_ids)  # how a prompt goes on says little
            state.view = self._read_token(state.index, state.view, text, end, judge)
            state.index.extend(text, end + 1)  # only now, or the text's own end would be found
        state.read = len(text)
        return state

    def _read_token(
        self, index: Occurrences, view: View, text: list[int], end: int, judge: bool
    ) -> View:
        """The view one token later, that is, after text[end]."""
        own, shared = view
        own = own.after(index.following(own.matches, text, text, end), judge)
        if self.archive is not None:
            shared = shared.after(self.archive.following(shared.matches, text, end), judge)
        return View(own, shared)

    def _continuations(self, view: View, text: list[int], count: int) -> list[Continuation]:
        own, shared = view
        trust = OWN_TEXT + own.trust
        found = [
            Continuation(_repeated(text[place : place + count], count), length, trust)
            for place, length in own.matches.items()
        ]
        if self.archive is not None:
            found += [
                Continuation(self.archive.continuation(place, count), length, shared.trust)
                for place, length in shared.matches.items()
            ]
        return found

    def meanwhile(self, prompts: list[Request]) -> None:
        """A text of some hundred tokens takes as many microseconds to index: where many begin or
        end at once, all would wait for that. A pass that reads prompts is long enough for any."""
        count = len(self._finished) if prompts else 1 + len(self._finished) // 8
        if self.archive is not None:
            for text in self._finished[:count]:
                self.archive.add(text)
        del self._finished[:count]
        for request in prompts:
            self._read(request)

    def release(self, request: Request) -> None:
        self._states.pop(request, None)
        if self.archive is not None and request.output_ids:
            self._finished.append([*request.prompt_ids[-PROMPT_TAIL:], *request.output_ids])

    def reset(self) -> None:
        self._finished.clear()
        if self.archive is not None:
            self.archive.clear()


def _repeated(tokens: list[int], count: int) -> list[int]:
    """A copy that runs into the text's end goes on with itself: a loop goes on."""
    if len(tokens) < count:
        return (tokens * -(-count // len(tokens)))[:count]
    return tokens


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
