"""MTP heads: see heads/mtp.py."""

from typing import Any

import torch
from torch import Tensor

from outrider.core.errors import ConfigError, ModelError
from outrider.drafters.base import DraftConfig
from outrider.drafters.feature_drafter import FeatureDrafter
from outrider.drafters.loop_text import Shape
from outrider.heads.files import Files
from outrider.heads.mtp import Mtp
from outrider.heads.read_mtp import mtp_names, read_mtp
from outrider.model.attention import LayerCall, LayerKV, Pass, attending
from outrider.model.kv import KVCache
from outrider.model.loading import LoadedModel


class MtpDrafter(FeatureDrafter):
    """Without a `model`, the head that the target's own checkpoint carries. Where it carries
    several, the first one writes all tokens, from its own states."""

    name = kind = "mtp"
    read = staticmethod(read_mtp)
    head: Mtp

    def __init__(self, config: DraftConfig, target: LoadedModel) -> None:
        super().__init__(config, target)
        self._call = self._look()
        call, size = self._call, torch.empty((), dtype=self.dtype).element_size()
        self.bytes_per_slot = size * call.kv_heads * (call.head_size + call.value_head_size)

    def _files(self, config: DraftConfig, target: LoadedModel) -> Files:
        if config.options.get("model") is not None:
            return super()._files(config, target)
        files = Files.of(target.name)
        layers = int(target.model.config.get_text_config().num_hidden_layers)
        if mtp_names(files, layers) is None:
            raise ConfigError(
                f"the checkpoint of {target.name!r} carries no MTP head; give a 'model' that holds "
                "one for it, or another method"
            )
        return files

    @torch.inference_mode()
    def _look(self) -> LayerCall:
        """What the head's layer asks of attention; nothing is written."""
        calls: list[LayerCall] = []
        zero = torch.zeros(1, dtype=torch.int64, device=self.device)
        features = self.head.embed(zero).to(self.dtype)
        with attending(Pass(zero, [], recorded=calls)):
            self.head(features, zero, zero)
        if len(calls) != 1:
            raise ModelError(f"the MTP head's layer attends {len(calls)} times; once is supported")
        return calls[0]

    def _allocate(self, kv: KVCache) -> None:
        super()._allocate(kv)
        call, shape = self._call, (kv.total + 1, self._call.kv_heads)
        options: Any = {"dtype": self.dtype, "device": self.device}
        keys = torch.empty(*shape, call.head_size, **options)
        values = torch.empty(*shape, call.value_head_size, **options)
        keys[0], values[0] = 0, 0  # what padding reads must be finite
        call.module.outrider_kv = LayerKV(keys, values)  # type: ignore[assignment]

    def run(self, step: Pass, features: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        with attending(step):
            return self.head(features, tokens, positions)

    @property
    def loop_shape(self) -> Shape:
        call = self._call
        return Shape(call.heads, call.kv_heads, call.value_head_size, self.vocabulary)
