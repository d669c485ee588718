"""Texts that an answer may quote: drafts are copied from them, and quotations found in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outrider.core.errors import InvalidRequest, OutriderError


@dataclass(frozen=True)
class Document:
    text: str
    name: str | None = None  # without one it is known by its place in the list


GivenDocuments = Sequence[str | dict[str, Any] | Document]


def as_documents(
    given: GivenDocuments | None, error: type[OutriderError] = InvalidRequest
) -> tuple[Document, ...]:
    """Each a text, or {"name": …, "text": …}; anything else raises `error`."""
    if given is None:
        return ()
    if not isinstance(given, (list, tuple)):
        raise error(
            f"documents must be a list of texts or {{'name': …, 'text': …}}, "
            f"not {type(given).__name__}"
        )
    documents = tuple(_document(each, place, error) for place, each in enumerate(given))
    refuse_equal_names(documents, error)
    return documents


def refuse_equal_names(documents: Sequence[Document], error: type[OutriderError]) -> None:
    seen: set[str | None] = set()
    for document in documents:
        if document.name is not None and document.name in seen:
            raise error(f"documents has two of the name {document.name!r}; rename one")
        seen.add(document.name)


def _document(given: Any, place: int, error: type[OutriderError]) -> Document:
    where = f"documents[{place}]"
    if isinstance(given, str):
        given = {"text": given}
    elif isinstance(given, Document):
        given = {"text": given.text, "name": given.name}
    if not isinstance(given, dict) or not {"text"} <= set(given) <= {"text", "name"}:
        shown = sorted(map(str, given)) if isinstance(given, dict) else type(given).__name__
        raise error(f"{where} must be a text or {{'name': …, 'text': …}}, not {shown}")
    text, name = given["text"], given.get("name")
    if not isinstance(text, str) or not text:
        raise error(f"{where} has no text; leave it out or give a non-empty string")
    if name is not None and (not isinstance(name, str) or not name):
        raise error(f"{where} has the name {name!r}; give a non-empty string or none")
    for what, value in (("text", text), ("name", name or "")):
        try:
            value.encode()
        except UnicodeEncodeError as fault:
            raise error(
                f"{where}: its {what} is not valid Unicode ({fault.reason} at character "
                f"{fault.start})"
            ) from None
    return Document(text, name)
