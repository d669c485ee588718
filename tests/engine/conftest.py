from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.helpers import (
    Ask,
    DrawnTrees,
    Models,
    Trees,
    make_llm,
    make_models,
    mixed_requests,
    registered,
    run_alone,
)

from outrider.core.outputs import RequestOutput
from outrider.engine.llm import LLM

TOKENS = 32


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return make_models(Path(tmp_path_factory.mktemp("models")))


@pytest.fixture(scope="session", autouse=True)
def test_drafters() -> Iterator[None]:
    with registered(Trees, DrawnTrees):
        yield


@pytest.fixture(scope="session")
def plain(models: Models) -> LLM:
    """The target without speculation."""
    return make_llm(models.target)


@pytest.fixture(scope="session")
def asked() -> list[Ask]:
    """Sixteen requests that have nothing in common."""
    return mixed_requests(TOKENS)


@pytest.fixture(scope="session")
def expected(plain: LLM, asked: list[Ask]) -> list[RequestOutput]:
    """What plain decoding writes for them, one at a time; test drafters may know it."""
    results = run_alone(plain, asked)
    Trees.learn(asked, results)
    return results
