"""How many rows a pass on a CPU has."""

import torch

from outrider.model.row_sizes import EXACT, MOST, filled_up, prepares


def test_many_numbers_of_rows_become_few() -> None:
    sizes = {filled_up(rows) for rows in range(1, MOST + 1)}
    assert len(sizes) <= EXACT + 28
    for rows in range(1, 3 * MOST):
        assert rows <= filled_up(rows) < rows + max(4, rows / 8)
        assert filled_up(filled_up(rows)) == filled_up(rows)
    assert [filled_up(n) for n in (EXACT, EXACT + 1, 65, 129)] == [16, 20, 72, 144]
    assert [filled_up(n) for n in (MOST - 1, MOST, MOST + 1)] == [256, 256, 257]
    assert [filled_up(n, exact=4) for n in (3, 5, 16)] == [3, 8, 16]


def test_only_products_that_are_prepared_are_filled_up() -> None:
    cpu = torch.device("cpu")
    assert prepares(cpu, torch.bfloat16)
    assert not prepares(cpu, torch.float32)
    assert not prepares(torch.device("cuda"), torch.bfloat16)
