"""A row of logits: which request it belongs to, and which drafted tokens lie before it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.core.errors import InvalidRequest
from outrider.core.request import Request
from outrider.core.tree import TokenTree


class RowError(InvalidRequest):
    """No token can be chosen for one request; the others of its batch are not touched."""

    def __init__(self, request: Request, message: str) -> None:
        super().__init__(message)
        self.request = request


class ProcessorError(RowError):
    """A user's logits processor failed, or returned something that is not a row of logits."""


@dataclass(eq=False, slots=True)
class Row:
    """The logits after the request's committed text and `path`.

    `error` is set by `process` instead of raised: a processor may well choke on a drafted token
    that the target would never choose, and then nobody needs this row. `verify` raises the error of
    a row that the text really reaches.
    """

    request: Request
    path: list[int]
    error: RowError | None = field(default=None, repr=False)

    @property
    def position(self) -> int:
        """The output position of the token that this row decides."""
        return self.request.position + len(self.path)

    def decided(self, chosen: int) -> int:
        """What the text goes on with, where it has come here and the target has chosen this."""
        dictation = self.request.dictation
        return chosen if dictation is None else dictation.decide(self.position, chosen)

    def failure(self) -> RowError:
        """Why no token could be chosen here."""
        if self.error is not None:
            return self.error
        return RowError(
            self.request,
            f"request {self.request.id}: no token can be chosen at output position {self.position}:"
            " every token is banned, or the model's logits are not finite",
        )


def tree_rows(trees: Sequence[TokenTree], requests: Sequence[Request]) -> list[Row]:
    """The rows of one verification pass: for each request its root's, then one per node."""
    rows = []
    for tree, request in zip(trees, requests, strict=True):
        rows.append(Row(request, []))
        rows.extend(Row(request, tree.path_tokens(node)) for node in range(len(tree)))
    return rows
