"""The parts import only from the left: a walk over the imports of the whole package."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "outrider"

# "" is the package itself: the names that users import, which lead to the engine.
ORDER = [
    "core",
    "sampling",
    "verify",
    "model",
    "heads",
    "export",
    "drafters",
    "engine",
    "",
    "server",
    "train",
    "audit",
    "bench",
    "cli",
]
FORBIDDEN = {("train", "engine"), ("train", "server")}  # below it in the order, but none of its
DOTTED = re.compile(r"outrider(\.\w+)+(:\w+)?")


def imported(code: str, module: str, is_package: bool) -> Iterator[str]:
    """Dotted names of everything a module imports, anywhere in it, also by import_module."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and DOTTED.fullmatch(str(node.value)):
            yield node.value.replace(":", ".")  # a lazy registry names its modules in strings


def part_of(name: str) -> str:
    """The part a dotted name belongs to; names that are no folder belong to the package itself."""
    first = [*name.split("."), ""][1]
    return first if first in ORDER or (SOURCE / first).is_dir() else ""


def wrong_arrows(code: str, module: str, is_package: bool = False) -> list[str]:
    part = part_of(module)
    targets = {
        name for name in imported(code, module, is_package) if name.split(".")[0] == "outrider"
    }
    return sorted(
        f"{module} imports {name}"
        for name in targets
        if (part, part_of(name)) in FORBIDDEN or ORDER.index(part_of(name)) > ORDER.index(part)
    )


def modules() -> dict[str, Path]:
    """Dotted name -> file, for the whole package."""
    found = {}
    for file in SOURCE.rglob("*.py"):
        parts = file.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if file.stem == "__init__" else parts)] = file
    return found


def test_every_folder_has_its_place_in_the_order():
    folders = {file.relative_to(SOURCE).parts[0] for file in SOURCE.rglob("*/*.py")}
    assert folders <= set(ORDER)
    assert {"core", "sampling", "verify", "model", "drafters", "engine", "cli"} <= folders


def test_no_import_points_the_wrong_way():
    assert [
        arrow
        for module, file in modules().items()
        for arrow in wrong_arrows(file.read_text("utf-8"), module, file.stem == "__init__")
    ] == []


@pytest.mark.parametrize(
    ("module", "code", "arrow"),
    [
        ("outrider.core.tree", "import outrider.model.kv", "outrider.model.kv"),
        ("outrider.core.tree", "from outrider import LLM", "outrider.LLM"),
        ("outrider.core.tree", "from outrider import engine", "outrider.engine"),
        ("outrider.sampling.rows", "from outrider.verify import x", "outrider.verify.x"),
        ("outrider.verify.coupled", "from ..model import kv", "outrider.model.kv"),
        ("outrider.verify.coupled", "from ..model.kv import KVCache", "outrider.model.kv.KVCache"),
        ("outrider.model.kv", "def f():\n    import outrider.drafters", "outrider.drafters"),
        ("outrider.drafters.none", "from .. import engine", "outrider.engine"),
        ("outrider.drafters.registry", "X = 'outrider.engine.llm:LLM'", "outrider.engine.llm.LLM"),
        ("outrider.engine.llm", "if TYPE_CHECKING:\n    import outrider.cli", "outrider.cli"),
        ("outrider.train.data", "from outrider.engine.engine import x", "outrider.engine.engine.x"),
        ("outrider.train.data", "import outrider.server.app", "outrider.server.app"),
    ],
)
def test_a_wrong_arrow_is_found(module, code, arrow):
    assert wrong_arrows(code, module) == [f"{module} imports {arrow}"]


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("outrider.sampling.rows", "from outrider.core.tree import ROOT"),
        ("outrider.model.kv", "from .radix import Node\nfrom . import segment"),
        ("outrider.model.runner", "import torch, transformers.models"),
        ("outrider.cli.main", "from outrider import LLM, __version__\nimport outrider.engine"),
        ("outrider.train.data", "from outrider import LLM\nimport outrider.drafters"),
        ("outrider.core.tree", "TEXT = 'see outrider.engine for more'"),
    ],
)
def test_a_right_arrow_is_allowed(module, code):
    assert wrong_arrows(code, module) == []


def test_a_packages_own_init_resolves_relative_imports_from_itself():
    assert wrong_arrows("from . import choose", "outrider.sampling", is_package=True) == []
    assert wrong_arrows("from ..verify import x", "outrider.sampling", is_package=True) != []


def test_core_knows_no_model():
    for module, file in modules().items():
        if part_of(module) == "core":
            names = imported(file.read_text("utf-8"), module, file.stem == "__init__")
            assert not {name for name in names if name.split(".")[0] == "transformers"}


def test_importing_the_package_is_cheap():
    code = "import sys, outrider; print(*{'torch', 'transformers', 'numpy'} & sys.modules.keys())"
    environment = {"PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""
