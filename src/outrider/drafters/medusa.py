"""Medusa heads: see heads/medusa.py."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from outrider.core.request import Request
from outrider.drafters.base import DraftConfig
from outrider.drafters.growth import Draft
from outrider.drafters.loop_text import Shape, Text
from outrider.drafters.trained import TrainedDrafter
from outrider.heads.medusa import Medusa
from outrider.heads.read_medusa import read_medusa
from outrider.model.loading import LoadedModel
from outrider.model.segment import Segment

if TYPE_CHECKING:
    from outrider.drafters.device_loop import DeviceLoop
    from outrider.model.cuda.capture import Capture
    from outrider.model.cuda.slot_table import SlotTable


class MedusaDrafter(TrainedDrafter):
    """All heads look at one state: that of the last token that the target has read. They know
    nothing of each other's guesses, so every node of a level has the same candidates below it."""

    name = kind = "medusa"
    read = staticmethod(read_medusa)
    head: Medusa

    def __init__(self, config: DraftConfig, target: LoadedModel) -> None:
        super().__init__(config, target)
        if self._tree == "chain":
            self.longest = self.head.options.heads

    def _deepest(self, request: Request) -> int:
        return min(super()._deepest(request), self.head.options.heads)

    def _read(self, requests: list[Request]) -> Tensor:
        return self._guess(requests, 0)

    def _pass(self, drafts: list[Draft]) -> Tensor:
        depth = len(drafts[0].path(drafts[0].frontier[0]))  # of all: they grow level by level
        logits = self._guess([draft.request for draft in drafts], depth)
        nodes = [i for i, draft in enumerate(drafts) for _ in draft.frontier]
        return logits[nodes]

    # ---- the loop on the device ----

    @property
    def loop_shape(self) -> Shape:
        return Shape(1, 1, 1, self.vocabulary, self.head.options.heads)  # it attends to nothing

    @property
    def logits_like(self) -> dict[str, Any]:
        own = self.head.options.own_outputs
        return {"dtype": self.dtype, "device": self.device} if own else super().logits_like

    def make_loop(self, table: "SlotTable", cuda: "Capture") -> "DeviceLoop":
        from outrider.drafters.medusa_loop import MedusaLoop

        return MedusaLoop(self, table, cuda)

    def texts(self, requests: list[Request], guesses: list[int]) -> list[Text]:
        """Of each text, the one feature that all heads look at."""
        texts = []
        for request, count in zip(requests, guesses, strict=True):
            slots = request.slots
            rows = Segment.chain([0], slots[-1:], slots[:-1], logits_from=1)
            texts.append(Text(request, rows, slots[-1:], slots, count))
        return texts

    def _guess(self, requests: list[Request], index: int) -> Tensor:
        """[requests, draft vocabulary] by head `index`."""
        states = self.features.at([request.slots[-1] for request in requests])
        return self.head(states.to(self.dtype), index)
