import random
from itertools import combinations
from math import exp, log1p

import numpy as np
import pytest

from outrider.core.tree import TokenTree
from outrider.drafters.shapes import Shape, described
from outrider.engine.policy.acceptance import (
    HOPE,
    Record,
    Track,
    in_odds,
    learn,
    path_chances,
)
from outrider.engine.policy.cost import Measured, PassCost
from outrider.engine.policy.gate import (
    LONGEST_DOUBT,
    PATIENCE,
    SHORTEST_PAUSE,
    THINKING,
    Doubt,
    Pass,
    Pause,
)
from outrider.engine.policy.offer import Outlook, Price, Size, best_offer


def chain(tokens: list[int], confidence: float | None = 0.8) -> TokenTree:
    sure = None if confidence is None else [confidence] * len(tokens)
    return TokenTree.chain(tokens, "test", confidence=sure)


def teach(track: Track, record: Record, share: float, steps: int, confidence: float = 0.8) -> None:
    rng = random.Random(0)
    for _ in range(steps):
        learn(chain([1], confidence), [1 if rng.random() < share else 2], track, record)


def test_at_first_the_drafter_is_taken_at_its_word() -> None:
    chances = path_chances(chain([1, 2], 0.8), Track(), Record())
    assert chances == pytest.approx([0.8, 0.64])


def test_claims_are_corrected_where_they_were_made() -> None:
    track = Track()
    teach(track, Record(), 0.2, 200, confidence=0.85)
    assert track.node_chance(0.85, 1) == pytest.approx(0.2, abs=0.08)
    assert track.node_chance(0.35, 1) == pytest.approx(0.35)  # nothing was learned of these


def test_deeper_levels_start_from_those_above() -> None:
    track = Track()
    teach(track, Record(), 0.1, 100)
    assert track.node_chance(0.8, 4) < 0.3
    for _ in range(200):
        track.learn_node(0.8, 4, True)
    assert track.node_chance(0.8, 4) > 0.9
    assert track.node_chance(0.8, 1) < 0.3


def test_what_is_old_fades() -> None:
    track = Track()
    teach(track, Record(), 1.0, 1000)
    teach(track, Record(), 0.0, 400)
    assert track.node_chance(0.8, 1) < 0.2


def test_a_request_departs_from_its_drafters_record_and_newcomers_do_not() -> None:
    track = Track()
    teach(track, Record(), 0.5, 400)
    copying, inventing = Record(), Record()
    for _ in range(10):
        copying.learn(0.5, True)
        inventing.learn(0.5, False)
    assert in_odds(0.5, copying.odds) > 0.7
    assert in_odds(0.5, inventing.odds) < 0.3
    assert in_odds(0.5, Record().odds) == 0.5


def test_who_is_seldom_right_at_first_is_not_hoped_for_with_second_guesses() -> None:
    """One that may make a single guess shows nothing of others: their sum kept it at work."""
    tree, none = described([4]), np.ones(1)

    def later(track: Track) -> float:
        return float(track.outlooks([tree], none)[0][0, 1:].sum())

    hopeless = Track()
    for _ in range(100):
        hopeless.learn_level(1, [False])
    assert later(hopeless) < 0.2 * later(Track())
    seen = Track()
    for _ in range(100):
        seen.learn_level(1, [False, True, False, False])
    assert later(seen) > 0.9  # what was seen of them counts nevertheless


def test_only_nodes_that_were_reached_teach() -> None:
    """After the first miss nothing is known of what lies below."""
    track, record = Track(), Record()
    learn(chain([1, 2, 3]), [1, 9], track, record)
    counts = {key: (rate.hits, rate.count) for key, rate in track.nodes.items()}
    assert counts == {(8, 1): (1, 1), (8, 2): (0, 1)}
    # Levels below the first go by chances, not by this one text.
    first, second, _ = path_chances(chain([1, 2, 3]), track, record)
    assert [level.count for level in track.levels[:3]] == pytest.approx([1, first, second])


def test_levels_promise_what_their_nodes_do_however_few_of_them_are_checked() -> None:
    """Half of the drafts are sure and hold. The others hold half the time, as they say; nothing
    below their first guess is checked."""
    track = Track()
    for i in range(100):
        learn(chain([1, 2, 3], 0.95), [1, 2, 3, 9], track, Record())
        learn(chain([1, 2, 3], 0.5), [1 if i % 2 else 9], track, Record())
    [[reached]] = track.outlooks([Shape((-1, 0, 1))], np.ones(1))
    assert reached[0] == pytest.approx(3 / 4, abs=0.03)
    assert reached[1] == pytest.approx(5 / 8, abs=0.03)
    assert reached[2] == pytest.approx(9 / 16, abs=0.05)


def test_depths_that_were_not_seen_are_hoped_for_no_more_than_at_first() -> None:
    """Texts begin as one expects: guesses of one token say little of longer ones."""
    track = Track()
    for _ in range(30):
        learn(chain([1], 0.9), [1, 9], track, Record())
    assert track.level_chance(1) > 0.85
    assert track.level_chance(2) == pytest.approx(HOPE)
    for _ in range(60):
        learn(chain([1, 2], 0.9), [1, 2, 9], track, Record())
    assert track.level_chance(2) > 0.9


def test_siblings_teach_each_for_itself() -> None:
    tree = TokenTree([1, 2], [-1, -1], "test", confidence=[0.55, 0.35])
    track = Track()
    learn(tree, [2], track, Record())
    counts = {key: (rate.hits, rate.count) for key, rate in track.nodes.items()}
    assert counts == {(5, 1): (0, 1), (3, 1): (1, 1)}
    assert (track.levels[0].hits, track.levels[0].count) == (1, 1)  # some node held
    assert (track.firsts[0].hits, track.firsts[0].count) == (0, 1)  # but not the first guess
    assert (track.others[0].hits, track.others[0].count) == (1, 1)


def test_a_tree_that_is_not_drafted_yet_is_judged_by_the_ranks_of_its_nodes() -> None:
    """Of a hundred proposals the first guess held in fifty, the second in thirty."""
    pair, track = TokenTree([1, 2], [-1, -1], "test", confidence=[0.5, 0.5]), Track()
    for i in range(100):
        learn(pair, [1 if i % 10 < 5 else 2 if i % 10 < 8 else 3], track, Record())
    shape = described([2, 1])  # two children of the root, one of each of these
    usual, odd = np.ones(1), np.array([2.0])
    [[[first, second]]] = track.outlooks([Shape((-1, -1))], usual)
    assert first == pytest.approx(0.5, abs=0.02)
    assert second == pytest.approx(0.3, abs=0.02)
    assert track.outlooks([shape], usual)[0].sum() > first + second  # what lies below adds to it
    [better] = track.outlooks([shape], odd)
    assert (better > track.outlooks([shape], usual)[0]).all()
    assert better.max() < 1


def test_without_confidence_depth_is_all_there_is() -> None:
    track = Track()
    for _ in range(100):
        learn(chain([1, 2], None), [1, 9], track, Record())
    first, second = path_chances(chain([1, 2], None), track, Record())
    assert first > 0.9
    assert second < 0.15


def test_many_drafts_for_one_text_tell_less_than_those_for_many() -> None:
    """The last text of a batch is one that is hard to guess."""
    hard, easy = chain([1], None), chain([2], None)
    track, record = Track(), Record()
    for _ in range(10):
        learn(easy, [2], track, Record())
    for _ in range(30):
        learn(hard, [9], track, record)
    assert record.seen == 30 and track.levels[0].count < 20
    assert track.level_chance(1) > 0.5


def test_what_levels_have_shown_fades_as_texts_leave() -> None:
    """But not what a drafter is like in general: one that was never right is not hoped for."""
    for hit, least, most in ((1, HOPE, HOPE), (0, 0.0, 0.1)):
        track = Track()
        for _ in range(100):
            learn(chain([1], None), [hit], track, Record())
        shown = track.level_chance(1)
        for _ in range(60):
            track.part()
        assert track.levels[0].count < 1
        assert least - 0.01 <= track.level_chance(1) <= most + 0.01
        assert (shown > 0.9) if hit else (shown < 0.1)


def test_how_far_claims_were_right_is_soon_learned_anew_when_texts_leave() -> None:
    """Copies hold nearly always where code is edited, and half as often in what comes next."""
    track = Track()
    teach(track, Record(), 1.0, 400, confidence=0.55)
    assert track.node_chance(0.55, 1) > 0.95
    for _ in range(8):
        track.part()
    assert track.node_chance(0.55, 1) < 0.65
    teach(track, Record(), 0.1, 20, confidence=0.55)
    assert track.node_chance(0.55, 1) < 0.35
    for _ in range(2000):  # nothing is left, not even of the count
        track.part()
    assert track.node_chance(0.55, 1) == pytest.approx(0.55)


def test_chances_are_chances() -> None:
    track, record = Track(), Record()
    for _ in range(500):
        record.learn(0.9, True)
        track.learn_node(1.0, 1, True)
    assert 0 < path_chances(chain([1], 1.0), track, record)[0] < 1


COST = PassCost(Measured([1, 8, 64], [10.0, 12.0, 40.0], 256))
CHAINS = [Size(length, length) for length in (1, 2, 3, 4)]


def levels(seconds: float, requests: int = 1) -> Price:
    return Price(0.0, lambda count: seconds, [0.0] * requests, [0.0] * requests)


def test_the_offer_weighs_gain_against_both_times() -> None:
    sure = Outlook([0.9, 1.71, 2.44, 3.1], 0.0, 4)
    base = Pass(1, 1, 1, 0)
    free = best_offer([sure], CHAINS, base, COST, levels(0.0))
    dear = best_offer([sure], CHAINS, base, COST, levels(9.0))
    assert free is not None and free.size.nodes == 4
    assert dear is not None and dear.size.nodes == 1
    assert dear.speed < 1 / 10.0 < free.speed  # plain decoding lies between


def test_a_tree_costs_its_depth_and_is_checked_by_its_nodes() -> None:
    base, bushy = Pass(1, 1, 1, 0), Outlook([0.9, 1.71], 0.0, 7)  # seven nodes are two levels
    offer = best_offer([bushy], [Size(3, 1), Size(7, 2)], base, COST, levels(3.0))
    assert offer is not None and offer.size.nodes == 7
    assert offer.speed == pytest.approx(2.71 / (COST.seconds(8, 1) + 6.0))


def test_the_offer_tells_what_time_and_rows_must_bring() -> None:
    """Where a draft just about brings so much, the mean speed neither rises nor falls."""
    base = Pass(2, 2, 2, 0)
    drafted = [Outlook([0.9, 1.5], 0.0, 7), Outlook([0.8, 1.3], 0.0, 7)]
    for sizes in ([Size(3, 1), Size(6, 2)], [Size(2, 1), Size(4, 2)]):
        offer = best_offer(drafted, sizes, base, COST, levels(1.0, 2))
        assert offer is not None and offer.chosen == [0, 1]
        rows = 2 * offer.size.nodes
        step = COST.seconds(2 + rows, 2) + offer.size.depth * 1.0
        most = 2 + 2 * max(size.nodes for size in sizes)
        row = (COST.seconds(most, 2) - COST.seconds(4, 2)) / (most - 4)
        little = 0.001
        # One of the two texts writes more for a while more of drafting, or for another row.
        for share, seconds in ((offer.worth.second, 1.0), (offer.worth.row, row)):
            faster = (1 + little * share) ** 0.5 * step / (step + little * seconds)
            assert faster == pytest.approx(1.0, abs=1e-6)


def test_the_offer_leaves_out_requests_that_gain_nothing() -> None:
    good, served = Outlook([0.9], 0.0, 1), Outlook([0.9], 2.0, 1)
    offer = best_offer([served, good], CHAINS[:1], Pass(2, 2, 2, 0), COST, levels(0.0, 2))
    assert offer is not None and offer.chosen == [1]
    assert best_offer([served], CHAINS[:1], Pass(1, 1, 1, 0), COST, levels(0.0)) is None


def test_a_draft_takes_the_place_of_what_lookups_propose() -> None:
    """Seven nodes for seven cost no row more; beside them, they would cost seven."""
    base = Pass(1, 8, 1, 0, log_gain=log1p(0.5))
    apart, instead = (Outlook([1.2], 0.5, 7, proposed) for proposed in (0, 7))
    found = [best_offer([each], [Size(7, 1)], base, COST, levels(1.0)) for each in (apart, instead)]
    speeds = [2.2 / (COST.seconds(rows, 1) + 1.0) for rows in (15, 8)]
    assert [offer and offer.speed for offer in found] == pytest.approx(speeds)
    fewer = best_offer([instead], [Size(1, 1)], base, COST, levels(1.0))
    assert fewer is not None and fewer.speed == pytest.approx(2.2 / (COST.seconds(2, 1) + 1.0))


def test_the_offer_is_the_best_of_all() -> None:
    """Held against every size for every set of requests, one at a time."""
    rng = random.Random(0)
    for _ in range(30):
        count = rng.randint(1, 4)
        sizes = [Size(1, 1), Size(2, 2), Size(4, 2)]
        outlooks = [
            Outlook(
                sorted(rng.uniform(0, 2) for _ in sizes), rng.choice([0, 0.5]), rng.randint(1, 4)
            )
            for _ in range(count)
        ]
        reading = [rng.random() for _ in range(count)]
        price = Price(rng.random(), lambda n: 1.0 + 0.1 * n, reading, reading)
        base = Pass(count, count, count, 0)
        found = best_offer(outlooks, sizes, base, COST, price)
        best = 0.0
        for number, size in enumerate(sizes):
            sets = (some for n in range(count) for some in combinations(range(count), n + 1))
            for chosen in sets:
                gain = sum(
                    log1p(outlooks[i].gains[number]) - log1p(outlooks[i].without) for i in chosen
                )
                rows = count + sum(min(size.nodes, outlooks[i].room) for i in chosen)
                seconds = COST.seconds(rows, count) + price.seconds(chosen, size.depth)
                best = max(best, exp(gain / count) / seconds)
        assert found is not None  # the largest size gains somebody something, in all of these
        # It takes requests by their gain alone, so others may promise a little more.
        assert 0.97 * best <= found.speed <= best * (1 + 1e-9)
        nodes = sum(min(found.size.nodes, outlooks[i].room) for i in found.chosen)
        seconds = COST.seconds(count + nodes, count) + price.seconds(found.chosen, found.size.depth)
        number = sizes.index(found.size)
        gain = sum(
            log1p(outlooks[i].gains[number]) - log1p(outlooks[i].without) for i in found.chosen
        )
        assert found.speed == pytest.approx(exp(gain / count) / seconds)  # as it says itself


def test_trials_become_rarer_until_one_succeeds() -> None:
    pause = Pause()
    trials = [step for step in range(1, 1000) if pause.tick()]
    assert trials == [32, 96, 224, 480, 992]
    pause.end()
    assert next(step for step in range(1, 1000) if pause.tick()) == SHORTEST_PAUSE


def said_no(doubt: Doubt, seconds: float, times: int = 1) -> int:
    """After so many answers, put without a rest: the steps that go by without the question."""
    for _ in range(times):
        doubt.answered(paid=False, requests=8, seconds=seconds, step=1.0)
    return [doubt.passes(8) for _ in range(2 * LONGEST_DOUBT)].count(True)


def test_what_did_not_pay_time_after_time_is_asked_less_often() -> None:
    doubt = Doubt()
    assert said_no(doubt, 9.0, PATIENCE) == 0
    assert [said_no(doubt, 9.0) for _ in range(6)] == [1, 2, 4, 8, LONGEST_DOUBT, LONGEST_DOUBT]
    assert doubt.passed == LONGEST_DOUBT
    doubt.answered(paid=True, requests=8, seconds=9.0, step=1.0)  # what pays is asked every time
    assert not doubt.passes(8) and doubt.passed == 0
    assert said_no(doubt, 9.0) == 0  # and one answer alone means little


def test_a_question_that_takes_no_time_is_put_in_every_step() -> None:
    assert said_no(Doubt(), THINKING / 2, 20) == 0
    assert said_no(Doubt(), 3.5 * THINKING, 20) == 3


def test_a_no_that_has_another_reason_brings_no_rest() -> None:
    doubt = Doubt()
    said_no(doubt, 9.0, 20)
    for _ in range(20):
        doubt.answered(paid=False, requests=8, seconds=9.0, step=1.0, telling=False)
        assert not doubt.passes(8) and doubt.passed == 0
    assert said_no(doubt, 9.0) == LONGEST_DOUBT  # nothing was forgotten, either


def test_fewer_requests_are_asked_about_at_once() -> None:
    doubt = Doubt()
    assert said_no(doubt, 9.0, 20) == LONGEST_DOUBT
    doubt.answered(paid=False, requests=8, seconds=9.0, step=1.0)
    assert doubt.passes(8) and not doubt.passes(7) and doubt.passes(9)


def test_steps_without_the_question_count_for_the_next_trial() -> None:
    pause = Pause()
    assert not pause.tick(steps=SHORTEST_PAUSE - 1)
    assert pause.tick(late=True) and pause.tick()
    assert pause.left == 2 * SHORTEST_PAUSE
