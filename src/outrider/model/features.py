"""Hidden states of the target for drafters that build on them: one vector per KV slot."""

from collections.abc import Callable
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

    On a GPU states are projected in the pass, which hides it. Elsewhere they are kept as they are
    and projected when they are read: many texts at once may never be drafted for.
    """

    def __init__(self, taps: tuple[Tap, ...], project: Callable[[Tensor], Tensor]) -> None:
        self.taps = taps
        self._project = project  # [rows, all states side by side] -> [rows, width]
        self._late: bool  # this and the rest: once slots are allocated
        self.width: int
        self.store: Tensor  # [slots + 1, elements]

    @torch.inference_mode()
    def elements(self, like: Tensor) -> int:
        """Per slot, for states [rows, all side by side]."""
        self._late = like.device.type == "cpu"
        self.width = self._project(like).shape[1]
        return like.shape[1] if self._late else self.width

    def write(self, states: dict[Tap, Tensor], slots: Tensor) -> None:
        """states: [rows, hidden size] each; slots [rows]."""
        asked = torch.cat([states[tap] for tap in self.taps], -1)
        kept = asked if self._late else self._project(asked)
        self.store.index_copy_(0, slots, kept.to(self.store.dtype))

    def at(self, slots: list[int] | Tensor) -> Tensor:
        """[slots, width]."""
        kept = self.store.index_select(0, torch.as_tensor(slots, device=self.store.device))
        return self._project(kept) if self._late else kept


class Taps:
    """Collects states while a pass runs, and has them written at its end: inside a CUDA graph, too,
    where they are a part of what is captured."""

    def __init__(self) -> None:
        self.features: list[Features] = []
        self.wanted: set[Tap] = set()
        self._states: dict[Tap, Tensor] = {}  # of the pass under way
        self._widths: dict[Tap, int] = {}
        self._hooks: list[Any] = []

    def __bool__(self) -> bool:
        return bool(self.features)

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
            elements = self._elements(features, dtype, device)
            features.store = torch.empty(slots + 1, elements, dtype=dtype, device=device)
            features.store[0] = 0  # what padding reads must be finite

    def elements_per_slot(self, dtype: torch.dtype, device: torch.device) -> int:
        return sum(self._elements(features, dtype, device) for features in self.features)

    def _elements(self, features: Features, dtype: torch.dtype, device: torch.device) -> int:
        size = sum(self._widths[tap] for tap in features.taps)
        return features.elements(torch.zeros(1, size, dtype=dtype, device=device))

    # ---- during a pass ----

    def see(self, tap: Tap, states: Tensor) -> None:
        """states [rows, hidden size]: copied, since a residual stream may be written in place."""
        if tap in self.wanted:
            self._states[tap] = states.clone()

    def finish(self, slots: Tensor) -> None:
        """All states have been seen; slots [rows]."""
        states, self._states = self._states, {}
        for features in self.features:
            features.write(states, slots)

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
        self._widths = self._look(model)

    def _layer_hook(self, tap: Tap) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden = args[0] if args else kwargs["hidden_states"]  # [1, rows, hidden size]
            self.see(tap, hidden[0])

        return hook

    def _end_hook(self, _: nn.Module, __: Any, output: Any) -> None:
        self.see("final", output[0][0])  # last_hidden_state [1, rows, hidden size]
        step = current_pass()
        if step is not None and step.recorded is None:  # a pass that looks at shapes writes nothing
            self.finish(step.write_slots)

    @torch.inference_mode()
    def _look(self, model: nn.Module) -> dict[Tap, int]:
        """The size of every state, found by one pass that writes nothing."""
        device = next(model.parameters()).device
        one = torch.zeros(1, 1, dtype=torch.int64, device=device)
        with attending(Pass(one[0], [], recorded=[])):
            model(input_ids=one, position_ids=one, use_cache=False)
        states, self._states = self._states, {}
        if missing := [tap for tap in self.wanted if tap not in states]:
            raise ModelError(
                f"{type(model).__name__} does not show its hidden states {missing}; drafters that "
                "build on them cannot be used with it"
            )
        return {tap: state.shape[1] for tap, state in states.items()}
