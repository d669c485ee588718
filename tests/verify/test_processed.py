"""The joint distribution with every sampling option alone, all together, and 50 random subsets."""

import numpy as np
import pytest

from tests.sampling.reference import reference_p
from tests.verify.processed import OPTIONS, PATHS, make_request, processed_error, raw_logits

DRAWN = [name for name in OPTIONS if name not in ("temperature", "greedy")]


def random_subset(seed: int) -> tuple[str, ...]:
    random = np.random.default_rng(seed)
    temperature = ((), ("temperature",), ("greedy",))[random.integers(3)]
    return (*temperature, *(name for name in DRAWN if random.random() < 0.5))


SUBSETS = [
    *((name,) for name in OPTIONS),
    ("temperature", *DRAWN),
    ("greedy", *DRAWN),
    *(random_subset(seed) for seed in range(50)),
]


@pytest.mark.parametrize("path", PATHS)
def test_joint_with_options(path: str) -> None:
    for seed, names in enumerate(SUBSETS):
        assert processed_error(names, path, seed) < 1e-12, names


def test_every_option_alone_changes_the_distribution() -> None:
    """Else the test above would prove nothing about it."""
    for seed, name in enumerate(OPTIONS):
        plain, changed = make_request([]), make_request([name])
        moved = [
            abs(
                reference_p(raw_logits(seed, path), plain, list(path))
                - reference_p(raw_logits(seed, path), changed, list(path))
            ).max()
            for path in [(), (2,), (5,)]
        ]
        assert max(moved) > 1e-3, name
