"""How many rows a pass on a CPU has: one of few numbers.

oneDNN prepares every product in bfloat16 for its number of rows, which takes 5 to 10 ms of the
first pass of a size, and keeps so many of them that a few dozen sizes fit. Where drafts come and
go, nearly every pass over many texts would have a size of its own. So such passes are filled up
with rows of nobody, which write the scrap slot and attend to nothing.
"""

import torch

EXACT = 16  # rows that a lone text with a tree has: all these sizes come back soon
MOST = 256  # beyond that, passes read prompts or serve crowds: preparing is a small part of them
STEP = 4  # rows at least, and
SHARE = 16  # of the next power of two so large a part


def prepares(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products are prepared for numbers of rows."""
    return device.type == "cpu" and dtype == torch.bfloat16


def filled_up(rows: int, exact: int = EXACT) -> int:
    """The number of rows that a pass over so many has; as it is up to `exact`."""
    if not exact < rows <= MOST:
        return rows
    step = max(STEP, (1 << (rows - 1).bit_length()) // SHARE)
    return -(-rows // step) * step
