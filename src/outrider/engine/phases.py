"""Where a step's time goes, by phase, on the host's clock."""

from collections.abc import Callable
from functools import wraps
from time import perf_counter
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


def phase(name: str) -> Callable[[Method], Method]:
    """Adds the method's running time to `self.seconds[name]`.

    A GPU works on after its kernels are launched, so there the wait shows in the phase that first
    needs a result.
    """

    def decorate(method: Method) -> Method:
        @wraps(method)
        def timed(self: Any, *arguments: Any) -> Any:
            start = perf_counter()
            try:
                return method(self, *arguments)
            finally:
                self.seconds[name] += perf_counter() - start

        return timed  # type: ignore[return-value]

    return decorate
