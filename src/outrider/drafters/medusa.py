"""Medusa heads: see heads/medusa.py."""

from torch import Tensor

from outrider.core.request import Request
from outrider.drafters.base import DraftConfig
from outrider.drafters.growth import Draft
from outrider.drafters.trained import TrainedDrafter
from outrider.heads.medusa import Medusa
from outrider.heads.read_medusa import read_medusa
from outrider.model.loading import LoadedModel


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

    def _guess(self, requests: list[Request], index: int) -> Tensor:
        """[requests, vocabulary] by head `index`."""
        states = self.features.at([request.slots[-1] for request in requests])
        return self._over_targets_tokens(self.head(states.to(self.dtype), index))
