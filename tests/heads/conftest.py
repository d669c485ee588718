from pathlib import Path

import pytest
from tests.engine.helpers import Models, make_models
from tests.heads.untrained import Heads


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return make_models(Path(tmp_path_factory.mktemp("models")))


@pytest.fixture(scope="session")
def heads(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Heads:
    return Heads(models.target, Path(tmp_path_factory.mktemp("heads")))
