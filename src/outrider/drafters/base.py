"""The one interface behind which every way of drafting lives."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from outrider.core.errors import ConfigError, unknown_name
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.core.verdict import Span, Verdict
from outrider.drafters.shapes import Shape
from outrider.drafters.worth import FREE, Worth
from outrider.model.features import Features, Tap
from outrider.model.kv import KVCache
from outrider.model.loading import LoadedModel
from outrider.model.runner import Runner

if TYPE_CHECKING:
    from outrider.drafters.following import Following

Verification = Literal["coupled", "traversal"]


@dataclass(frozen=True)
class DraftConfig:
    """`speculative_config` after parsing; `options` are the drafter's own keys."""

    method: str = "none"
    num_speculative_tokens: int | None = None  # nodes per step; None: the policy decides
    verification: Verification = "coupled"
    options: dict[str, Any] = field(default_factory=dict)


class Drafter:
    """Proposes trees. It may be as wrong as it likes: the text does not depend on it.

    `options` names the configuration keys a drafter takes, with their defaults. The engine calls
    `bind` once, when the slots exist, and then per step `propose`, `review` and `observe`. A
    request's `tokens` are the committed text, `slots` and `reserved` its KV slots; none may be
    changed. Any step may pass a request by, and any tree may be cut before it is checked.
    """

    name: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}
    longest: int = 8  # nodes that the policy may ask for
    light: ClassVar[bool] = False  # has no weights and no KV: an engine may add it at any time
    divisible: ClassVar[bool] = True  # False: its tree is checked whole and alone, or not at all
    # Whether it reads the target's choices at nodes that were not accepted (`Verdict.choices`).
    reads_choices: ClassVar[bool] = False

    # Hidden states of the target that it builds on: the input of a layer, or what the head reads.
    # The target's passes write them as `project` has it, into `features`, by slot.
    needs_hidden: tuple[Tap, ...] = ()
    features: Features  # there before `bind`, where anything is needed
    bytes_per_slot: int = 0  # its own KV, declared before the pool is sized
    target_runner: Runner  # for those that draft with the target itself; there before `bind`
    # The time of a target pass over n rows of one request, where the engine has measured it.
    pass_seconds: Callable[[int], float] | None = None
    # By depth, how often its guesses hold once one came so deep, where its training has found out.
    record: tuple[float, ...] = ()

    def __init__(self, config: DraftConfig, target: LoadedModel) -> None:
        self.config = config
        self.check_options(config)

    @classmethod
    def check_options(cls, config: DraftConfig) -> None:
        """Before anything is loaded."""
        for key in config.options:
            if key not in cls.options:
                known = [*cls.options, "method", "num_speculative_tokens", "verification"]
                raise ConfigError(unknown_name(f"option of drafter {cls.name!r}:", key, known))

    @classmethod
    def make(cls, config: DraftConfig, target: LoadedModel) -> "Drafter":
        """Where one method has several implementations, the one that suits this target."""
        return cls(config, target)

    @classmethod
    def audit_config(cls, target: str) -> dict[str, Any]:
        """A `speculative_config` that works for this target: how audits of all drafters make one.

        To be overridden where the name alone is not enough.
        """
        return {"method": cls.name}

    @property
    def members(self) -> list["Drafter"]:
        """Those who compete: of most drafters only itself."""
        return [self]

    @property
    def runners(self) -> dict[Runner, int]:
        """Those of its own models, with the rows of their passes: all share the engine's memory."""
        return {}

    @property
    def workspace_bytes(self) -> int:
        """What it will hold on a GPU beside weights and slots, declared before the pool is sized;
        that of its runners apart."""
        return 0

    def backlog(self, request: Request) -> int:
        """Rows of a model of its own that must be computed before it can draft for the request."""
        return 0

    @property
    def prepared(self) -> int:
        """How many things calls have built for later ones, as graphs are: such calls take long."""
        return 0

    def serves(self, request: Request) -> bool:
        """Whether it can ever propose anything for this request, which is new."""
        return True

    # Drafts that begin on the device as soon as the pass has checked the last ones, where the
    # drafter can do that; there once it is bound.
    following: "Following | None" = None

    def followed(self, request: Request, start: int) -> None:
        """Such a draft has begun, and has read what of the text is new: from token `start` on."""

    def depth(self, nodes: int) -> int:
        """How deep a tree of so many nodes will be: a chain, unless a drafter says other. What a
        draft can gain, and what it costs where each level is a pass, goes by its depth."""
        return nodes

    def outlines(self, nodes: int) -> list[Shape]:
        """Of a drafter that may be asked for trees of any depth: for depth 1, 2, … what a tree of
        so many nodes will look like, about, its best nodes first."""
        return []

    def option(self, name: str) -> Any:
        return self.config.options.get(name, self.options[name])

    def bind(self, kv: KVCache) -> None:
        """The pool exists now; slot ids run from 1 to `kv.total`."""

    def project(self, states: Tensor) -> Tensor:
        """What is kept of the states it needs: [rows, all side by side] -> [rows, width]."""
        return states

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        """One tree per request, of at most its budget of nodes. Changes no request."""
        raise NotImplementedError

    @property
    def weighs(self) -> bool:
        """Whether it goes by its own guesses how far a draft pays, told what a token takes."""
        return False

    levels = 0  # passes of the last drafts, where it weighs that; the last may have found nothing

    def propose_to(
        self, batch: list[Request], budgets: list[int], depth: int, worth: Worth = FREE
    ) -> list[TokenTree]:
        """The same, no deeper than that, where `outlines` leave the depth open; and as far as it
        pays, where it `weighs` that."""
        return self.propose(batch, budgets)

    def review(self, batch: list[Request], trees: list[TokenTree], verdicts: list[Verdict]) -> None:
        """What the target said to this drafter's proposals as they were checked: cut, perhaps, but
        not merged with another's. Called before the accepted tokens join the requests."""

    def observe(self, spans: list[Span]) -> None:
        """What was committed since the last call: prompt chunks, prefix hits, accepted text."""

    def meanwhile(self, prompts: list[Request]) -> None:
        """A pass is under way, which reads these prompts among others: the time for work that a
        draft would have to wait for later. Called once in every step."""

    def release(self, request: Request) -> None:
        """The request has left; forget it."""

    def reset(self) -> None:
        """Forget what was learned from requests that have left, as if just started."""
