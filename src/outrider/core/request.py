"""One sequence that the engine works on: what was asked, and what has been written so far."""

from array import array
from dataclasses import dataclass, field

from outrider.core.dictation import Dictation
from outrider.core.documents import Document
from outrider.core.params import SamplingParams


@dataclass(eq=False)
class Request:
    """A user's request with n > 1 becomes n of these, which differ in `sample`."""

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    seed: int
    sample: int = 0
    stop_ids: frozenset[int] = frozenset()  # end-of-text ids (unless ignored) and stop_token_ids
    bad_word_ids: list[list[int]] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    shared_documents: tuple[Document, ...] = ()  # the engine's, before the request's own
    dictation: Dictation | None = None

    def __post_init__(self) -> None:
        self.tokens = [*self.prompt_ids, *self.output_ids]  # committed text, kept in step by append
        # slots[i] holds the KV of tokens[i]; the tokens beyond are pending. Drafters with KV of
        # their own use the same slot ids, so whatever happens to a slot happens to both.
        self.slots = array("q")
        # Set aside for the step under way: the pending rows first, then the tree's nodes.
        self.reserved = array("q")

    def append(self, token: int) -> None:
        self.output_ids.append(token)
        self.tokens.append(token)

    @property
    def pending(self) -> int:
        """Tokens whose KV is not written yet; the last of them is the root of the next tree."""
        return len(self.tokens) - len(self.slots)

    @property
    def position(self) -> int:
        """The output position that the next token will take: the key of its noise."""
        return len(self.output_ids)

    @property
    def documents(self) -> tuple[Document, ...]:
        return (*self.shared_documents, *self.params.document_list)
