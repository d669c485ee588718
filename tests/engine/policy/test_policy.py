"""What the policy remembers of whom, and what its decisions take into account."""

import pytest
from tests.engine.policy.replay import STEPPED

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import ROOT, TokenTree
from outrider.drafters.shapes import Shape
from outrider.engine.policy.cost import Measured
from outrider.engine.policy.gate import SHORTEST_PAUSE, Pass
from outrider.engine.policy.interest import RARELY, Interest
from outrider.engine.policy.moods import CPU, GPU
from outrider.engine.policy.offer import ENOUGH, Outlook, Size
from outrider.engine.policy.policy import AMORTISED, AT_FIRST, PACE, THOUGHT_OVER, UNPROVEN, Policy
from outrider.engine.policy.timing import FIRST, Timing

FLAT = Measured([1, 64], [10.0, 10.0], context=256)  # rows cost nothing
ALONE = Pass(1, 1, 1, 0)


def make(measured: Measured = STEPPED) -> Policy:
    return Policy(lambda: measured)


def ask() -> Request:
    return Request("r", [1, 2], SamplingParams(), seed=0)


def test_requests_are_told_apart_before_anything_is_drafted() -> None:
    policy, good, bad = make(), ask(), ask()
    for _ in range(20):
        policy.learn(good, "d", TokenTree.chain([5, 6], "d"), [5, 6, 7])
        policy.learn(bad, "d", TokenTree.chain([5, 6], "d"), [9])
    sizes = [Size(1, 1), Size(2, 2)]
    well, badly, new = policy.gains([good, bad, ask()], "d", sizes, [], [2, 2, 2])
    assert badly[0] + 0.1 < new[0] < well[0] - 0.1
    assert well[0] < well[1] < 2 * well[0]
    assert policy.gains([good], "d", sizes, [], [1]).tolist() == [[well[0]] * 2]  # no room for two


def test_where_lookups_promise_something_more_is_expected_of_others() -> None:
    policy, sizes = make(), [Size(1, 1)]
    for _ in range(20):
        policy.learn(ask(), "d", TokenTree.chain([5], "d"), [5])
        policy.learn(ask(), "d", TokenTree.chain([5], "d"), [9])
    batch = [ask(), ask(), ask()]
    [alone], [little], [much] = policy.gains(batch, "d", sizes, [], [1] * 3, [0.0, 0.5, 1.5])
    assert alone == little == policy.gains(batch, "d", sizes, [], [1] * 3)[0][0]
    assert much / (1 - much) == pytest.approx(2 * alone / (1 - alone))


def test_who_has_left_is_forgotten() -> None:
    policy, request = make(), ask()
    policy.learn(request, "d", TokenTree.chain([5], "d"), [5])
    policy.credit(request, "d", 1.0)
    policy.release(request)
    assert not policy._records and not policy._interests


def asked(policy: Policy, backlog: int = 0, speed: float = 1 / 50, reads: bool = False) -> bool:
    """Whether a drafter is asked whose tokens take a tenth of a pass each and are right nine times
    of ten; `speed` is promised without it."""
    policy.timings["d"] = Timing(None, {1: 5.0}, FIRST)
    outlook = Outlook([0.9, 1.71, 2.44], 0.0, 3)
    sizes = [Size(n, n) for n in (1, 2, 3)]
    base = ALONE._replace(rows=2, reading=1) if reads else ALONE
    price = policy.price("d", [backlog], base, False)
    return policy.ask("d", [outlook], sizes, base, speed, price) is not None


def test_steps_that_went_by_without_the_question_bring_the_next_trial_nearer() -> None:
    policy = make()
    assert not asked(policy, backlog=50_000)  # a step of the pause
    policy.doubts["d"].passed = SHORTEST_PAUSE - 2
    assert asked(policy, backlog=50_000)


def test_a_text_that_must_be_read_first_makes_a_draft_dearer() -> None:
    assert asked(make())
    assert asked(make(), backlog=50)
    assert asked(make(), backlog=1500)
    assert not asked(make(), backlog=1500, reads=True)  # who knows whether it is used again?
    assert asked(make(), reads=True)
    assert not asked(make(), backlog=50_000)


def test_beside_prompts_a_draft_must_pay_as_beside_none() -> None:
    """A pass that is long because it reads prompts does not make the tokens of a draft dearer."""
    policy = make(Measured([1, 1000], [10.0, 1009.0 + 10.0], context=256))  # each row costs 1
    for reading in (0, 500):
        base = Pass(1, 1 + reading, 1, 0, reading)
        for chance, rows in ((0.3, 1), (0.05, 0)):
            assert policy.choose([[chance]], base, 64).kept == [list(range(rows))]
        policy.timings["d"] = Timing(None, {1: 3.0}, FIRST)
        price = policy.price("d", [0], base, follows=False)
        speed = policy.choose([], base, 64).speed
        assert speed == pytest.approx(1 / 10.0)
        assert policy.seconds_per_token(base) == pytest.approx(10.0)
        for gain, taken in ((0.6, True), (0.3, False)):  # 14 instead of 10
            offer = policy.ask("d", [Outlook([gain], 0.0, 1)], [Size(1, 1)], base, speed, price)
            assert (offer is not None) is taken


def test_a_small_gain_is_taken_for_one_text_and_not_for_many() -> None:
    """A fortieth faster, by tokens from nowhere or by a drafter: within the margin of 16 texts."""
    for texts, taken in ((1, True), (16, False)):
        policy = make(FLAT)
        base = Pass(texts, texts, texts, 0)
        kept = policy.choose([[0.025] for _ in range(texts)], base, 64).kept
        assert kept == [[0] if taken else []] * texts
        policy.timings["d"] = Timing(None, {1: 0.0}, FIRST)
        outlooks = [Outlook([0.025], 0.0, 1) for _ in range(texts)]
        price = policy.price("d", [0] * texts, base, follows=False)
        question = ("d", outlooks, [Size(1, 1)], base, 1 / 10.0, price)
        assert policy.ask(*question) is not None  # one that nobody knows must show what it can
        for _ in range(UNPROVEN):
            policy.learn(ask(), "d", TokenTree.chain([5], "d"), [5])
        policy._at_work.clear()
        assert (policy.ask(*question) is not None) is taken


@pytest.mark.parametrize(("right", "tried"), [(4, True), (0, False)])
def test_texts_of_another_kind_are_tried_again(right: int, tried: bool) -> None:
    """The drafter was right so many times of ten for those before; for new ones it may be better,
    if it was right at all."""
    texts, policy = 2 * AT_FIRST, make(FLAT)
    policy.timings["d"] = Timing(None, {1: 5.0}, FIRST)  # half of a pass
    for number in range(4 * UNPROVEN):
        hit = 5 if number % 10 < right else 9
        policy.learn(ask(), "d", TokenTree.chain([5], "d"), [hit])
    batch, base = [ask() for _ in range(texts)], Pass(texts, texts, texts, 0)
    price = policy.price("d", [0] * texts, base, follows=False)

    def chosen() -> int:
        sizes, drafts = [Size(1, 1)], policy.seen(batch, "d")
        gains = policy.gains(batch, "d", sizes, [], [1] * texts)
        outlooks = [Outlook(own, 0.0, 1, 0, n) for own, n in zip(gains, drafts, strict=True)]
        offer = policy.ask("d", outlooks, sizes, base, 1 / 10.0, price)
        return len(offer.chosen) if offer else 0

    assert chosen() == (AT_FIRST if tried else 0)
    for request in batch[:AT_FIRST]:
        for _ in range(ENOUGH):
            policy.learn(request, "d", TokenTree.chain([5], "d"), [9])
    assert chosen() == 0  # it is as bad for them


def test_a_drafter_that_is_at_work_goes_on_while_it_gains_anything() -> None:
    """What it has not read while it was left out it would have to read later."""
    texts = 16
    policy = make(FLAT)
    policy.timings["d"] = Timing(None, {1: 0.0}, FIRST)
    for _ in range(UNPROVEN):
        policy.learn(ask(), "d", TokenTree.chain([5], "d"), [5])
    base = Pass(texts, texts, texts, 0)
    price = policy.price("d", [0] * texts, base, follows=False)

    def drafts(gain: float) -> bool:
        outlooks = [Outlook([gain], 0.0, 1) for _ in range(texts)]
        return policy.ask("d", outlooks, [Size(1, 1)], base, 1 / 10.0, price) is not None

    assert [drafts(gain) for gain in (0.02, 0.1, 0.02)] == [False, True, True]
    assert [drafts(gain) for gain in (0.0, 0.02)] == [False, False]
    policy.ahead = True  # a device would be interrupted in each step
    assert [drafts(gain) for gain in (0.5, 0.1)] == [True, False]


def test_a_gpu_is_another_machine_to_the_cost_model() -> None:
    for ahead, nature in ((True, GPU), (False, CPU)):
        policy = make()
        policy.ahead = ahead
        assert policy.cost.nature == nature


def test_drafts_that_interrupt_passes_of_a_device_must_promise_more() -> None:
    base = Pass(32, 32, 32, 0)
    for ahead in (False, True):
        policy = make(FLAT)
        policy.ahead = ahead
        kept = policy.choose([[0.1] for _ in range(32)], base, 64).kept
        assert kept == [[] if ahead else [0]] * 32


def test_one_that_nobody_knows_drafts_for_a_few_texts_at_first() -> None:
    """It would have to read all of them, and that is lost where its drafts do not pay."""
    texts = 3 * AT_FIRST
    policy = make(FLAT)
    base = Pass(texts, texts, texts, 0)
    outlooks = [Outlook([0.9], 0.0, 1) for _ in range(texts)]

    def chosen(calls: int) -> int:
        policy.timings["d"] = Timing(None, {1: 0.0}, calls)
        price = policy.price("d", [0] * texts, base, follows=False)
        offer = policy.ask("d", outlooks, [Size(1, 1)], base, 1 / 10.0, price)
        return len(offer.chosen) if offer else 0

    assert chosen(FIRST) == AT_FIRST
    for _ in range(UNPROVEN):
        policy.learn(ask(), "d", TokenTree.chain([5], "d"), [5])
    assert chosen(FIRST) == texts
    assert chosen(0) == AT_FIRST  # what it takes is not known, either


def test_the_few_are_those_that_it_has_read() -> None:
    """Others may seem more promising, after a miss; to read them all is what must not be."""
    texts = 2 * AT_FIRST
    policy = make(FLAT)
    policy.timings["d"] = Timing(None, {1: 0.0}, 0, 0.001)
    base = Pass(texts, texts, texts, 0)
    outlooks = [Outlook([0.9 + 0.001 * i], 0.0, 1) for i in range(texts)]
    backlogs = [3] * AT_FIRST + [60] * AT_FIRST
    # Though what is left to be read of the first would have to pay at once.
    left = [1] * AT_FIRST + [1000] * AT_FIRST
    price = policy.price("d", backlogs, base, follows=False, left=left)
    offer = policy.ask("d", outlooks, [Size(1, 1)], base, 1 / 10.0, price)
    assert offer is not None and sorted(offer.chosen) == list(range(AT_FIRST))


def test_so_is_the_one_of_a_trial() -> None:
    policy = make(FLAT)
    policy.timings["d"] = Timing(None, {1: 50.0}, FIRST, 0.001)
    policy._pauses["d"].left = 1
    base, backlogs = Pass(3, 3, 3, 0), [100, 3, 200]
    price = policy.price("d", backlogs, base, follows=False)
    outlooks = [Outlook([gain], 0.0, 1) for gain in (0.9, 0.1, 0.5)]
    offer = policy.ask("d", outlooks, [Size(1, 1)], base, 1 / 10.0, price)
    assert offer is not None and offer.chosen == [1]


def test_what_reading_takes_is_measured() -> None:
    """By what a row takes in a draft, eight texts of some hundred tokens could never begin."""
    policy = make()
    policy.timings["d"] = timing = Timing(None, {1: 5.0}, FIRST)
    timing.learn_reading(15.0 + 100.0, 5000, 1, 3)
    timing.learn_reading(1.0, 5000, 1, 3)  # nothing is read in less than no time
    price = policy.price("d", [5000], ALONE, follows=False)
    # All but the row that every draft begins with: its time is a level's.
    assert price.seconds([0], 3) == pytest.approx(15.0 + 100.0 * 4999 / 5000 / AMORTISED)


def test_what_reading_takes_is_seen_best_where_much_is_read() -> None:
    """Of a few rows, most of what a call takes is its drafts, and how long these take is a guess:
    one that takes a little longer than usual must not make prompts seem dear."""
    stranger = Timing()
    stranger.learn_reading(100.0, 50, 1, 1)  # most of that may have been its levels
    assert stranger.per_row == 2.0
    stranger.learn(5.0, 1, 1)
    stranger.learn_reading(5.0 + 1.0, 20, 1, 1)
    assert stranger.per_row == pytest.approx(0.05)
    timing = Timing(None, {1: 5.0}, FIRST)
    timing.learn_reading(5.0 + 100.0, 2000, 1, 1)
    for surprise in (6.0, 0.1, 5.0):
        timing.learn_reading(5.0 + surprise, 20, 1, 1)
        assert timing.per_row == pytest.approx(0.05, rel=0.25)
    timing.learn_reading(5.0 + 400.0, 2000, 1, 1)
    assert timing.per_row > 0.12  # that much is no guess, though it may have been interrupted
    timing.learn_reading(5.0 + 100.0, 2000, 1, 1)
    assert timing.per_row == pytest.approx(0.06, rel=0.1)


def test_what_must_be_read_pays_before_the_text_ends() -> None:
    policy = make()
    policy.timings["d"] = Timing(None, {1: 5.0}, FIRST, 0.01)
    left = [2 * AMORTISED * PACE, 10 * PACE, 1]
    price = policy.price("d", [101] * 3, ALONE, follows=False, left=left)
    assert price.reading == pytest.approx([1 / AMORTISED, 1 / 10, 1.0])
    assert price.whole == pytest.approx([1.0] * 3)


def promised(*shares: float) -> Policy:
    policy = make(FLAT)
    policy.promise("d", shares)
    policy.timings["d"] = Timing(None, {1: 0.0}, FIRST, 0.0)
    return policy


def offered(policy: Policy, texts: int, others: float = 1.0) -> int:
    """Texts of a new batch that a drafter is asked for, where the pass writes so many tokens for
    each without it."""
    requests = [ask() for _ in range(texts)]
    sizes, base = [Size(1, 1)], Pass(texts, texts, texts, 0)
    gains = policy.gains(requests, "d", sizes, [], [1] * texts)
    outlooks = [Outlook(own.tolist(), 0.0, 1, seen=0) for own in gains]
    if policy.curious("d", [0] * texts):
        hopes = policy.gains(requests, "d", sizes, [], [1] * texts, hopeful=True)
        outlooks = [o._replace(hoped=own.tolist()) for o, own in zip(outlooks, hopes)]
    price = policy.price("d", [0] * texts, base, follows=False)
    offer = policy.ask("d", outlooks, sizes, base, others / 10.0, price)
    return 0 if offer is None else len(offer.chosen)


def fail(policy: Policy, times: int) -> None:
    for _ in range(times):
        policy.learn(ask(), "d", TokenTree.chain([5], "d"), [9])


def test_a_drafter_whose_training_has_shown_what_it_can_need_not_show_it_first() -> None:
    texts = 2 * AT_FIRST
    assert offered(promised(0.7, 0.7), texts) == texts
    assert offered(promised(), texts) == AT_FIRST  # no report is no promise


def test_a_trusted_drafter_is_tried_on_texts_that_may_suit_it_better() -> None:
    """What it was promised to do does not pay, but these may be easier."""
    texts = 2 * AT_FIRST
    assert offered(promised(0.7, 0.7), texts, others=1.75) == AT_FIRST
    assert offered(promised(0.7, 0.7), texts, others=1.9) == 0  # so easy are none
    policy = promised(0.7, 0.7)
    assert policy.curious("d", [0] * texts)
    assert not policy.curious("d", [ENOUGH] * texts)  # as easy as was seen
    fail(policy, 100)
    assert not policy.curious("d", [0] * texts)  # nobody trusts it: it is hoped for anyway


def test_who_does_not_keep_a_promise_is_judged_like_others() -> None:
    """Texts of another kind may suit it: so it is tried on some of them, as anybody is."""
    policy = promised(0.9, 0.9)
    assert policy._trusted("d")
    fail(policy, 100)
    assert not policy._trusted("d")
    assert 0 < offered(policy, 2 * AT_FIRST) <= AT_FIRST


def test_what_was_promised_is_expected_and_then_seen() -> None:
    policy = promised(0.8, 0.5)
    sizes = [Size(1, 1), Size(2, 2)]
    [gains] = policy.gains([ask()], "d", sizes, [], [2])
    assert gains == pytest.approx([0.8, 0.8 + 0.4], abs=0.03)
    fail(policy, 200)  # it does not keep that here
    assert policy.tracks["d"].level_chance(1) < 0.4
    policy.reset()
    assert policy.gains([ask()], "d", sizes, [], [2])[0][0] == pytest.approx(0.8, abs=0.03)


def test_a_device_that_must_wait_makes_a_draft_dearer_unless_it_waits_anyway() -> None:
    policy = make()
    for _ in range(FIRST):
        policy.waited.learn(500.0, 1)
    assert not asked(policy)
    outlook, sizes = Outlook([2.44], 0.0, 3), [Size(3, 3)]
    others = ALONE._replace(log_gain=0.01)  # somebody's draft is checked in the same pass
    price = policy.price("d", [0], others, follows=False)
    assert policy.ask("d", [outlook], sizes, others, 1 / 50, price) is not None


def test_drafts_that_follow_each_other_cost_what_they_take_on_the_device() -> None:
    policy = make()
    policy.timings["d"].learn(30.0, 1, 3)  # by the host's hand
    for _ in range(FIRST):
        policy.waited.learn(40.0, 1)
    assert policy.price("d", [0], ALONE, follows=False).seconds([0], 3) == pytest.approx(70.0)
    assert policy.price("d", [0], ALONE, follows=True).seconds([0], 3) == pytest.approx(30.0)
    policy.following["d"].learn(6.0, 1, 3)
    assert policy.price("d", [0], ALONE, follows=True).seconds([0], 3) == pytest.approx(6.0)


def goes_on(policy: Policy, gains: list[float], length: int, speed: float) -> bool:
    outlook, sizes = Outlook(gains, 0.0, len(gains)), [Size(n, n) for n in range(1, 4)]
    return policy.goes_on("d", [outlook], sizes, [length], ALONE, speed)


def test_drafts_follow_each_other_while_that_is_the_fastest_known() -> None:
    policy, good, poor = make(), [0.9, 1.71, 2.44], [0.2, 0.24, 0.25]
    assert goes_on(policy, poor, 1, 1 / 50)  # to see what it takes
    policy.following["d"].learn(2.0, 1, 1)
    assert goes_on(policy, good, 1, 1 / 50)
    assert not goes_on(policy, poor, 1, 1 / 50)  # plain decoding is faster
    assert not goes_on(policy, good, 1, 1 / 20)  # so is what the lookups promise
    # Three guesses would be faster than one: that is thought over now and then.
    kept = [goes_on(policy, good, 1, 1 / 50) for _ in range(2 * THOUGHT_OVER)]
    assert kept.count(False) == 2
    assert all(goes_on(policy, good, 3, 1 / 50) for _ in range(2 * THOUGHT_OVER))


def test_a_drafter_that_paid_again_is_tried_as_soon_as_one_that_never_failed() -> None:
    policy, much = make(), 1.0
    waits = []
    for _ in range(3):
        waits.append(next(i for i in range(1, 2000) if asked(policy, speed=much)))
    assert waits == [SHORTEST_PAUSE, 2 * SHORTEST_PAUSE, 4 * SHORTEST_PAUSE]
    assert asked(policy)
    assert next(i for i in range(1, 2000) if asked(policy, speed=much)) == SHORTEST_PAUSE


def test_a_gain_within_the_error_is_left_alone_but_in_audits() -> None:
    policy = make(FLAT)
    assert policy.choose([[0.01]], ALONE, 8).kept == [[]]
    assert policy.choose([[0.05]], ALONE, 8).kept == [[0]]
    policy.draft_always()
    assert policy.choose([[0.01]], ALONE, 8).kept == [[0]]


def test_looks_that_gain_nothing_take_a_small_share_of_the_time() -> None:
    interest = Interest(gain=0.0)
    for price in (0.01, 1.0, 10.0):
        asked = sum(interest.due(price) for _ in range(4000))
        assert 0 < asked <= min(4000 / RARELY, 0.021 * 4000 / price)


def test_newcomers_inherit_how_much_a_lookup_gains() -> None:
    policy = make()
    policy.timings["d"].per_request = 5.0
    assert policy.worth_a_look([ask()], "d", ALONE)
    for _ in range(300):
        policy.credit(ask(), "d", 0.0)
    assert not policy.worth_a_look([ask()], "d", ALONE)


def test_texts_that_began_together_are_looked_up_in_turn_once_that_does_not_pay() -> None:
    policy, batch = make(FLAT), [ask() for _ in range(8)]
    together = Pass(8, 8, 8, 0)
    policy.timings["d"].per_request = 0.5  # of a pass of 10, in which each text has 1.25
    asked: list[list[Request]] = []
    for _ in range(200):
        asked.append(policy.worth_a_look(batch, "d", together))
        for request in asked[-1]:
            policy.credit(request, "d", 0.0)
    assert asked[0] == batch  # which all hope for
    assert max(map(len, asked[2:])) == 5  # a quarter of a pass
    assert {sum(request in each for each in asked[2:]) for request in batch} == {9}
    policy.credit(batch[6], "d", 9.0)
    assert all(batch[6] in policy.worth_a_look(batch, "d", together) for _ in range(30))


def test_the_pass_is_shared_by_those_it_writes_for() -> None:
    policy = make()
    assert policy.seconds_per_token(ALONE) == policy.cost.seconds(1)
    assert policy.seconds_per_token(Pass(4, 4, 4, 0)) == policy.cost.seconds(4, 4) / 4


def test_a_first_call_that_took_long_is_not_held_against_a_drafter() -> None:
    """It builds what later ones use; or the machine was busy, or it was later."""
    policy, outlook = make(), Outlook([0.9, 1.71, 2.44], 0.0, 3)
    sizes, timing = [Size(n, n) for n in (1, 2, 3)], policy.timings["d"]

    def wanted() -> bool:
        price = policy.price("d", [0], ALONE, follows=False)
        return policy.ask("d", [outlook], sizes, ALONE, 1 / 50, price) is not None

    for seconds in (900.0, 800.0, 15.0):
        assert wanted()
        timing.learn(seconds, 1, 3)
    assert timing.seconds(1, 3) == pytest.approx(15.0)
    timing.learn(900.0, 1, 3)  # one that is interrupted counts as three
    assert timing.seconds(1, 3) == pytest.approx(18.0)
    assert wanted()
    for _ in range(60):
        timing.learn(900.0, 1, 3)
    assert timing.seconds(1, 3) > 800 and not wanted()
    timing.learn(15.0, 1, 3)
    assert timing.seconds(1, 3) == pytest.approx(15.0) and wanted()


def test_a_drafter_that_takes_long_is_tried_three_times_at_first() -> None:
    policy, outlook = make(), Outlook([0.9], 0.0, 1)
    asked = 0
    for _ in range(SHORTEST_PAUSE):
        price = policy.price("d", [0], ALONE, follows=False)
        if policy.ask("d", [outlook], [Size(1, 1)], ALONE, 1 / 50, price) is not None:
            policy.timings["d"].learn(900.0, 1, 1)
            asked += 1
    assert asked == FIRST


def test_a_drafter_that_is_always_silent_is_not_asked_forever() -> None:
    """One that nobody knows, and one that was good for other texts."""
    shapes = [Shape((ROOT,) * 3)]
    for guesses in (0, UNPROVEN):
        policy = make(FLAT)
        policy.timings["d"] = Timing(None, {1: 1.0}, FIRST)
        request = ask()
        for _ in range(guesses):
            policy.learn(ask(), "d", TokenTree.chain([5], "d"), [5])
        asked = 0
        for _ in range(200):
            sizes = [Size(nodes, 1) for nodes in (1, 2, 3)]
            gains = policy.gains([request], "d", sizes, shapes, [3])[0]
            price = policy.price("d", [0], ALONE, follows=False)
            outlook = Outlook(gains, 0.0, 3)
            if policy.ask("d", [outlook], sizes, ALONE, 1 / 10.0, price) is not None:
                asked += 1
                policy.learn_silence("d", [request])
        assert asked < 50 + 5 * guesses < 200
