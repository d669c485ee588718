from pathlib import Path

import pytest
from tests.export.exported import write_target


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(Path(tmp_path_factory.mktemp("export")) / "target")
