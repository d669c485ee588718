"""What is known about drafters and passes, and the decisions that follow from it."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from math import log1p

import numpy as np

from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.shapes import Shape
from outrider.engine.policy.acceptance import BETTER, OTHERS, Record, Track, learn, path_chances
from outrider.engine.policy.choice import MARGIN, Choice, choose_nodes, margin, mean_speed
from outrider.engine.policy.concord import Concord
from outrider.engine.policy.cost import Measured, PassCost, as_many
from outrider.engine.policy.gate import LOOKING, Doubt, Pass, Pause, reading_seconds
from outrider.engine.policy.interest import LOOKING_UP, Interest
from outrider.engine.policy.moods import CPU, GPU
from outrider.engine.policy.offer import ENOUGH, Offer, Outlook, Price, Size, best_offer
from outrider.engine.policy.proof import Proof
from outrider.engine.policy.standing import Standing
from outrider.engine.policy.timing import Timing, Waiting

HOPED_GAIN = 0.5  # tokens per step that a lookup is thought to bring before it was ever asked
GAIN_KEEP = 0.98  # of the mean over all requests, which newcomers inherit
AMORTISED = 32  # steps over which a drafter's reading of a text must pay, or fewer if it ends
PACE = 2  # tokens per step, by which that is reckoned
UNPROVEN = 24  # first guesses that were judged: from then on a drafter is known
AT_FIRST = 8  # texts that it drafts for at once until then: it must read them first, maybe in vain,
TRIAL = 0.5  # and so much of a pass's time may go into that, but for one text
HOPELESS = 0.3  # of first guesses: who does no better is not thought to suit texts of another kind
EASY = 1.0  # tokens that lookups promise: where a text goes on easily, others guess better, too,
EASIER = 2.0  # and the odds of their guesses are so many times as good
SILENCE = 4.0  # wrong guesses that count as much: it is the drafter itself who thinks it would miss
THOUGHT_OVER = 8  # passes with drafts on the device, before another shape of them is considered


class Policy:
    """Estimates are kept per drafter (by name) and per request; costs are of this machine."""

    def __init__(self, calibrate: Callable[[], Measured]) -> None:
        self._calibrate = calibrate
        self.always = False  # draft whatever is proposed
        self.ahead = False  # whether passes without drafts follow each other without the host
        self.filled_up = as_many  # the rows that a pass over so many really has
        self.timings: defaultdict[str, Timing] = defaultdict(Timing)
        self.following: defaultdict[str, Timing] = defaultdict(Timing)  # drafts on the device
        self.waited = Waiting()
        self.proof = Proof()  # that drafts are faster
        self.standing = Standing()
        self.reset()

    def reset(self) -> None:
        """Forget what requests have taught; what the machine has shown stays."""
        self.tracks: defaultdict[str, Track] = defaultdict(Track)
        self.standing.reset()
        for drafter, shares in self.standing.promised.items():
            self.tracks[drafter] = Track.promised(shares)
        self._records: dict[Request, defaultdict[str, Record]] = {}
        self.concord = Concord()
        self._interests: dict[Request, dict[str, Interest]] = {}
        self._gains: defaultdict[str, float] = defaultdict(lambda: HOPED_GAIN)
        self._pauses: defaultdict[str, Pause] = defaultdict(Pause)
        self._at_work: set[str] = set()  # drafters that paid when they were last asked
        self.doubts: defaultdict[str, Doubt] = defaultdict(Doubt)
        self.lookups_doubt = Doubt(LOOKING)
        self.proof.forget()
        self._kept = 0  # passes since the shape of such drafts was thought over

    def promise(self, drafter: str, shares: Sequence[float]) -> None:
        """By depth, how often its guesses held on text that it was not trained on, once one came so
        deep: it need not show first what it can."""
        if shares:
            self.standing.promise(drafter, shares)
            self.tracks[drafter] = Track.promised(shares)

    def settle(self) -> None:
        """At the end of a step. Who has promised what does not hold here is a stranger, who may
        show what it can like others; how much its confidence is worth was seen here."""
        for drafter in self.standing.settle():
            known = self.tracks[drafter]
            self.tracks[drafter] = Track(nodes=known.nodes, others=known.others)

    @cached_property
    def cost(self) -> PassCost:
        nature = GPU if self.ahead else CPU
        return PassCost(self._calibrate(), nature=nature, filled_up=self.filled_up)

    def draft_always(self) -> None:
        """Take rows for free, so that whatever is proposed is checked: for audits, which look at
        drafts and not at speed."""
        self.cost = PassCost(Measured([1, 2], [1.0, 1.0], context=256), fixed=True)
        self.always = True

    # ---- acceptance ----

    def _record(self, request: Request, drafter: str) -> Record:
        return self._records.setdefault(request, defaultdict(Record))[drafter]

    def chances(self, request: Request, drafter: str, tree: TokenTree) -> list[float]:
        """Per node: that the target's text runs through it."""
        return path_chances(tree, self.tracks[drafter], self._record(request, drafter))

    def gains(
        self,
        requests: list[Request],
        drafter: str,
        sizes: list[Size],
        outlines: list[Shape],
        rooms: list[int],
        promised: list[float] | None = None,
        hopeful: bool = False,
    ) -> np.ndarray:
        """Before anything is drafted: the tokens that each request may expect of drafts of these
        sizes, of which it may have so many nodes: [requests, sizes]. Without `outlines`, by their
        depth. `promised`: what lookups have found for each promises so many. `hopeful`: hope for
        easy texts even of a drafter that is trusted."""
        track = self.tracks[drafter]
        odds = np.array([self._record(request, drafter).odds for request in requests])
        seen = np.array(self.seen(requests, drafter))
        judged = _tested(seen.tolist()) or (self._trusted(drafter) and not hopeful)
        if not judged and track.hope > HOPELESS:  # they may be of another kind than those before
            odds[seen < ENOUGH] *= BETTER
        if promised is not None:
            odds[np.array(promised) >= EASY] *= EASIER
        nodes, depths = np.array(sizes).T  # [sizes] each
        if outlines:
            trees, which, taken = track.outlooks(outlines, odds), depths - 1, nodes
        else:
            trees, taken = track.levels_outlook(int(depths.max()), odds)[:, None], depths
            which = np.zeros_like(depths)
        sums = np.pad(trees.cumsum(2), ((0, 0), (0, 0), (1, 0)))  # [requests, shapes, nodes]
        each = np.arange(len(requests))[:, None]
        return sums[each, which, np.minimum(taken, np.array(rooms)[:, None])]

    def curious(self, drafter: str, seen: list[int]) -> bool:
        """Whether a drafter that is trusted was not seen yet with texts like these, of which so
        many drafts each were judged."""
        return self._trusted(drafter) and not _tested(seen)

    def seen(self, requests: list[Request], drafter: str) -> list[int]:
        """How many drafts of it were judged for each."""
        return [self._record(request, drafter).seen for request in requests]

    def learn(self, request: Request, drafter: str, tree: TokenTree, text: list[int]) -> None:
        """The target wrote `text` where `drafter` proposed `tree`, checked or not."""
        record = self._record(request, drafter)
        if len(tree) and drafter in self.standing:
            self.standing.learn(drafter, bool(tree.follow(text)), record.news)
        learn(tree, text, self.tracks[drafter], record)

    def learn_silence(self, drafter: str, requests: list[Request]) -> None:
        """A drafter that costs time was asked, and found nothing worth proposing for these: no more
        is gained by that than by wrong guesses of all ranks. Where it is asked for few texts, such
        a call costs most for what it tells."""
        wrong = [0.0] * (1 + len(OTHERS))
        for request in requests:
            record = self._record(request, drafter)
            weight = max(record.news, SILENCE / len(requests))
            self.tracks[drafter].suppose_level(1, wrong, weight)
            self.standing.learn(drafter, False, record.news)
            record.seen += 1

    def release(self, request: Request) -> None:
        for drafter, record in self._records.pop(request, {}).items():
            if record.seen:
                self.tracks[drafter].part()
        self._interests.pop(request, None)

    # ---- decisions ----

    def worth_a_look(self, batch: list[Request], drafter: str, base: Pass) -> list[Request]:
        """For whom to ask a lookup: always, while what it gains is worth its time, else now and
        then to see whether that has changed. Texts that began together would come to that
        together, and all wait for it: so a few in each step."""
        if self.always:
            return batch
        price = self.look_seconds([drafter]) / self.seconds_per_token(base)
        few = self.looks([drafter], base)
        due = []
        for request in batch:
            interest = self._interest(request, drafter)
            if interest.due(price, few > 0):
                due.append(request)
                few -= interest.gain < price
        return due

    def look_seconds(self, drafters: list[str]) -> float:
        """Of these lookups, for one text."""
        return sum(self.timings[drafter].per_request or 0.0 for drafter in drafters)

    def looks(self, drafters: list[str], base: Pass) -> int:
        """For how many texts these lookups may be asked while nobody counts on what they find."""
        each = self.look_seconds(drafters)
        seconds = self.cost.seconds(base.rows, base.sequences, base.keys)
        return max(1, int(LOOKING_UP * seconds / each)) if each else base.sequences

    def seconds_per_token(self, base: Pass) -> float:
        """Without any draft."""
        seconds = self.cost.seconds(base.rows, base.sequences) - reading_seconds(base, self.cost)
        return seconds / base.writers

    def credit(self, request: Request, drafter: str, expected: float) -> None:
        """The drafter was asked, and this many tokens are expected of what it proposed."""
        self._interest(request, drafter).learn(expected)
        self._gains[drafter] += (1 - GAIN_KEEP) * (expected - self._gains[drafter])

    def _interest(self, request: Request, drafter: str) -> Interest:
        mine = self._interests.setdefault(request, {})
        if drafter not in mine:
            mine[drafter] = Interest(self._gains[drafter])
        return mine[drafter]

    def choose(self, chances: list[list[float]], base: Pass, room: int) -> Choice:
        waiting = self.waited.seconds(base.writers)
        reading = reading_seconds(base, self.cost)

        def seconds(rows: int, more: int) -> list[float]:
            plain, *others = self.cost.growing(rows, more, base.sequences, base.keys)
            return [plain - reading, *(time - reading + waiting for time in others)]

        return choose_nodes(
            chances,
            base.writers,
            base.rows,
            room,
            seconds,
            base.log_gain,
            margin=0.0 if self.always else margin(base.writers, self.ahead),
        )

    def price(
        self,
        drafter: str,
        backlogs: list[int],
        base: Pass,
        follows: bool,
        left: Sequence[int] | None = None,
    ) -> Price:
        """What drafts take; `follows`: only the first of many is made while the device waits.
        `left`: tokens that each request may still have written, where that is known.
        A draft may pay in a pass that reads prompts and in none after it, so what the drafter must
        read first has to pay at once there."""
        timing = self.timings[drafter]
        # Where others have drafted, the pass waits anyway.
        waiting = 0.0 if base.log_gain or follows else self.waited.seconds(base.writers)
        known = follows and self.following[drafter].known()
        levels = self.following[drafter] if known else timing

        # A row for each text is part of what levels were seen to take.
        whole = [timing.per_row * max(0, backlog - 1) for backlog in backlogs]
        left = [AMORTISED * PACE] * len(whole) if left is None else left
        steps = [1 if base.reading else min(AMORTISED, max(1, n // PACE)) for n in left]
        reading = [seconds / over for seconds, over in zip(whole, steps, strict=True)]
        return Price(waiting, levels.level, reading, whole)

    def goes_on(
        self,
        drafter: str,
        outlooks: list[Outlook],
        sizes: list[Size],
        lengths: list[int],
        base: Pass,
        speed: float,
    ) -> bool:
        """Whether drafts of these lengths should follow each other on the device; `speed` is what
        a pass promises that waits for the lookups instead."""
        timing = self.following[drafter]
        drafted = sum(n > 0 for n in lengths)
        if self.always or not timing.known(drafted):
            return True  # how else could it be known?

        nothing = [0.0] * len(outlooks)
        price = Price(0.0, timing.level, nothing, nothing)
        gains = [
            log1p(outlook.gains[min(length, len(sizes)) - 1])
            for outlook, length in zip(outlooks, lengths, strict=True)
            if length
        ]
        seconds = self.cost.seconds(base.rows + sum(lengths), base.sequences, base.keys)
        seconds += timing.seconds(drafted, max(lengths))
        own = mean_speed(sum(gains), base.writers, seconds)
        self._kept += 1
        if own < speed:
            return False
        if self._kept < THOUGHT_OVER:
            return True
        self._kept = 0
        best = best_offer(outlooks, sizes, base, self.cost, price)
        return best is None or best.speed < (1 + MARGIN) * own

    def pays(
        self,
        drafter: str,
        offer: Offer | None,
        outlooks: list[Outlook],
        base: Pass,
        speed: float,
    ) -> bool:
        """Whether an offer promises enough beyond `speed`. While a drafter has shown too little to
        be judged, anything is enough: how else could it show more? And one that is at work goes on
        while it gains anything: what it has not read meanwhile it would have to read later. So does
        one that is trusted: of what it then proposes the best is checked, which gains more."""
        at_work = drafter in self._at_work and not self.ahead
        sure = at_work or self._trusted(drafter)
        judged = not sure and self._known(drafter, outlooks)
        beyond = margin(base.writers, self.ahead) if judged else 0.0
        return offer is not None and offer.speed > (1 + beyond) * speed

    def _known(self, drafter: str, outlooks: list[Outlook]) -> bool:
        """In general, and for texts of this kind; or by what its training has told."""
        if self._trusted(drafter):
            return True
        seen = [outlook.seen for outlook in outlooks]
        return self.tracks[drafter].levels[0].count >= UNPROVEN and _tested(seen)

    def _trusted(self, drafter: str) -> bool:
        """Whether it was promised how often its guesses hold, and they do about as often here."""
        return self.standing.trusted(drafter, self.tracks[drafter].hope)

    def may_guess(self, drafter: str) -> int | None:
        """Nodes that are asked of a drafter that costs time, while it is a stranger; where drafts
        are captured, each size of them would have to be."""
        return None if self.ahead or self.always else self.standing.may_guess(drafter)

    def ask(
        self,
        drafter: str,
        outlooks: list[Outlook],
        sizes: list[Size],
        base: Pass,
        speed: float,
        price: Price,
        late: bool = False,
    ) -> Offer | None:
        """Whether to have a drafter that costs time draft for some of the requests. `speed` is what
        the pass promises without it. `late`: whether the next pass should wait for it."""
        offer = best_offer(outlooks, sizes, base, self.cost, price)
        pays = self.pays(drafter, offer, outlooks, base, speed)
        known = self._known(drafter, outlooks)
        hopes = [o._replace(gains=o.hoped) for o in outlooks if o.hoped is not None]
        if hopes and not pays:  # as things are with texts that it knows: these may be easier
            offer = best_offer(hopes, sizes, base, self.cost, price)
            pays, known = self.pays(drafter, offer, hopes, base, speed), False
        self._at_work.discard(drafter)
        if offer is None:
            return None
        young = self.timings[drafter].young
        if pays:
            self._at_work.add(drafter)
            self._pauses[drafter].end()
        if pays and known and not young:
            return offer
        # It is tried on texts that it has read: after a miss others may seem more promising, and
        # would have to be read, and would tell nothing of what a draft takes.
        read_first = sorted(range(len(outlooks)), key=price.whole.__getitem__)
        if pays or young:
            few = min(len(offer.chosen), AT_FIRST, self._affordable(price, read_first, base))
            return offer._replace(chosen=read_first[:few])
        if self._pauses[drafter].tick(late, 1 + self.doubts[drafter].passed):
            return offer._replace(chosen=read_first[:1])
        return None

    def _affordable(self, price: Price, texts: list[int], base: Pass) -> int:
        """How many of these texts, one after the other, may be read for a trial; one at least."""
        seconds = np.array([price.whole[i] for i in texts]).cumsum()
        most = TRIAL * self.cost.seconds(base.sequences, base.sequences, base.keys)
        return max(1, int((seconds <= most).sum()))


def _tested(seen: list[int]) -> bool:
    """Whether so many drafts were judged for texts of a batch that it is known how it goes with
    all of them: some for each of half of them, or many for a few."""
    enough = [min(drafts, AT_FIRST) for drafts in seen]
    return sum(enough) >= min(UNPROVEN, ENOUGH * len(seen) / 2)
