"""The checks of this folder must notice faults that are planted into the production source."""

import pytest

from tests.verify.faults import FAULTS, Check, Fault
from tests.verify.planting import planted

CHECKS = list({id(fault.notices): fault.notices for fault in FAULTS}.values())


@pytest.mark.parametrize("check", CHECKS)
def test_clean_code_raises_no_alarm(check: Check) -> None:
    assert not check()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_noticed(fault: Fault) -> None:
    with planted(fault.module, *fault.pieces):
        try:
            noticed = fault.notices()
        except ValueError as error:  # a drafter whose q could not have given its token
            noticed = "row of q cannot give" in str(error)
    assert noticed


def test_planting_leaves_nothing_behind() -> None:
    from outrider.verify import traversal, traverse

    with planted("outrider.verify.traversal", ("min(1.0, visit.a", "max(0.0, visit.a")):
        from outrider.verify import traverse as faulty

        assert faulty is traversal.traverse and faulty is not traverse
    from outrider.verify import traverse as restored

    assert restored is traverse is traversal.traverse
