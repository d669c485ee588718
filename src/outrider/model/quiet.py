"""Keeps transformers' own progress bars and notices off the terminal while Outrider loads."""

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

from transformers.utils import logging


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No bars and only errors from transformers; what it raises is reported by the caller.

    Its GGUF reader draws a bar that no setting turns off, hence the redirected stream.
    """
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
