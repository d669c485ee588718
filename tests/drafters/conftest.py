from pathlib import Path

import pytest
from tests.engine.helpers import Models, make_models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return make_models(Path(tmp_path_factory.mktemp("models")))
