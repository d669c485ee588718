"""What an answer quotes, as a list under it: the words, the file and its lines."""

import shutil
from collections import Counter
from dataclasses import dataclass

from outrider.core.outputs import CompletionOutput, Grounding

FEWEST, MOST = 30, 90  # columns that a quotation may take


@dataclass
class Quotation:
    """Spans that only white space parts, as where a file breaks its lines and the answer does not,
    read as one."""

    text: str
    document: str | int
    first_line: int
    last_line: int

    @property
    def place(self) -> str:
        lines = f"{self.first_line}-{self.last_line}"
        return f"{self.document}:{self.first_line if self.first_line == self.last_line else lines}"


def footnotes(output: CompletionOutput, texts: dict[str | int, str]) -> list[str]:
    """Lines; `texts` are the documents by name."""
    spans = output.grounding or []
    if not spans:
        return ["no words of the answer are quoted from the documents"]
    share = sum(span.end - span.start for span in spans) / len(output.text)
    found = _quotations(output.text, spans, texts)
    times = Counter((quotation.text, quotation.place) for quotation in found)  # in their order
    places = [place + (f" ({n} times)" if n > 1 else "") for (_, place), n in times.items()]
    room = shutil.get_terminal_size().columns - max(map(len, places)) - 8
    room = min(MOST, max(FEWEST, room))
    quotes = [f'"{shortened(text, room - 2)}"' for text, _ in times]
    width, digits = max(map(len, quotes)), len(str(len(quotes)))
    return [
        f"{share:.0%} of the answer stands word for word in the documents:",
        *(
            f"[{number:>{digits}}] {quote:<{width}}  {place}"
            for number, (quote, place) in enumerate(zip(quotes, places, strict=True), 1)
        ),
    ]


def shortened(text: str, room: int) -> str:
    """On one line, with its first and last words where all of them are too many."""
    text = " ".join(text.split())
    if len(text) <= room:
        return text
    head = text[: room - room // 2 - 2]
    tail = text[len(text) - (room // 2 - 1) :]
    # Whole words, unless one of them fills the room.
    head = head.rsplit(" ", 1)[0] if text[len(head)] != " " else head
    tail = tail.split(" ", 1)[-1] if text[-len(tail) - 1] != " " else tail
    return f"{head.rstrip()} … {tail.lstrip()}"


def _quotations(
    answer: str, spans: list[Grounding], texts: dict[str | int, str]
) -> list[Quotation]:
    found: list[Quotation] = []
    last: Grounding | None = None
    for span in spans:
        document = texts[span.document]
        end_line = 1 + document.count("\n", 0, span.document_end)
        if last is not None and _goes_on(answer, document, last, span):
            found[-1].text += answer[last.end : span.end]
            found[-1].last_line = end_line
        else:
            start_line = 1 + document.count("\n", 0, span.document_start)
            text = answer[span.start : span.end]
            found.append(Quotation(text, span.document, start_line, end_line))
        last = span
    return found


def _goes_on(answer: str, document: str, last: Grounding, span: Grounding) -> bool:
    between = answer[last.end : span.start]
    there = document[last.document_end : span.document_start]
    follows = last.document == span.document and last.document_end <= span.document_start
    return follows and not between.strip() and not there.strip()
