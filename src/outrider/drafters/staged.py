"""A draft model that is itself sped up: a lookup guesses what it will write, and one pass of it
checks several guesses."""

from array import array

from torch import Tensor

from outrider.core.errors import ConfigError
from outrider.core.request import Request
from outrider.core.tree import ROOT, TokenTree
from outrider.core.verdict import Span, Verdict
from outrider.drafters.base import DraftConfig
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.growth import Planned
from outrider.drafters.lookup import LookupDrafter
from outrider.drafters.registry import drafter_class, drafter_names, make_drafter, parse_config
from outrider.drafters.shapes import chain
from outrider.model.kv import KVCache
from outrider.model.loading import LoadedModel
from outrider.model.segment import Segment
from outrider.sampling.rows import Row


class StagedDrafter(DraftModelDrafter):
    """Writes the drafts that `draft_model` would write as chains, in fewer passes: the draft model
    chooses every token itself, with the noise of that token's place, whoever guessed it."""

    name = "staged"
    options = {  # noqa: RUF012
        "model": None,
        "revision": None,
        "dtype": None,
        "quantization": None,
        "drafter": None,
    }
    longest = 8

    def __init__(
        self, config: DraftConfig, target: LoadedModel, loaded: LoadedModel | None = None
    ) -> None:
        super().__init__(config, target, loaded)
        inner = _inner_config(config)
        made = make_drafter(inner, target)
        assert isinstance(made, LookupDrafter)
        self.inner = made
        given = inner.num_speculative_tokens
        self._longest_guess = made.longest if given is None else given

    @classmethod
    def check_options(cls, config: DraftConfig) -> None:
        super().check_options(config)
        inner = _inner_config(config)
        drafter_class(inner.method).check_options(inner)

    def bind(self, kv: KVCache) -> None:
        super().bind(kv)
        self.inner.bind(kv)

    def review(self, batch: list[Request], trees: list[TokenTree], verdicts: list[Verdict]) -> None:
        super().review(batch, trees, verdicts)
        self.inner.review(batch, trees, verdicts)

    def observe(self, spans: list[Span]) -> None:
        super().observe(spans)
        self.inner.observe(spans)

    def meanwhile(self, prompts: list[Request]) -> None:
        self.inner.meanwhile(prompts)

    def release(self, request: Request) -> None:
        super().release(request)
        self.inner.release(request)

    def reset(self) -> None:
        super().reset()
        self.inner.reset()

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        drafts = [
            Planned(request, chain(max(0, min(budget, self._deepest(request)))))
            for request, budget in zip(batch, budgets, strict=True)
        ]
        active = [draft for draft in drafts if draft.frontier]
        while active:
            guesses = [self._guess(draft) for draft in active]
            if active[0].frontier == [ROOT]:  # nobody has a token yet: the texts come first
                ahead = {d.request: guess for d, guess in zip(active, guesses, strict=True)}
                logits = self._read(list(ahead), ahead)
            else:
                logits = self._check(active, guesses)
            self._take(active, guesses, logits)
            active = [draft for draft in active if draft.frontier]
        return [draft.tree(self.name) for draft in drafts]

    def _guess(self, draft: Planned) -> list[int]:
        """What the draft model may write next. It adds a token of its own to a guess that holds."""
        drafted = draft.path_tokens(draft.frontier[0])
        room = min(len(draft.shape) - len(drafted) - 1, self._longest_guess)
        if room <= 0:
            return []
        tree = self.inner.lookup(draft.request, drafted, room)
        guess: list[int] = []
        node = ROOT
        while node in tree.children:
            node = tree.children[node][0]
            guess.append(tree.tokens[node])
        return guess

    def _check(self, drafts: list[Planned], guesses: list[list[int]]) -> Tensor:
        """Logits [drafts + guessed tokens, vocabulary]: after each draft's newest token, then
        after each token that is guessed to follow it."""
        segments = []
        for draft, guess in zip(drafts, guesses, strict=True):
            request, newest = draft.request, draft.frontier[0]
            nodes = request.reserved[request.pending :]
            context: array = request.slots + request.reserved[: request.pending] + nodes[:newest]
            tokens = [draft.tokens[newest], *guess]
            slots = nodes[newest : newest + len(tokens)]
            segments.append(Segment.chain(tokens, slots, context, 0))
        logits = self._forward(segments)
        for draft, guess in zip(drafts, guesses, strict=True):
            *before, newest = draft.path_tokens(draft.frontier[0])
            self._note(draft.request, before, [newest, *guess])
        return logits

    def _take(self, drafts: list[Planned], guesses: list[list[int]], logits: Tensor) -> None:
        """Have the draft model choose: up to and with its first token that was not guessed."""
        rows = [
            Row(draft.request, draft.path_tokens(draft.frontier[0]) + guess[:end])
            for draft, guess in zip(drafts, guesses, strict=True)
            for end in range(len(guess) + 1)
        ]
        lanes = [len(row.path) for row in rows]
        choices = iter(self._find(logits, rows, [1] * len(rows), lanes))
        for draft, guess in zip(drafts, guesses, strict=True):
            own = [next(choices) for _ in range(len(guess) + 1)]
            for found, guessed in zip(own, [*guess, None], strict=True):
                draft.add(draft.frontier[0], found)
                draft.advance()
                if not draft.frontier or found.tokens[0] != guessed:
                    break


def _inner_config(config: DraftConfig) -> DraftConfig:
    given = config.options.get("drafter")
    if given is None:
        given = "suffix" if "suffix" in drafter_names() else "ngram"
    if isinstance(given, dict) and "verification" in given:
        raise ConfigError(
            "drafter 'staged': its inner 'drafter' has no 'verification'; the draft model checks "
            "every guess itself"
        )
    inner = parse_config(given)
    if not issubclass(drafter_class(inner.method), LookupDrafter):
        raise ConfigError(
            f"drafter 'staged' cannot be sped up by {inner.method!r}, which is no lookup; use a "
            "drafter that copies, e.g. 'ngram'"
        )
    return inner
