"""Drafters by name. Nothing is imported before it is asked for."""

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from outrider.core.errors import ConfigError, unknown_name
from outrider.drafters.base import DraftConfig, Drafter
from outrider.model.loading import LoadedModel

ENTRY_POINTS = "outrider.drafters"  # other packages register `name = "module:DrafterClass"` here

BUILT_IN = {
    "auto": "outrider.drafters.auto:AutoDrafter",
    "dspark": "outrider.drafters.dspark:DSparkDrafter",
    "eagle": "outrider.drafters.eagle:EagleDrafter",
    "eagle3": "outrider.drafters.eagle3:Eagle3Drafter",
    "early_exit": "outrider.drafters.early_exit:EarlyExitDrafter",
    "lookahead": "outrider.drafters.lookahead:LookaheadDrafter",
    "medusa": "outrider.drafters.medusa:MedusaDrafter",
    "mtp": "outrider.drafters.mtp:MtpDrafter",
    "none": "outrider.drafters.none:NoDrafter",
    "ngram": "outrider.drafters.ngram:NgramDrafter",
    "suffix": "outrider.drafters.suffix:SuffixDrafter",
    "draft_model": "outrider.drafters.draft_model:DraftModelDrafter",
    "documents": "outrider.drafters.documents:DocumentsDrafter",
    "staged": "outrider.drafters.staged:StagedDrafter",
}

ALIASES = {"dflash": "dspark"}  # other systems' names for what we call by one


def drafter_names() -> list[str]:
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def drafter_class(name: str) -> type[Drafter]:
    if name in BUILT_IN:
        module, attribute = BUILT_IN[name].split(":")
        built_in: type[Drafter] = getattr(import_module(module), attribute)
        return built_in
    for point in entry_points(group=ENTRY_POINTS, name=name):
        found = point.load()
        if not (isinstance(found, type) and issubclass(found, Drafter)):
            raise ConfigError(f"drafter {name!r} from {point.value} is not a subclass of Drafter")
        called = getattr(found, "name", None)
        if called != name:  # requests name it so, and reports
            raise ConfigError(f"drafter {name!r} from {point.value} calls itself {called!r}")
        return found
    raise ConfigError(unknown_name("drafter", name, drafter_names()))


def parse_config(given: str | dict[str, Any] | None) -> DraftConfig:
    """A drafter's name, or a dict with vLLM's keys."""
    if given is None:
        return DraftConfig()
    if isinstance(given, str):
        given = {"method": given}
    if not isinstance(given, dict):
        raise ConfigError(f"speculative_config={given!r} must be a drafter's name or a dict")
    options = dict(given)
    # vLLM lets a model stand for the method.
    method = options.pop("method", "draft_model" if "model" in options else None)
    if not isinstance(method, str):
        raise ConfigError("speculative_config needs a 'method', e.g. {'method': 'ngram'}")
    method = ALIASES.get(method, method)
    drafter_class(method)  # an unknown name fails here
    length = options.pop("num_speculative_tokens", None)
    if length is not None and (
        isinstance(length, bool) or not isinstance(length, int) or length < 0
    ):
        raise ConfigError(f"num_speculative_tokens={length!r} must be a whole number, 0 or more")
    verification = options.pop("verification", "coupled")
    if verification not in ("coupled", "traversal"):
        raise ConfigError(f"verification={verification!r} must be 'coupled' or 'traversal'")
    return DraftConfig(method, length, verification, options)


def make_drafter(config: DraftConfig, target: LoadedModel) -> Drafter:
    return drafter_class(config.method).make(config, target)
