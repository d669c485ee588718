"""The tree is the best one there is, by the shares that the matches give."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.drafters.copying import VOICES, Continuation, Grower, match_weight

DEEPEST = 4

continuations = st.lists(
    st.builds(
        Continuation,
        st.lists(st.integers(0, 2), max_size=DEEPEST),
        st.integers(1, DEEPEST),
        st.sampled_from([0.3, 0.7, 1.3]),
    ),
    max_size=8,
)


def every_path(found: list[Continuation], depth: int = 0, above: float = 1.0) -> dict[Any, Any]:
    """Path -> (its probability, that of its last token)."""
    found = [c for c in found if depth < len(c.followed)]
    total = 1 + sum(c.trust * match_weight(c.length + depth) for c in found)
    paths: dict[Any, Any] = {}
    for token in dict.fromkeys(c.followed[depth] for c in found):
        going = [c for c in found if c.followed[depth] == token]
        chance = sum(c.trust * match_weight(c.length + depth) for c in going) / total
        paths[(token,)] = (above * chance, chance)
        heard = sorted(going, key=lambda c: -c.length)[:VOICES]
        for path, chances in every_path(heard, depth + 1, above * chance).items():
            paths[(token, *path)] = chances
    return paths


@settings(max_examples=150, deadline=None, derandomize=True)
@given(continuations, st.integers(0, 9), st.sampled_from([0, 0.1]), st.sampled_from([0, 0.25]))
def test_no_better_tree_exists(found: Any, budget: int, least_path: float, floor: float) -> None:
    tree = Grower(DEEPEST, least_path, floor).grow(found, budget, "test")
    assert tree.confidence is not None
    paths = every_path(found)
    possible = [
        path
        for path, (chance, _) in paths.items()
        if chance >= least_path
        and all(paths[path[:n]][1] >= floor for n in range(1, len(path) + 1))
    ]
    chosen = [tuple(tree.path_tokens(node)) for node in range(len(tree))]
    assert len(set(chosen)) == len(chosen) == min(budget, len(possible))
    for path, confidence in zip(chosen, tree.confidence, strict=True):
        assert abs(confidence - paths[path][1]) < 1e-12
        assert 0 < confidence < 1
    best = sorted((paths[path][0] for path in possible), reverse=True)[: len(chosen)]
    assert sum(paths[path][0] for path in chosen) >= sum(best) - 1e-9


def grown(*found: Continuation) -> list[tuple[int, int]]:
    tree = Grower(8, 0.01, 0.0).grow(list(found), 8, "test")
    return list(zip(tree.tokens, tree.parents, strict=True))


def test_a_longer_match_goes_first_and_branches_share_their_start() -> None:
    short, long = Continuation([5, 6], 2, 1.0), Continuation([5, 7], 6, 1.0)
    assert grown(short, long) == [(5, -1), (7, 0), (6, 0)]


def test_many_short_matches_outweigh_a_longer_one() -> None:
    long = Continuation([7], 3, 1.0)
    assert grown(long, *[Continuation([6], 2, 1.0)] * 2)[0] == (7, -1)
    assert grown(long, *[Continuation([6], 2, 1.0)] * 3)[0] == (6, -1)


def test_the_longest_matches_are_heard_further_down() -> None:
    short, long = Continuation([5, 6], 2, 1.0), Continuation([5, 7], 3, 1.0)
    assert grown(*[short] * VOICES, *[long] * VOICES) == [(5, -1), (7, 0)]


def test_trust_decides_between_equals() -> None:
    assert grown(Continuation([6], 4, 0.4), Continuation([7], 4, 1.2))[0] == (7, -1)


def test_a_match_counts_more_the_longer_it_is() -> None:
    weights = [match_weight(length) for length in range(1, 49)]
    assert weights == sorted(weights)
    assert 0.1 < weights[0] / (1 + weights[0]) < 0.2
    assert 0.95 < weights[23] / (1 + weights[23]) < 1
