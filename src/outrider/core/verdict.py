"""What verification decides, and what a drafter is told afterwards."""

from typing import NamedTuple

from outrider.core.request import Request


class Verdict(NamedTuple):
    """The accepted path through one request's tree, and the target's own token after it."""

    kept: list[int]  # node indices of the accepted path, root's child first
    next_token: int
    # The target's token at the root and at every node, under traversal its likeliest one; None
    # where only those that the text reached were looked at.
    choices: list[int] | None = None


class Span(NamedTuple):
    """Committed text a drafter learns from: tokens[start : start + len(tokens)] of the request."""

    request: Request
    start: int
    tokens: list[int]
