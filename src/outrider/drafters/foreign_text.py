"""The texts of a draft model whose tokens are not the target's, in KV slots of its own."""

from array import array
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import ceil

import torch
from torch import Tensor

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import ROOT
from outrider.drafters.translation import Intersection, View
from outrider.model.kv import KVCache
from outrider.model.runner import Runner
from outrider.model.segment import Segment

CATCH_UP_ROWS = 512  # rows of one catch-up pass: bounds its memory
MOST_RATIO = 8.0  # draft tokens per target token that memory is set aside for, at most
Path = list[tuple[int, int]]  # from the root's child to a node: its place and the draft model's id


@dataclass(eq=False)
class Shadow:
    """A request's text as the draft model reads it. Positions differ from the target's, so its
    slots do, too: `text.slots` for the text, `text.reserved` for drafted tokens, by place."""

    text: Request
    room: int = 0  # tokens that may follow in the draft model's context
    shared: int = 0  # slots that it reads from the prefix cache and may not write
    new: bool = True  # its text has not been put there
    # The drafted tokens that have an entry: (the parent's place or ROOT, id) -> place.
    drafted: dict[tuple[int, int], int] = field(default_factory=dict)


class ForeignTexts:
    """The shadows of the target's requests. A shadow follows the text when a draft is asked for:
    what has turned out otherwise is rolled back, what is missing is computed.
    """

    def __init__(self, runner: Runner, pair: Intersection, view: type[View], ratio: float) -> None:
        self.runner, self.pair = runner, pair
        self._new_view = view
        self._ratio = min(max(1.0, ratio), MOST_RATIO)  # draft tokens per target token
        self.bytes_per_slot = ceil(runner.bytes_per_slot * self._ratio)
        self._views: dict[Request, View] = {}
        self._shadows: OrderedDict[Request, Shadow] = OrderedDict()  # least recently used first

    def bind(self, kv: KVCache) -> None:
        total = ceil(kv.total * self._ratio)
        self.kv = KVCache(total, kv.prefix_caching)
        self.runner.allocate(total)
        self.runner.speed_up()

    def release(self, request: Request) -> None:
        self._views.pop(request, None)
        self._close(request)

    def _close(self, request: Request) -> None:
        shadow = self._shadows.pop(request, None)
        if shadow is not None:
            self.kv.close(shadow.text)

    def backlog(self, request: Request) -> int:
        """Rows to compute beyond the one that every draft starts with, about."""
        view, shadow = self._views.get(request), self._shadows.get(request)
        if view is None or shadow is None:
            return len(request.tokens) - 1
        return max(0, len(request.tokens) - view.read - 1)

    # ---- before a draft ----

    def follow(self, batch: Sequence[Request], nodes: Sequence[int]) -> dict[Request, Shadow]:
        """Shadows with slots for their text and so many drafted tokens each, where there is room
        for them in the draft model's context and in its pool."""
        present = {request for request, count in zip(batch, nodes, strict=True) if count > 0}
        ready = {}
        for request, count in zip(batch, nodes, strict=True):
            if request not in present:
                continue
            view = self._view(request)
            room = self.runner.loaded.context_length - len(view.ids)
            if room <= 0 or not view.ids:
                self._close(request)
                continue
            shadow = self._updated(request, view)
            shadow.room = room
            if self._reserve(shadow, count, present):
                ready[request] = shadow
        return ready

    def _view(self, request: Request) -> View:
        view = self._views.get(request)
        if view is None:
            view = self._views[request] = self._new_view(self.pair)
        view.extend(request.tokens)
        return view

    def _updated(self, request: Request, view: View) -> Shadow:
        shadow = self._shadows.get(request)
        if shadow is None:
            shadow = self._shadows[request] = Shadow(
                Request(request.id, [], SamplingParams(), seed=0)
            )
            self._open(shadow, view)
        else:
            self._settle(shadow, view)
            self._roll_back(shadow, view)
        view.changed_from = len(view.ids)
        self._shadows.move_to_end(request)
        return shadow

    def _open(self, shadow: Shadow, view: View) -> None:
        shadow.text.tokens = list(view.ids)
        shadow.shared = self.kv.open(shadow.text)

    def _settle(self, shadow: Shadow, view: View) -> None:
        """Drafted tokens that have become text keep their entries, the others' slots are free."""
        text, kept, at = shadow.text, [], ROOT
        for token in view.ids[len(text.tokens) :]:
            place = shadow.drafted.get((at, token))
            if place is None:
                break
            kept.append(place)
            text.tokens.append(token)
            at = place
        shadow.drafted = {}
        self.kv.commit(text, kept)

    def _roll_back(self, shadow: Shadow, view: View) -> None:
        text = shadow.text
        # The last token is always computed again, for its logits.
        keep = min(_common(text.tokens, view), len(text.slots), len(view.ids) - 1)
        if keep < shadow.shared:
            self.kv.close(text)
            self._open(shadow, view)
        else:
            text.reserved, text.slots = text.slots[keep:], text.slots[:keep]
            self.kv.commit(text, [])
            text.tokens[keep:] = view.ids[keep:]

    def _reserve(self, shadow: Shadow, nodes: int, present: Collection[Request]) -> bool:
        """Requests that are not being drafted for make room, the least recently used first."""
        while not self.kv.reserve(shadow.text, shadow.text.pending + nodes):
            idle = next((other for other in self._shadows if other not in present), None)
            if idle is None:
                return False
            self._close(idle)
        return True

    # ---- passes of the draft model ----

    def read(self, shadows: Sequence[Shadow]) -> Tensor:
        """Compute what is missing of each text; logits [shadows, draft ids] after its end."""
        logits: dict[Shadow, Tensor] = {}
        missing = [(shadow, 0) for shadow in shadows]  # with the number of pending rows done
        while missing:
            segments, left, room = [], [], CATCH_UP_ROWS
            for shadow, start in missing:
                end = min(shadow.text.pending, start + room)
                if end > start:
                    segments.append((shadow, _pending_rows(shadow.text, start, end)))
                    room -= end - start
                if end < shadow.text.pending:
                    left.append((shadow, end))
            rows = iter(self.runner.forward([segment for _, segment in segments]))
            for shadow, segment in segments:
                if segment.logits_from < len(segment):
                    logits[shadow] = next(rows)
            missing = left
        for shadow in shadows:
            self._keep_text(shadow)
        return torch.stack([logits[shadow] for shadow in shadows])

    def _keep_text(self, shadow: Shadow) -> None:
        text = shadow.text
        nodes, text.reserved = text.reserved[text.pending :], text.reserved[: text.pending]
        self.kv.commit(text, list(range(text.pending)))
        if shadow.new and self.kv.prefix_caching:  # others may start from its prompt
            self.kv.share(text)
            shadow.shared = len(text.slots)
        shadow.new = False
        text.reserved = nodes

    def go_on(self, nodes: Sequence[tuple[Shadow, Path]]) -> Tensor:
        """Logits [nodes, draft ids] after each node; its ancestors have been given before."""
        segments = []
        for shadow, path in nodes:
            text = shadow.text
            slots = array("q", [text.reserved[place] for place, _ in path])
            before = text.slots + slots[:-1]
            segments.append(Segment.chain([path[-1][1]], slots[-1:], before, logits_from=0))
        logits = self.runner.forward(segments)
        for shadow, path in nodes:
            parent = path[-2][0] if len(path) > 1 else ROOT
            place, token = path[-1]
            shadow.drafted[parent, token] = place
        return logits


def _common(tokens: Sequence[int], view: View) -> int:
    """How many tokens at the start are the view's, too."""
    same = min(view.changed_from, len(tokens), len(view.ids))
    end = min(len(tokens), len(view.ids))
    while same < end and tokens[same] == view.ids[same]:
        same += 1
    return same


def _pending_rows(text: Request, start: int, end: int) -> Segment:
    """Rows for the pending tokens from `start` to `end`; the text's last one gives logits."""
    tokens = text.tokens[len(text.slots) + start : len(text.slots) + end]
    return Segment.chain(
        tokens,
        text.reserved[start:end],
        text.slots + text.reserved[:start],
        logits_from=len(tokens) - 1 if end == text.pending else len(tokens),
    )
