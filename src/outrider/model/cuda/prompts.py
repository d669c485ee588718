"""Prompts as CUDA graphs: read kernel by kernel, a text waits for hundreds of launches."""

import torch
from torch import Tensor

from outrider.model.cuda.capture import Capture
from outrider.model.cuda.fused import FusedModel
from outrider.model.cuda.inputs import FIELDS, RowInputs
from outrider.model.cuda.long_pass import Choose, choosing_of
from outrider.model.cuda.whole_text import WholeText, size_for, sizes_for
from outrider.model.cuda.workspace import Workspace
from outrider.model.flight import Flight
from outrider.model.segment import Segment

AT_ONCE = 4  # texts of one pass: more of them are faster read together, launch by launch


class Prompt:
    """A captured pass with its buffers."""

    def __init__(
        self,
        size: int,
        model: FusedModel,
        table: Tensor,
        work: Workspace,
        choose: Choose,
        cuda: Capture,
    ) -> None:
        self.text = text = WholeText(size, 1 + FIELDS, table, cuda)
        last, fields = text.more[:1], text.more[1:]  # row of its last token; how the next is chosen
        choosing = RowInputs(1, True, fields, table)

        def read() -> None:
            self.logits = model.read_text(text.inputs, text.keys, last, work)  # [1, vocabulary]
            self.choice = choose(self.logits, choosing)  # [1] int64

        self._replay = cuda(read)

    def __call__(self, segment: Segment) -> None:
        more = self.text.more_here
        more[0] = len(segment.context) + len(segment) - 1
        more[1:] = choosing_of([segment])
        self.text.send(segment)
        self._replay()


class Prompts:
    """Captured at load: a first request would wait for that longer than for its prompt."""

    def __init__(
        self, model: FusedModel, table: Tensor, work: Workspace, choose: Choose, cuda: Capture
    ) -> None:
        """table [lines, longest text]."""
        self._prompts = {
            size: Prompt(size, model, table, work, choose, cuda)
            for size in sizes_for(table.shape[1])
        }
        self._cuda = cuda
        self._chosen = cuda.host_memory(AT_ONCE, torch.int64)
        self._turn = 0

    def among(self, segments: list[Segment]) -> list[int]:
        """Which of these to read here; none where that is no gain."""
        found = [i for i, segment in enumerate(segments) if self._takes(segment)]
        return found if len(found) <= AT_ONCE else []

    def _takes(self, segment: Segment) -> bool:
        last = len(segment) - 1
        return segment.logits_from >= last and size_for(segment) in self._prompts

    def __call__(self, segment: Segment) -> Flight:
        """Start the pass over one of those; at most AT_ONCE before the first of them has landed."""
        size = size_for(segment)
        assert size is not None
        prompt = self._prompts[size]
        prompt(segment)
        if segment.logits_from == len(segment):
            return Flight(prompt.logits[:0], landed=list)
        self._turn = (self._turn + 1) % AT_ONCE
        chosen = self._chosen[self._turn : self._turn + 1]
        chosen.copy_(prompt.choice, non_blocking=True)
        # A copy: another prompt of that size may be read in the same step.
        logits, landed = prompt.logits.clone(), self._cuda.mark()

        def token() -> list[int]:
            landed()
            return chosen.tolist()

        return Flight(logits, landed=token)
