"""Drafters are found by name, also those of other packages; mistakes are named."""

import pytest
from tests.engine.helpers import Models, Trees, entry_point, make_llm, random_prompt, registered

from outrider.core.errors import ConfigError
from outrider.core.params import SamplingParams
from outrider.drafters import registry
from outrider.drafters.base import Drafter
from outrider.drafters.registry import drafter_class, drafter_names, parse_config


def test_a_drafter_of_another_package_is_found_by_its_entry_point(models: Models) -> None:
    with registered(Trees):
        assert "trees" in drafter_names()
        llm = make_llm(models.target, "trees")
        result = llm.generate(random_prompt(1, 5), SamplingParams(seed=1, max_tokens=6))[0]
    assert llm.drafter_name == result.speculation.drafter == "trees"
    assert result.speculation.drafted > 0


def test_a_built_in_name_is_not_taken_over() -> None:
    class Impostor(Trees):
        name = "ngram"

    with registered(Impostor):
        assert drafter_class("ngram") is not Impostor


def test_an_entry_point_has_the_name_of_its_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    """By which requests ask for it."""
    monkeypatch.setattr(registry, "entry_points", lambda **_: [entry_point("mine", Trees)])
    with pytest.raises(ConfigError, match=f"'mine' from .* calls itself '{Trees.name}'"):
        registry.drafter_class("mine")


def test_a_drafter_without_a_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nameless(Drafter):
        pass

    monkeypatch.setattr(registry, "entry_points", lambda **_: [entry_point("mine", Nameless)])
    with pytest.raises(ConfigError, match=r"'mine' from .* calls itself None"):
        registry.drafter_class("mine")


def test_an_entry_point_that_is_no_drafter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda **_: [entry_point("odd", dict)])
    with pytest.raises(ConfigError, match=r"'odd' from .* is not a subclass of Drafter"):
        drafter_class("odd")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("ngrams", "unknown drafter 'ngrams'; did you mean 'ngram'"),
        ({"method": "eagle9"}, "unknown drafter 'eagle9'.*known: .*ngram"),
        ({"num_speculative_tokens": 3}, "needs a 'method'"),
        ({"method": "ngram", "num_speculative_tokens": -1}, "num_speculative_tokens=-1"),
        ({"method": "ngram", "num_speculative_tokens": True}, "num_speculative_tokens=True"),
        ({"method": "ngram", "verification": "typical"}, "verification='typical'"),
        (7, "speculative_config=7"),
    ],
)
def test_a_wrong_configuration_says_what_is_wrong(given: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["none", "ngram", "draft_model"])
def test_an_unknown_option_raises_with_a_hint(models: Models, method: str) -> None:
    config = {"method": method, "num_speculative_token": 3}
    if method == "draft_model":
        config["model"] = models.noisy
    with pytest.raises(ConfigError, match="did you mean 'num_speculative_tokens'"):
        make_llm(models.target, config)


def test_a_model_stands_for_the_method() -> None:
    config = parse_config({"model": "some/folder", "num_speculative_tokens": 2})
    assert (config.method, config.options) == ("draft_model", {"model": "some/folder"})
    assert config.verification == "coupled"
