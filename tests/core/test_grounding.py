"""Quotations are found where they are, to the letter, and none is left out."""

import random
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outrider.core import grounding
from outrider.core.documents import Document, as_documents
from outrider.core.errors import ConfigError, InvalidRequest
from outrider.core.grounding import LEAST, ground
from outrider.core.outputs import Grounding


def texts_of(documents: list[Document]) -> dict[str | int, str]:
    return {i if d.name is None else d.name: d.text for i, d in enumerate(documents)}


def check(answer: str, documents: list[Document], spans: list[Grounding], least: int) -> None:
    """What every result must be."""
    texts = texts_of(documents)
    end = 0
    for span in spans:
        assert (
            answer[span.start : span.end]
            == (texts[span.document][span.document_start : span.document_end])
        )
        assert span.start >= end and span.end - span.start >= least
        end = span.end


# ---- against brute force ----


def is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def starts_word(text: str, place: int) -> bool:
    """Of the letters in these tests; brute force knows no scripts without spaces."""
    before = text[place - 1] if place else " "
    if text[place] in " \n\0":
        return False
    return before in " \n\0" or (is_word(text[place]) and not is_word(before))


def ends_word(text: str, place: int) -> bool:
    inside = place < len(text) and is_word(text[place - 1]) and is_word(text[place])
    return not inside and text[place - 1] not in " \n"


def common_phrases(answer: str, documents: list[Document], least: int) -> list[tuple[int, int]]:
    """All stretches of whole words, on both sides, that answer and a document share."""
    found = []
    for start in range(len(answer)):
        for end in range(start + least, len(answer) + 1):
            if not (starts_word(answer, start) and ends_word(answer, end)):
                continue
            phrase = answer[start:end]
            for document in documents:
                place = document.text.find(phrase)
                while place >= 0:
                    stop = place + len(phrase)
                    if starts_word(document.text, place) and ends_word(document.text, stop):
                        found.append((start, end))
                    place = document.text.find(phrase, place + 1)
    return found


def few(letters: str) -> st.SearchStrategy[str]:
    return st.text(st.sampled_from(letters), min_size=1, max_size=40)


letters = st.sampled_from(["ab ", "ab. ", "a\n b,", "ab \0", "a_1 "])
cases = letters.flatmap(lambda chars: st.tuples(few(chars), st.lists(few(chars), max_size=3)))


@settings(max_examples=250, deadline=None, derandomize=True)
@given(cases, st.integers(2, 9))
@example(("ab ab ab", ["ab ab", "b ab ab"]), 4)
@example(("a b. a b a b", ["b a b", "a b. a"]), 3)
def test_every_common_phrase_is_covered(case: tuple[str, list[str]], least: int) -> None:
    answer, texts = case
    documents = [Document(text) for text in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grounding, "FEW_PLACES", grounding.MOST_PLACES)
        spans = ground(answer, documents, least)
    check(answer, documents, spans, least)
    phrases = common_phrases(answer, documents, least)
    # Nothing of that length is left between the spans, ...
    free = [i for i in range(len(answer)) if not any(s.start <= i < s.end for s in spans)]
    for start, end in phrases:
        assert not set(range(start, end)) <= set(free), answer[start:end]
    # ... every span is such a phrase, and the longest phrase of all is one of them.
    assert {(span.start, span.end) for span in spans} <= set(phrases)
    longest = max((end - start for start, end in phrases), default=0)
    assert longest == max((span.end - span.start for span in spans), default=0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.text(max_size=60), max_size=4), st.data())
def test_spans_are_equal_text_in_any_script(parts: list[str], data: st.DataObject) -> None:
    """The answer is put together from pieces of the documents, and more."""
    documents = [Document(part) for part in parts if part]
    pieces = []
    for part in parts:
        first = data.draw(st.integers(0, len(part)))
        pieces += [part[first : data.draw(st.integers(first, len(part)))], data.draw(st.text())]
    answer = " ".join(pieces)
    check(answer, documents, ground(answer, documents, 3), 3)


# ---- examples ----

RULES = "The hall is open from 7 to 23 on weekdays, and from 9 to 21 on all public holidays."


def quoted(answer: str, *texts: str) -> list[str]:
    documents = [Document(text) for text in texts]
    spans = ground(answer, documents)
    check(answer, documents, spans, LEAST)
    return [answer[span.start : span.end] for span in spans]


def test_whole_words_on_both_sides() -> None:
    assert quoted("It is open from 7 to 23 on weekdaysX", RULES) == []  # 22 characters are left
    assert quoted("is open from 7 to 23 on weekdays", RULES) == ["is open from 7 to 23 on weekdays"]
    assert quoted("Xis open from 7 to 23 on weekdays, and so on", RULES) == [
        "open from 7 to 23 on weekdays, and"
    ]


def test_a_number_is_not_quoted_in_part() -> None:
    assert quoted(
        "a ticket for the day costs 12 euros", "a ticket for the day costs 125 euros"
    ) == ["a ticket for the day costs"]
    assert quoted("a ticket for the day costs 125", "a ticket for the day costs 12") == [
        "a ticket for the day costs"
    ]


def test_short_agreement_is_no_quotation() -> None:
    assert LEAST == 24
    assert quoted("open from 7 to 23 on two", RULES) == []
    assert quoted("open from 7 to 23 on weekdays", RULES) != []


def test_the_longest_quotation_stays_in_one_piece() -> None:
    """A document that agrees a little earlier must not take its start away."""
    other = "And when it is open from 7 to 23 on weekdays, I sleep."
    answer = "It is open from 7 to 23 on weekdays, and from 9 to 21 on all public holidays."
    documents = [Document(other), Document(RULES)]
    [span] = ground(answer, documents)
    assert span.document == 1 and answer[span.start : span.end] == RULES[9:]


def test_the_first_place_of_the_first_document_is_named() -> None:
    line = "the outrider rides ahead of the party"
    documents = [Document("nothing"), Document(f"1 {line}. {line}.", "b"), Document(line, "a")]
    [span] = ground(f"So {line}!", documents)
    assert span == Grounding(3, 3 + len(line), "b", 2, 2 + len(line))


def test_documents_without_a_name_go_by_their_place() -> None:
    [span] = ground(RULES, [Document("x", "a"), Document(RULES)])
    assert span == Grounding(0, len(RULES), 1, 0, len(RULES))


def test_no_quotation_runs_from_one_document_into_the_next() -> None:
    half, rest = RULES[:40], RULES[40:]
    documents = [Document(half), Document(rest)]
    answer = f"{half}\0{rest}"
    spans = ground(answer, documents)
    check(answer, documents, spans, LEAST)
    assert [span.document for span in spans] == [0, 1]


def test_scripts_without_spaces_are_cut_anywhere() -> None:
    text = "北京は今日とても天気がよく、公園には大勢の人がいて、みんな楽しそうに歩いていました。"
    answer = f"昨日{text[2:32]}でも寒い"
    [span] = ground(answer, [Document(text)])
    assert answer[span.start : span.end] == text[2:32]


def test_emoji_count_as_one_character() -> None:
    text = "🐎 rides ahead 🐎 of the party 🐎"
    [span] = ground(f"🐎🐎 {text}", [Document(f"🐎 {text} {RULES}")])
    assert (span.start, span.document_start) == (3, 2)


def test_nothing_to_quote() -> None:
    assert (
        ground("", [Document(RULES)]) == ground(RULES, []) == ground(RULES, [Document("x")]) == []
    )


# ---- time ----


def prose(size: int) -> str:
    rng = random.Random(7)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 9))) for _ in range(3000)]
    text = ""
    while len(text) < size:
        text += " ".join(rng.choices(words, k=4000)) + ".\n"
    return text[:size]


LARGE = 2_000_000


@pytest.mark.parametrize(
    ("document", "answer"),
    [
        ("a" * LARGE, "a" * 6000),
        ("a " * (LARGE // 2), "a " * 3000),
        ("ab. " * (LARGE // 4), "ab. " * 1200 + "b. " * 400),
        ("字" * (LARGE // 3), "字" * 6000),
        ("字汉字" * (LARGE // 9), "汉字字" * 1000 + "字汉" * 1500),
    ],
    ids=["one word", "one letter words", "a period", "one sign", "signs"],
)
def test_texts_that_repeat_themselves_take_bounded_time(document: str, answer: str) -> None:
    start = time.process_time()
    ground(answer, [Document(document)])
    assert time.process_time() - start < 1.5  # 0.1 to 0.3 on the machine it was written on


def test_two_megabytes_and_a_long_answer() -> None:
    text = prose(LARGE)
    answer = " ".join(text[at : at + 400] for at in range(0, LARGE, LARGE // 15))
    start = time.process_time()
    spans = ground(answer, [Document(text)])
    assert time.process_time() - start < 1.0  # 0.1
    check(answer, [Document(text)], spans, LEAST)
    assert sum(span.end - span.start for span in spans) > 0.97 * len(answer)


# ---- what may be given ----


def test_documents_are_texts_with_or_without_a_name() -> None:
    given = ["a", {"text": "b"}, {"name": "n", "text": "c"}, Document("d", "m")]
    found = as_documents(given)
    assert found == (Document("a"), Document("b"), Document("c", "n"), Document("d", "m"))
    assert as_documents(None) == as_documents([]) == ()
    assert as_documents(found) == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a text", "documents must be a list"),
        ({"text": "a"}, "documents must be a list"),
        ([""], r"documents\[0\] has no text"),
        (["a", {"text": ""}], r"documents\[1\] has no text"),
        ([{"text": 5}], r"documents\[0\] has no text"),
        ([{"name": "a"}], r"documents\[0\] must be a text or .* not \['name'\]"),
        ([{"text": "a", "title": "b"}], r"documents\[0\] must be"),
        ([5], r"documents\[0\] must be .* not int"),
        ([{"text": "a", "name": ""}], r"documents\[0\] has the name ''"),
        ([{"text": "a", "name": 5}], r"documents\[0\] has the name 5"),
        (["ok", "a\ud800"], r"documents\[1\]: its text is not valid Unicode .* character 1\)"),
        ([{"text": "a", "name": "\ud800"}], r"documents\[0\]: its name is not valid Unicode"),
        ([{"text": "a", "name": "n"}, {"text": "b", "name": "n"}], "two of the name 'n'"),
    ],
)
def test_other_things_are_refused(given: object, message: str) -> None:
    for error in (InvalidRequest, ConfigError):
        with pytest.raises(error, match=message) as refusal:
            as_documents(given, error)  # type: ignore[arg-type]
        str(refusal.value).encode()
