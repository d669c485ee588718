"""The drafters of an engine, and how each request is drafted for."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from outrider.core.errors import ConfigError, InvalidRequest
from outrider.drafters.base import DraftConfig, Drafter
from outrider.drafters.registry import drafter_class, make_drafter, parse_config
from outrider.engine.policy.policy import Policy
from outrider.model.kv import KVCache
from outrider.model.runner import Runner


@dataclass(frozen=True, eq=False)
class Plan:
    """How one request is drafted for. A length of None leaves it to the policy."""

    name: str
    drafters: tuple[Drafter, ...]
    length: int | None

    @cached_property
    def most(self) -> int:
        """Nodes that it may be given in a step."""
        longest = max((drafter.longest for drafter in self.drafters), default=0)
        return longest if self.length is None or not self.drafters else self.length


NOBODY = Plan("none", (), 0)


class Crew:
    """The drafter of the engine's configuration, and light ones that single requests ask for."""

    def __init__(self, config: DraftConfig, runner: Runner, policy: Policy) -> None:
        self.config, self._runner, self._policy = config, runner, policy
        self.root = make_drafter(config, runner.loaded)
        for drafter in dict.fromkeys([self.root, *self.root.members]):
            if drafter.needs_hidden:
                drafter.features = runner.tap(drafter.needs_hidden, drafter.project)
        self._extra: dict[str, Drafter] = {}

    @property
    def all(self) -> list[Drafter]:
        """That must hear of requests, each once."""
        return [self.root, *self._extra.values()]

    @property
    def members(self) -> list[Drafter]:
        """Those who draft themselves."""
        return [*self.root.members, *self._extra.values()]

    @property
    def reads_choices(self) -> bool:
        return any(drafter.reads_choices for drafter in self.members)

    def bind(self, kv: KVCache) -> None:
        """The slots exist now."""
        self._kv = kv
        self._bind(self.root)

    def _bind(self, drafter: Drafter) -> None:
        for each in {drafter, *drafter.members}:
            each.target_runner = self._runner
            each.pass_seconds = lambda rows: self._policy.cost.seconds(rows)
            # How often guesses hold says little of what drafts take on a GPU beside passes that
            # follow each other: there the clock has to show that they pay.
            if not self._runner.runs_ahead:
                self._policy.promise(each.name, each.record)
        drafter.bind(self._kv)

    def plan(self, wanted: Any) -> Plan:
        """From `SamplingParams.speculation`; raises InvalidRequest for what cannot be had."""
        if wanted is False:
            return NOBODY
        if wanted is None:
            return self._plan(self.root, self.config.num_speculative_tokens)
        try:
            config = parse_config({"method": self.root.name, **wanted})
        except ConfigError as error:
            raise InvalidRequest(f"speculation: {error}") from None
        if config.options or config.verification != "coupled":
            raise InvalidRequest(
                "speculation takes 'method' and 'num_speculative_tokens'; other options are the "
                "engine's (speculative_config)"
            )
        return self._plan(self._named(config.method), config.num_speculative_tokens)

    def _plan(self, drafter: Drafter, length: int | None) -> Plan:
        if drafter.longest == 0:
            return NOBODY
        members = tuple(drafter.members) if length is None else (drafter,)
        return Plan(drafter.name, members, length)

    def _named(self, method: str) -> Drafter:
        for drafter in (self.root, *self.members):
            if drafter.name == method:
                return drafter
        if not drafter_class(method).light:
            raise InvalidRequest(
                f"speculation: drafter {method!r} was not loaded with this engine; name it in "
                "speculative_config"
            )
        config = DraftConfig(method, None, self.config.verification)
        made = make_drafter(config, self._runner.loaded)
        self._bind(made)
        self._extra[method] = made
        return made
