from pathlib import Path

import pytest
from tests.drafters.foreign import make_all
from tests.engine.helpers import Models, make_models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return make_models(Path(tmp_path_factory.mktemp("models")))


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models with different tokenizers."""
    folder = Path(tmp_path_factory.mktemp("foreign"))
    make_all(folder)
    return folder
