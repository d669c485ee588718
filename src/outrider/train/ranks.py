"""Processes that learn together, each from its part of every lesson; torchrun starts them.

A run without torchrun is the case of one process, and goes the same way."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor, distributed, nn

from outrider.core.errors import ConfigError
from outrider.model.loading import choose_device

T = TypeVar("T")
PATIENCE = timedelta(hours=2)  # with another process's texts; torchrun ends all if one dies


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes files and talks."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part: the same at every call, and nobody else's."""
        return items[self.rank :: self.count]

    def gather(self, own: list[T]) -> list[T]:
        """The parts of all processes, one after the other."""
        if self.count == 1:
            return own
        parts: list[list[T]] = [[] for _ in range(self.count)]
        distributed.all_gather_object(parts, own)
        return [item for part in parts for item in part]

    def from_first(self, value: T) -> T:
        """What the first process has."""
        if self.count == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]

    def sum(self, value: Tensor) -> Tensor:
        """Over all processes, in place; to the bit the same in each."""
        if self.count > 1:
            distributed.all_reduce(value)
        return value

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        if self.count == 1:
            return
        learning = [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in learning:
            if parameter.grad is None:  # not touched by this process's part
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in learning if p.grad is not None]
        flat = self.sum(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, total in zip(gradients, flat.split([g.numel() for g in gradients])):
            gradient.copy_(total.view_as(gradient))

    def close(self) -> None:
        if self.count > 1:
            distributed.destroy_process_group()


ALONE = Ranks()


def join(device: str) -> tuple[Ranks, str]:
    """The processes that torchrun has started, and the device of this one."""
    if not distributed.is_torchelastic_launched():
        return ALONE, device
    place = choose_device(device)
    if place.type == "cuda":
        index, cards = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if index >= cards:
            raise ConfigError(f"there are {cards} GPUs; give torchrun --nproc-per-node {cards}")
        place = torch.device("cuda", index)
        torch.cuda.set_device(place)
    # Objects go by way of the CPU, gradients from where they are.
    ways = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    distributed.init_process_group(ways, timeout=PATIENCE)
    return Ranks(distributed.get_rank(), distributed.get_world_size()), str(place)
