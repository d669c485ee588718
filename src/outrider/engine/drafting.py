"""Who drafts for which request, and how much of it is checked."""

import sys
from dataclasses import replace
from time import perf_counter

from outrider.core.request import Request
from outrider.core.tree import TokenTree, is_chain
from outrider.core.verdict import Span, Verdict
from outrider.drafters.base import DraftConfig, Drafter
from outrider.drafters.worth import FREE, Worth
from outrider.engine.calls import Calls
from outrider.engine.crew import Crew, Plan
from outrider.engine.cutting import Cut, Proposal, worth_checking
from outrider.engine.lessons import Lessons
from outrider.engine.policy.explain import Decisions, Explanation, explain
from outrider.engine.policy.gate import Doubt, Pass
from outrider.engine.policy.interest import Rest
from outrider.engine.policy.offer import Offer
from outrider.engine.policy.policy import Policy
from outrider.engine.prospects import prospects
from outrider.model.kv import KVCache
from outrider.model.runner import Runner


class Drafting:
    def __init__(self, config: DraftConfig, runner: Runner, policy: Policy) -> None:
        self.config = config
        self.runner = runner  # the target's
        self.policy = policy
        self.crew = Crew(config, runner, policy)
        self.root = self.crew.root
        self._plans: dict[Request, Plan] = {}
        self._proposals: dict[Request, list[Proposal]] = {}  # of the step under way
        self._turn = 0  # whose text is looked up next, while drafts follow each other
        self._alone: dict[Request, Drafter] = {}  # whose proposal is checked as it is, if anyone's
        self.calls = Calls(policy, runner.vocabulary)
        self._lessons = Lessons(policy)
        self.decisions = Decisions()
        self.wanted = False  # whether a drafter that costs time should be asked in the next step
        self.hurried = False  # whether the device waits for the host, as the engine has last seen
        self._rest = Rest()

    @property
    def bytes_per_slot(self) -> int:
        return self.root.bytes_per_slot

    @property
    def workspace_bytes(self) -> int:
        return self.root.workspace_bytes

    @property
    def runners(self) -> dict[Runner, int]:
        return self.root.runners

    @property
    def adaptive(self) -> bool:
        """Whether the engine's own drafter leaves lengths to the policy."""
        return self.config.num_speculative_tokens is None and self.root.longest > 0

    @property
    def measures(self) -> bool:
        """Whether some length under way is up to the policy, so that it must know what passes
        cost."""
        return any(plan.length is None for plan in self._plans.values())

    def bind(self, kv: KVCache) -> None:
        """The slots exist now."""
        self.crew.bind(kv)

    # ---- requests ----

    def add(self, request: Request, plan: Plan) -> None:
        serving = tuple(drafter for drafter in plan.drafters if drafter.serves(request))
        self._plans[request] = replace(plan, drafters=serving)

    def can_wait(self, request: Request) -> bool:
        """Whether the next pass may start without drafts for it: none are made, or the policy
        decides, and does so again a step later."""
        plan = self._plans[request]
        return not plan.drafters or plan.length is None

    def most(self, request: Request) -> int:
        """Nodes that the request may be given in a step."""
        return self._plans[request].most

    def observe(self, spans: list[Span]) -> None:
        for drafter in self.crew.all:
            drafter.observe(spans)

    def meanwhile(self, prompts: list[Request]) -> None:
        for drafter in self.crew.all:
            drafter.meanwhile(prompts)

    def release(self, request: Request) -> None:
        self.learn()  # not of a request that is gone
        self._plans.pop(request, None)
        self._proposals.pop(request, None)
        self.policy.release(request)
        for drafter in self.crew.all:
            drafter.release(request)

    def reset(self) -> None:
        self._lessons.forget()
        self.policy.reset()
        self.decisions = Decisions()
        for drafter in self.crew.all:
            drafter.reset()

    def explain(self) -> Explanation:
        self.learn()
        names = [drafter.name for drafter in self.crew.members]
        adaptive = self.adaptive or self.measures
        return explain(self.root.name, names, adaptive, self.policy, self.decisions)

    # ---- the step ----

    def propose(
        self,
        batch: list[Request],
        budgets: list[int],
        base: Pass,
        room: int,
        late: bool = False,
    ) -> list[TokenTree]:
        """One tree per request, of at most its budget; all together at most `room` nodes.

        `base` is the pass without any draft. `late`: that pass has already begun, and the question
        is whether the next one should wait for its tokens. Then a tree, or `wanted`, says yes.
        """
        nothing = TokenTree.empty()
        self.wanted = False
        self._alone.clear()
        refused = self.runner.runs_ahead and self.policy.proof.refuses(base.sequences)
        rested = self._rest.over() and (not refused or self.policy.always)
        if not rested and all(self._plans[request].length is None for request in batch):
            self._proposals = {}
            return [nothing] * len(batch)
        self._proposals = {request: [] for request in batch}
        budget = dict(zip(batch, budgets, strict=True))
        fixed = [r for r in batch if self._plans[r].length is not None]
        free = [r for r in batch if self._plans[r].length is None]
        for drafter in self._competing(fixed):
            mine = self._drafted_by(drafter, fixed)
            self._call(drafter, mine, budget, sum(map(drafter.backlog, mine)))
        trees = {r: self._as_proposed(r) for r in fixed}
        taken = sum(len(tree) for tree in trees.values())
        base = base._replace(rows=base.rows + taken)
        if free and rested:
            start = perf_counter()
            decided = self._decide(free, budget, base, room - taken, late)
            futile = not any(map(len, decided.values())) and not self.wanted
            hurried = self.hurried and not self.policy.always
            step = self.policy.cost.seconds(base.rows, base.sequences, base.keys)
            self._rest.learn(futile, hurried, perf_counter() - start, step)
            trees |= decided
        return [trees.get(request, nothing) for request in batch]

    def _as_proposed(self, request: Request) -> TokenTree:
        proposals = self._proposals[request]
        return proposals[0].tree if proposals else TokenTree.empty()

    def _decide(
        self, batch: list[Request], budget: dict[Request, int], base: Pass, room: int, late: bool
    ) -> dict[Request, TokenTree]:
        """The lookups first; others where they promise more, or add to that."""
        # One that others' drafts or prompts join would tell nothing of that; and on a GPU, drafts
        # that follow each other would be interrupted for it.
        plain = base.rows == base.sequences and not self.runner.runs_ahead
        if plain and self.policy.cost.plain_is_due(base.sequences):
            return {}
        cut = self._look_up(batch, budget, base, room, late)
        for drafter in self._competing(batch):
            if not _is_lookup(drafter) and self._ask(drafter, batch, budget, base, cut, late):
                cut = self._cut(batch, budget, base, room, late)
        return cut.trees

    def _look_up(
        self, batch: list[Request], budget: dict[Request, int], base: Pass, room: int, late: bool
    ) -> Cut:
        """What the lookups alone promise."""
        doubt, start = self.policy.lookups_doubt, perf_counter()
        if self._lets_pass(doubt, batch):
            return self._cut(batch, budget, base, room, late)
        asked: list[tuple[Drafter, Request]] = []
        for drafter in filter(_is_lookup, self._competing(batch)):
            mine = self._drafted_by(drafter, batch)
            due = self.policy.worth_a_look(mine, drafter.name, base)
            if due:
                self._call(drafter, due, budget, backlog=0)
                asked += [(drafter, request) for request in due]
        cut = self._cut(batch, budget, base, room, late)
        for drafter, request in asked:
            self.policy.credit(request, drafter.name, cut.expected[request])
        if asked:
            step = self.policy.cost.seconds(base.rows, base.sequences, base.keys)
            paid = any(map(len, cut.trees.values()))
            doubt.answered(paid, len(batch), perf_counter() - start, step)
        return cut

    def _lets_pass(self, doubt: Doubt, batch: list[Request]) -> bool:
        """Whether a question is not put in this step. While a GPU is at a pass, it is for free."""
        return not (self.runner.runs_ahead or self.policy.always) and doubt.passes(len(batch))

    def _competing(self, batch: list[Request]) -> list[Drafter]:
        return list(dict.fromkeys(d for r in batch for d in self._plans[r].drafters))

    def _drafted_by(self, drafter: Drafter, batch: list[Request]) -> list[Request]:
        return [request for request in batch if drafter in self._plans[request].drafters]

    def _ask(
        self,
        drafter: Drafter,
        batch: list[Request],
        budget: dict[Request, int],
        base: Pass,
        cut: Cut,
        late: bool,
    ) -> bool:
        """Have a drafter that costs time draft for those requests where it pays, if any. Whether it
        has: it could not, where the pass has begun."""
        doubt, start = self.policy.doubts[drafter.name], perf_counter()
        mine = self._drafted_by(drafter, batch)
        if self._lets_pass(doubt, mine):
            return False
        backlogs = {request: drafter.backlog(request) for request in mine}
        sizes, outlooks = prospects(
            self.policy, drafter, budget, backlogs, cut.expected, cut.trees, cut.expected
        )
        ahead = base._replace(
            rows=base.rows + sum(len(tree) for tree in cut.trees.values()),
            log_gain=cut.log_gain,
        )
        follows = drafter.following is not None and drafter.following.takes(batch)
        left = [_left(request) for request in mine]
        reading = list(backlogs.values())
        price = self.policy.price(drafter.name, reading, ahead, follows, left)
        offer = self.policy.ask(drafter.name, outlooks, sizes, ahead, cut.speed, price, late)
        step = self.policy.cost.seconds(base.rows, base.sequences, base.keys)
        # By its own figures or by better ones that are hoped for; a try that promises less is none.
        paid = self.policy.pays(drafter.name, offer, outlooks, base, cut.speed)
        # Lookups that have something for everybody keep it away; a step later they may have none.
        telling = not all(len(cut.trees[request]) for request in mine)
        doubt.answered(paid, len(mine), perf_counter() - start, step, telling)
        if offer is None or late:
            self.wanted = self.wanted or offer is not None
            return False
        chosen = {mine[i]: backlogs[mine[i]] for i in offer.chosen}
        self._order(drafter, offer, chosen, budget, cut.expected)
        if follows:  # it goes on by itself only below chains of its own
            for request in chosen:
                proposals = self._proposals[request]
                if proposals and sum(proposals[-1].chances) >= cut.expected[request]:
                    self._alone[request] = drafter
        return True

    def _order(
        self,
        drafter: Drafter,
        offer: Offer,
        backlogs: dict[Request, int],
        budget: dict[Request, int],
        promised: dict[Request, float],
    ) -> None:
        """Have it draft as it has offered, for requests of which it has so much to read; lookups
        have promised so many tokens for each."""
        nodes, depth = offer.size
        if drafter.weighs:  # by its guesses, where the offer goes by what drafts were like so far
            nodes, depth = drafter.longest, drafter.depth(drafter.longest)
        few = self.policy.may_guess(drafter.name) if drafter.divisible else None
        if few is not None:  # as deep as it may: what that takes is not known yet, either
            nodes = min(few, drafter.longest)
            depth = drafter.depth(nodes)
        most = {request: min(nodes, budget[request]) for request in backlogs}
        worth = offer.worth._replace(promised=promised)
        self._call(drafter, list(backlogs), most, sum(backlogs.values()), depth, worth)

    def _call(
        self,
        drafter: Drafter,
        batch: list[Request],
        budget: dict[Request, int],
        backlog: int,
        depth: int | None = None,
        worth: Worth = FREE,
    ) -> None:
        """Have one drafter propose for a batch; the policy asks for no more than its longest."""
        budgets = [
            budget[r] if self._plans[r].length is not None else min(budget[r], drafter.longest)
            for r in batch
        ]
        found = self.calls(drafter, batch, budgets, backlog, depth, worth)
        for request, proposal in found.items():
            self._proposals[request].append(proposal)

    def _cut(
        self, batch: list[Request], budget: dict[Request, int], base: Pass, room: int, late: bool
    ) -> Cut:
        """Of all that was proposed for these, what is worth checking."""
        proposals = {request: self._proposals[request] for request in batch}
        return worth_checking(self.policy, proposals, self._alone, budget, base, room, late)

    # ---- drafts that follow each other on the device ----

    def leader(
        self, batch: list[Request], trees: list[TokenTree], base: Pass, room: int
    ) -> Drafter | None:
        """While the pass that checks these trees is under way: the drafter that may go on by
        itself, with chains of the same lengths for the same texts. `room`: nodes that a pass may
        have."""
        drafter = self._author(trees)
        if drafter is None or drafter.following is None:
            return None
        if not drafter.following.fits(batch, trees):
            return None
        mine = self._drafted_by(drafter, batch)
        free = [request for request in mine if self._plans[request].length is None]
        chains = dict(zip(batch, trees, strict=True))
        if any(not len(chains[request]) for request in mine if request not in free):
            return None  # it was promised drafts
        if free and not self.policy.always and self.policy.proof.stopped(base.sequences):
            return None
        if free and not self._keeps_shape(drafter, mine, chains, base, room):
            return None
        return drafter

    def _keeps_shape(
        self,
        drafter: Drafter,
        batch: list[Request],
        chains: dict[Request, TokenTree],
        base: Pass,
        room: int,
    ) -> bool:
        """Whether nothing promises more than chains of these lengths once more."""
        each = max(1, room // len(chains))
        budget = {request: min(self.most(request), each) for request in chains}
        self._alone.clear()
        under_way = self._proposals
        if any(under_way.values()):  # the host has had them drafted: the lookups were asked as well
            self._proposals = {
                request: [p for p in under_way.get(request, ()) if _is_lookup(p.drafter)]
                for request in chains
            }
            cut = self._cut(list(chains), budget, base, room, late=True)
            self._proposals = under_way
        else:
            self._proposals = {request: [] for request in chains}
            cut = self._look_up(self._in_turn(list(chains), base), budget, base, room, late=True)
        nothing = dict.fromkeys(batch, 0.0)
        read = dict.fromkeys(batch, 0)
        sizes, outlooks = prospects(self.policy, drafter, budget, read, nothing, {}, cut.expected)
        lengths = [len(chains[request]) for request in batch]
        return self.policy.goes_on(drafter.name, outlooks, sizes, lengths, base, cut.speed)

    def _in_turn(self, batch: list[Request], base: Pass) -> list[Request]:
        """Those of whom the lookups are asked now: the device does not wait for what they find, but
        it would for the host to have asked for all of many texts in every pass."""
        lookups = [drafter.name for drafter in filter(_is_lookup, self._competing(batch))]
        count = self.policy.looks(lookups, base)
        if count >= len(batch):
            return batch
        first = self._turn % len(batch)
        self._turn = first + count
        return [*batch, *batch][first : first + count]

    def _author(self, trees: list[TokenTree]) -> Drafter | None:
        """Whose chains these are, if they are nobody else's."""
        drafted = [tree for tree in trees if len(tree)]
        names = {tree.source for tree in drafted}
        if len(names) > 1 or not all(is_chain(tree.parents) for tree in drafted):
            return None
        return next((drafter for drafter in self.crew.members if drafter.name in names), None)

    def proposed(self, drafter: Drafter, batch: list[Request], trees: list[TokenTree]) -> None:
        """What a drafter that went on by itself has proposed in the step under way."""
        for request, tree in zip(batch, trees, strict=True):
            chances = self.policy.chances(request, drafter.name, tree)
            mine = self._proposals.setdefault(request, [])
            mine.append(Proposal(drafter, tree, chances))

    def followed(self, drafter: Drafter, spans: list[Span], slots: dict[Request, int]) -> None:
        """The drafter goes on by itself, and has read what was committed for those who have more
        than one of the `slots` of its pass."""
        for request, start, _ in spans:
            if request in self._plans and slots.get(request, 1) > 1:
                drafter.followed(request, start + 1)

    def review(self, batch: list[Request], trees: list[TokenTree], verdicts: list[Verdict]) -> None:
        """What the target wrote, held against all that was proposed, checked or not."""
        checked: dict[Drafter, list[tuple[Request, TokenTree, Verdict]]] = {}
        if not any(self._proposals.values()):
            self.decisions.count(len(batch), 0, 0, times=len(batch))
            return
        for request, tree, verdict in zip(batch, trees, verdicts, strict=True):
            text = [*(tree.tokens[node] for node in verdict.kept), verdict.next_token]
            self.decisions.count(len(batch), len(tree), len(verdict.kept))
            proposals = self._proposals.get(request, ())
            self._lessons.note(request, proposals, text)
            owners = {p.drafter for p in proposals if p.tree.source == tree.source}
            if len(owners) == 1 and len(tree):  # not merged
                checked.setdefault(owners.pop(), []).append((request, tree, verdict))
        for drafter, entries in checked.items():
            requests, own, said = map(list, zip(*entries, strict=True))
            drafter.review(requests, own, said)
        self._proposals.clear()

    def learn(self) -> None:
        """Tell the policy of the last review."""
        self._lessons.learn()


def _left(request: Request) -> int:
    """Tokens that it may still be written, at most."""
    most = request.params.max_tokens
    return sys.maxsize if most is None else most - request.position


def _is_lookup(drafter: Drafter) -> bool:
    """Takes microseconds, and its proposals may be cut at will: no need to think beforehand."""
    return drafter.light and drafter.divisible
