"""Every drafted text and every decision, enumerated: the joint must be the target's own."""

import pytest

from tests.verify.enumeration import KINDS, worst_step_error

SEEDS = 60


@pytest.mark.parametrize("kind", KINDS)
def test_traversal(kind: str) -> None:
    assert worst_step_error(kind, "traversal", range(SEEDS)) < 1e-12


def test_coupled_whatever_was_drafted() -> None:
    assert worst_step_error("point", "coupled", range(3 * SEEDS)) < 1e-12


def test_coupled_with_drafts_drawn_independently() -> None:
    assert worst_step_error("iid", "coupled", range(8)) < 1e-12
