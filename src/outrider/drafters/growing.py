"""Drafting with probabilities: chains and trees, level by level, one pass per depth for all."""

from time import perf_counter

from torch import Tensor

from outrider.core.errors import ConfigError
from outrider.core.request import Request
from outrider.core.tree import ROOT, TokenTree
from outrider.core.verdict import Verdict
from outrider.drafters.base import DraftConfig, Drafter
from outrider.drafters.candidates import Found, candidates
from outrider.drafters.growth import Draft, Grown, Planned, Prices, going_on
from outrider.drafters.ranks import MeasuredShapes
from outrider.drafters.shapes import Shape, chain, described
from outrider.drafters.worth import FREE, Worth
from outrider.model.loading import LoadedModel
from outrider.sampling.counts import Counts
from outrider.sampling.guess import Known
from outrider.sampling.process import process, unadjusted
from outrider.sampling.rows import Row

DEPTH = 8  # deepest node where the shape is not given
MEASURED = ("optimal", "confidence")  # shapes that are not given
BUSHY = 16  # nodes that the policy may ask for where trees branch


class GrowingDrafter(Drafter):
    """A drafter that has logits after any node. `tree` says how it grows:

    - "chain": one guess after the other;
    - a list: the shape, as branching factors or as paths (see shapes.py);
    - "optimal": the shape that the acceptance and the costs measured so far make best;
    - "confidence": the nodes of highest path probability.

    A subclass gives the logits, over the target's tokens or over those that `known` names.
    `counts` must exist before anything is proposed.
    """

    options = {"tree": "chain", "depth": None}  # noqa: RUF012
    counts: Counts
    known: Known | None = None

    def __init__(self, config: DraftConfig, target: LoadedModel) -> None:
        super().__init__(config, target)
        self.measured = MeasuredShapes()
        self._tree = config.options.get("tree") or self._usual_tree(target)
        self._depth: int = config.options.get("depth") or DEPTH
        self._shape = None
        if self._tree in MEASURED:
            self.longest = BUSHY
        elif self._tree != "chain":
            self._shape = described(self._tree)
            self.longest = len(self._shape)

    @classmethod
    def check_options(cls, config: DraftConfig) -> None:
        super().check_options(config)
        tree, depth = config.options.get("tree", "chain"), config.options.get("depth")
        if tree != "chain" and tree not in MEASURED:
            described(tree)
        if tree == "confidence" and config.verification == "traversal":
            raise ConfigError(
                "tree='confidence' cannot be combined with verification='traversal': its shape "
                "depends on the tokens that are drawn, which would bias the text; use "
                "tree='optimal' or verification='coupled'"
            )
        if depth is not None and tree not in MEASURED:
            raise ConfigError(
                f"depth={depth!r} belongs to tree='optimal' or 'confidence'; the depth of "
                f"tree={tree!r} follows from the tree"
            )
        if depth is not None and (
            isinstance(depth, bool) or not isinstance(depth, int) or depth < 1
        ):
            raise ConfigError(f"depth={depth!r} must be a whole number of at least 1")

    # ---- what a subclass gives ----

    def _usual_tree(self, target: LoadedModel) -> str:
        """Where none is asked for."""
        return "chain"

    def _deepest(self, request: Request) -> int:
        """How deep a tree may be below the request's text."""
        raise NotImplementedError

    def _read(self, requests: list[Request]) -> Tensor:
        """Logits [requests, known tokens] after each text."""
        raise NotImplementedError

    def _pass(self, drafts: list[Draft]) -> Tensor:
        """Logits [all nodes of all frontiers, known tokens] after each node."""
        raise NotImplementedError

    # ---- the loop ----

    def level(self, drafts: list[Draft]) -> Tensor:
        """Logits [all nodes of all frontiers, known tokens] of drafts that are equally deep."""
        if drafts[0].frontier == [ROOT]:
            return self._read([draft.request for draft in drafts])
        return self._pass(drafts)

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        return self._grow(batch, budgets, self._depth, FREE)

    @property
    def weighs(self) -> bool:
        return self._tree == "confidence"

    def propose_to(
        self, batch: list[Request], budgets: list[int], depth: int, worth: Worth = FREE
    ) -> list[TokenTree]:
        if self._tree not in MEASURED:
            return self.propose(batch, budgets)
        return self._grow(batch, budgets, depth, worth)

    def _grow(
        self, batch: list[Request], budgets: list[int], depth: int, worth: Worth
    ) -> list[TokenTree]:
        drafts = [
            self._begin(request, budget, depth, worth)
            for request, budget in zip(batch, budgets, strict=True)
        ]
        times = self.measured.level_times
        active = [draft for draft in drafts if draft.frontier]
        if active:
            self._extend(active, self.level(active))
        self.levels = 1
        while active := going_on([draft for draft in active if draft.frontier], times):
            start, prepared = perf_counter(), self.prepared
            self._extend(active, self.level(active))
            self.levels += 1
            if self.prepared == prepared:
                times.learn(perf_counter() - start, len(active))
        return [draft.tree(self.name) for draft in drafts]

    def review(self, batch: list[Request], trees: list[TokenTree], verdicts: list[Verdict]) -> None:
        self.measured.learn(trees, verdicts)

    def reset(self) -> None:
        self.measured = MeasuredShapes(self.measured.level_times)

    def depth(self, nodes: int) -> int:
        if self._shape is not None:
            return max(self._shape.depths[:nodes], default=0)  # the best nodes come first
        return nodes if self._tree == "chain" else min(nodes, self._depth)

    def outlines(self, nodes: int) -> list[Shape]:
        if self._tree not in MEASURED:
            return []
        deepest = min(nodes, self._depth)
        return [self.measured.likeliest(nodes, depth) for depth in range(1, deepest + 1)]

    def _begin(self, request: Request, budget: int, depth: int, worth: Worth) -> Draft:
        deepest = max(0, self._deepest(request))
        if self._tree == "confidence":
            holds = min(1.0, sum(self.measured.acceptance.rates))
            promised = worth.promised.get(request, 0.0)
            prices = Prices(worth.second, worth.row, holds, promised)
            return Grown(request, budget, min(depth, deepest), prices)
        if self._tree == "chain":
            shape = chain(min(budget, deepest))
        elif self._shape is not None:
            shape = self._shape.cut(budget, deepest)
        else:
            shape = self.measured.shape(budget, min(depth, deepest), self.pass_seconds)
        return Planned(request, shape)

    def _extend(self, drafts: list[Draft], logits: Tensor) -> None:
        """Find children for all frontiers, by the target's own rules, so that the two agree often.

        logits [all nodes of all frontiers, known tokens]
        """
        open_nodes = [(draft, node) for draft in drafts for node in draft.frontier]
        rows = [Row(draft.request, draft.path_tokens(node)) for draft, node in open_nodes]
        wanted = [draft.wanted(node) for draft, node in open_nodes]
        lanes = [node + 1 for _, node in open_nodes]
        found = self._find(logits, rows, wanted, lanes)
        for (draft, node), children in zip(open_nodes, found, strict=True):
            draft.add(node, children)
        for draft in drafts:
            draft.advance()

    def _find(
        self, logits: Tensor, rows: list[Row], wanted: list[int], lanes: list[int]
    ) -> list[Found]:
        """Children after every row; logits [rows, known tokens]."""
        coupled = self.config.verification == "coupled"
        known = self.known
        # Temperature and truncation are the same over fewer tokens; the rest goes by token.
        if known and not (coupled and all(unadjusted(row.request) for row in rows)):
            logits, known = known.spread(logits), None
        scores = process(logits, rows, self.counts)
        if coupled:
            return candidates(scores, rows, wanted, known=known)
        if self._tree != "chain":
            scores = (
                scores.double()
            )  # a sibling is drawn from what the first one leaves: 1e-40, say
        # Traversal tests a token against the q it was drawn from. How likely it was to be drawn
        # says nothing about that; how often its rank has passed does.
        found = candidates(scores, rows, wanted, lanes)
        rates = self.measured.acceptance.rates
        return [
            children
            if children.q is None
            else children._replace(
                confidence=[rates[min(i, len(rates) - 1)] for i in range(len(children.tokens))]
            )
            for children in found
        ]
