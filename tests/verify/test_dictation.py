"""Texts that a benchmark dictates: the walk follows them, and says where the target did not."""

import numpy as np

from outrider.core.dictation import Dictation
from tests.verify.test_verify import V, make_requests, run


def test_a_text_that_the_target_would_write_anyway() -> None:
    own = run(make_requests(), 12, None)
    requests = make_requests()
    for request, text in zip(requests, own):
        request.dictation = Dictation(text)
    assert run(requests, 12, own) == own
    assert [request.dictation.overruled for request in requests if request.dictation] == [0] * 10


def test_a_text_that_differs_is_written_with_drafts_and_without() -> None:
    """Beside one that is not dictated, which stays as it is."""
    own = run(make_requests(), 12, None)
    random = np.random.default_rng(1)
    dictated = [random.integers(V, size=8).tolist() for _ in own]
    for truth in (None, dictated):
        requests = make_requests()
        for request, text in zip(requests[1:], dictated[1:]):
            request.dictation = Dictation(text)
        written = run(requests, 12, truth)
        assert written[0] == own[0]
        assert [text[:8] for text in written[1:]] == dictated[1:]
        for request in requests[1:]:
            assert request.dictation is not None and 4 <= request.dictation.overruled <= 8
