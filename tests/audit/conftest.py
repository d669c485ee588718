from pathlib import Path

import pytest
from tests.engine.helpers import Models, make_models, perturbed
from tests.tiny import make_tokenizer


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return make_models(Path(tmp_path_factory.mktemp("audited")))


@pytest.fixture(scope="session")
def wild(models: Models, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A draft model that is wrong half of the time: tests of rejection need rejections."""
    folder = perturbed(Path(models.target), tmp_path_factory.mktemp("wild"), 0.4)
    make_tokenizer(folder)
    return str(folder)
