"""What a loop on the device needs of CUDA: captured functions, and memory for quick copies."""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """What is launched in it becomes the graph. Nothing is collected meanwhile: where an engine
    that nobody holds any more is, the end of its graphs would be an error of this one."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool):
            yield
    finally:
        if collects:
            gc.enable()


class Capture:
    """Functions captured with one of these share their memory: they run one after the other."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()

    def active(self) -> AbstractContextManager[None]:
        """In which all else is called: Triton launches on the current device."""
        return torch.cuda.device(self.device)

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """`run` as one launch. It must read and write the same tensors at every call."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles kernels and chooses algorithms
            run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, self._pool):
            run()
        return graph.replay

    def host_memory(self, size: int, dtype: torch.dtype) -> Tensor:
        """[size], that copies to and from the device need not wait for."""
        return torch.zeros(size, dtype=dtype).pin_memory()

    def mark(self) -> Callable[[], None]:
        """What waits for all that was started before this."""
        event = torch.cuda.Event()
        event.record()
        return event.synchronize

    def wait(self) -> None:
        """For all that was started."""
        torch.cuda.current_stream().synchronize()
