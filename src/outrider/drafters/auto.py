"""Several drafters at once: they compete for every step of every request."""

from outrider.core.errors import ConfigError
from outrider.core.request import Request
from outrider.core.tree import ROOT, TokenTree
from outrider.core.verdict import Span, Verdict
from outrider.drafters.base import DraftConfig, Drafter
from outrider.drafters.merging import merge
from outrider.heads.shipped import shipped_for
from outrider.model.kv import KVCache
from outrider.model.loading import LoadedModel
from outrider.model.runner import Runner

MODEL_OPTIONS = ("model", "revision", "dtype", "quantization", "translation", "tree")


class AutoDrafter(Drafter):
    """The lookups, which cost nothing, and a drafter with weights: one that is named, or else one
    that comes with the package for this target.

    The policy weighs the members' proposals one by one. With a fixed length there is no policy:
    then the members' trees are merged, and the likeliest nodes by their own word are proposed.
    """

    name = "auto"
    options = {"drafters": None, **dict.fromkeys(MODEL_OPTIONS)}  # noqa: RUF012
    longest = 24

    def __init__(self, config: DraftConfig, target: LoadedModel) -> None:
        super().__init__(config, target)
        from outrider.drafters.registry import make_drafter  # which knows this module by name

        self._members = [make_drafter(each, target) for each in self._configs(target)]
        names = [member.name for member in self._members]  # by which what is learned is kept
        for name in names:
            if names.count(name) > 1:  # of files nobody knows the kind before they are read
                raise ConfigError(f"'auto' has two members of the kind {name!r}; leave one out")
        self.bytes_per_slot = sum(member.bytes_per_slot for member in self._members)

    def _configs(self, target: LoadedModel) -> list[DraftConfig]:
        from outrider.drafters.registry import parse_config

        given = self.option("drafters")
        named = {
            name: self.config.options[name] for name in MODEL_OPTIONS if name in self.config.options
        }
        if given is None:
            given = ["suffix", "documents"]
            if "model" not in named and (shipped := shipped_for(target.name)):
                named["model"] = shipped
        if not isinstance(given, list) or not given:
            raise ConfigError(f"drafters={given!r} must be a list of names or configurations")
        if named:
            given = [*given, {"method": "draft_model", **named}]
        configs: list[DraftConfig] = []
        for each in given:
            parsed = parse_config(each)
            if parsed.method == self.name or parsed.method in [c.method for c in configs]:
                raise ConfigError(f"'auto' cannot have {parsed.method!r} as one more member")
            configs.append(
                DraftConfig(
                    parsed.method,
                    parsed.num_speculative_tokens,
                    self.config.verification,
                    parsed.options,
                )
            )
        return configs

    @property
    def members(self) -> list[Drafter]:
        return self._members

    @property
    def runners(self) -> dict[Runner, int]:
        return {runner: rows for m in self._members for runner, rows in m.runners.items()}

    @property
    def workspace_bytes(self) -> int:
        return sum(member.workspace_bytes for member in self._members)

    def bind(self, kv: KVCache) -> None:
        for member in self._members:
            member.bind(kv)

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        proposed = [member.propose(batch, budgets) for member in self._members]
        return [_merged(list(trees), k) for trees, k in zip(zip(*proposed), budgets, strict=True)]

    def review(self, batch: list[Request], trees: list[TokenTree], verdicts: list[Verdict]) -> None:
        """Each member hears of the trees that were its alone; a merged one names several."""
        for member in self._members:
            entries = zip(batch, trees, verdicts, strict=True)
            own = [entry for entry in entries if entry[1].source == member.name]
            if own:
                requests, proposed, said = map(list, zip(*own, strict=True))
                member.review(requests, proposed, said)

    def observe(self, spans: list[Span]) -> None:
        for member in self._members:
            member.observe(spans)

    def meanwhile(self, prompts: list[Request]) -> None:
        for member in self._members:
            member.meanwhile(prompts)

    def release(self, request: Request) -> None:
        for member in self._members:
            member.release(request)

    def reset(self) -> None:
        for member in self._members:
            member.reset()


def _merged(trees: list[TokenTree], budget: int) -> TokenTree:
    drawn = [tree for tree in trees if tree.q is not None and len(tree)]
    if drawn:  # must be checked as it is
        return drawn[0]
    return merge(trees, [_own_word(tree) for tree in trees], budget)


def _own_word(tree: TokenTree) -> list[float]:
    """Path chances as the drafter itself sees them."""
    confidence = tree.confidence or [0.5] * len(tree)
    chances: list[float] = []
    for node, parent in enumerate(tree.parents):
        chances.append(confidence[node] * (1.0 if parent == ROOT else chances[parent]))
    return chances
