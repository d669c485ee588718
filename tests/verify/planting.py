"""Plant a fault: run a module's own source with one piece of it replaced."""

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module


@contextmanager
def planted(module_name: str, *pieces: tuple[str, str]) -> Iterator[None]:
    """(old, new) pieces; the old must occur exactly once, so that no fault silently goes away.
    Names that other modules imported from the faulty one are replaced there too."""
    module = import_module(module_name)
    source = inspect.getsource(module)
    for old, new in pieces:
        assert source.count(old) == 1, f"{module_name} holds {source.count(old)} times: {old}"
        source = source.replace(old, new)
    clean = dict(vars(module))
    exec(compile(source, f"<{module_name} with a fault>", "exec"), vars(module))
    changed = {
        id(value): vars(module)[name]
        for name, value in clean.items()
        if getattr(value, "__module__", "") == module_name
    }
    restore = [(vars(module), dict(clean))]
    for other in list(sys.modules.values()):
        name = getattr(other, "__name__", "")
        if other is module or not name.startswith(("outrider", "tests")):
            continue
        stale = {key: value for key, value in vars(other).items() if id(value) in changed}
        restore.append((vars(other), stale))
        vars(other).update({key: changed[id(value)] for key, value in stale.items()})
    try:
        yield
    finally:
        for namespace, values in restore:
            namespace.update(values)
