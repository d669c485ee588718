"""Hidden states of the target for drafters that build on them: one vector per KV slot."""

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from outrider.core.errors import ConfigError, ModelError
from outrider.model.attention import LayerCall, Pass, attending, current_pass
from outrider.model.skipping import layer_of

Tap = int | Literal["final"]  # the input of that layer, or the state that the head reads


class Features:
    """What one drafter keeps of the states it asked for. Every pass writes it at the slots whose KV
    it writes: whatever happens to a slot (rejection, preemption, prefix hits) happens to both.

    States are kept as they are, and projected when they are read: many may never be.
    """

    def __init__(self, taps: tuple[Tap, ...], project: Callable[[Tensor], Tensor]) -> None:
        self.taps = taps
        self._project = project  # [rows, all states side by side] -> [rows, width]
        self.width: int  # this and the rest: once slots are allocated
        self.store: Tensor  # [slots + 1, all states side by side]
        self._columns: list[slice]  # of each tap; two may be of the same layer

    def allocate(self, slots: int, widths: dict[Tap, int], like: Tensor) -> None:
        """`like` gives dtype and device."""
        ends = list(accumulate(widths[tap] for tap in self.taps))
        self._columns = [slice(*each) for each in pairwise([0, *ends])]
        self.store = like.new_empty(slots + 1, ends[-1])
        self.store[0] = 0  # what padding reads must be finite
        with torch.inference_mode():
            self.width = self.at([0]).shape[1]

    def write(self, tap: Tap, states: Tensor, slots: Tensor) -> None:
        """states [rows, hidden size], slots [rows]."""
        for own, columns in zip(self.taps, self._columns, strict=True):
            if own == tap:
                kept = self.store[:, columns]
                kept.index_copy_(0, slots, states.to(kept.dtype))

    def at(self, slots: list[int] | Tensor) -> Tensor:
        """[slots, width]."""
        kept = self.store.index_select(0, torch.as_tensor(slots, device=self.store.device))
        return self._project(kept)


class Taps:
    """Has states written while a pass runs: inside a CUDA graph, too, where that is a part of what
    is captured."""

    def __init__(self) -> None:
        self.features: list[Features] = []
        self.wanted: set[Tap] = set()
        self._widths: dict[Tap, int] = {}
        self._hooks: list[Any] = []

    def add(
        self,
        model: nn.Module,
        calls: list[LayerCall],
        taps: tuple[Tap, ...],
        project: Callable[[Tensor], Tensor],
    ) -> Features:
        for tap in taps:
            if tap != "final" and not 0 <= tap < len(calls):
                raise ConfigError(
                    f"hidden states of layer {tap} were asked for, but the target has only "
                    f"{len(calls)} layers; this drafter belongs to another model"
                )
        features = Features(taps, project)
        self.features.append(features)
        self.wanted.update(taps)
        self._hook(model, calls)
        return features

    def allocate(self, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        for features in self.features:
            features.allocate(slots, self._widths, torch.empty(0, dtype=dtype, device=device))

    @property
    def elements_per_slot(self) -> int:
        return sum(self._widths[tap] for features in self.features for tap in features.taps)

    def see(self, tap: Tap, states: Tensor, slots: Tensor) -> None:
        """During a pass: states [rows, hidden size], slots [rows]."""
        for features in self.features:
            features.write(tap, states, slots)

    # ---- the Hugging Face module ----

    def _hook(self, model: nn.Module, calls: list[LayerCall]) -> None:
        """Where passes run through the module, its own modules tell."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = [
            layer_of(model, calls[tap].module).register_forward_pre_hook(
                self._layer_hook(tap), with_kwargs=True
            )
            for tap in self.wanted
            if tap != "final"
        ]
        self._hooks.append(model.get_decoder().register_forward_hook(self._end_hook))  # type: ignore[operator]
        self._look(model)

    def _layer_hook(self, tap: Tap) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden = args[0] if args else kwargs["hidden_states"]  # [1, rows, hidden size]
            self._told(tap, hidden[0])

        return hook

    def _end_hook(self, _: nn.Module, __: Any, output: Any) -> None:
        self._told("final", output[0][0])  # last_hidden_state [1, rows, hidden size]

    def _told(self, tap: Tap, states: Tensor) -> None:
        """states [rows, hidden size]."""
        step = current_pass()
        if step is not None and step.recorded is None:
            self.see(tap, states, step.write_slots)
        elif step is not None:  # a pass that looks at shapes writes nothing
            self._widths[tap] = states.shape[1]

    @torch.inference_mode()
    def _look(self, model: nn.Module) -> None:
        """Find out the size of every state, by one pass that writes nothing."""
        device = next(model.parameters()).device
        one = torch.zeros(1, 1, dtype=torch.int64, device=device)
        with attending(Pass(one[0], [], recorded=[])):
            model(input_ids=one, position_ids=one, use_cache=False)
        if missing := [tap for tap in self.wanted if tap not in self._widths]:
            raise ModelError(
                f"{type(model).__name__} does not show its hidden states {missing}; drafters that "
                "build on them cannot be used with it"
            )
