"""What a benchmark was asked to do, checked before any model is loaded."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from outrider.bench.cells import BASE
from outrider.bench.statistics import ENOUGH
from outrider.bench.workloads import REPEATED, STANDARD, WORKLOADS
from outrider.core.errors import ConfigError, unknown_name

DEFAULT_MODEL = "smollm2-135m"
LENGTH = "num_speculative_tokens"
SHORT = {"k": LENGTH}  # in ngram:k=4
LONGEST_VALUE = 40  # characters of an option in a drafter's label
AUTO = "auto"  # the drafter that chooses by itself, among others and how much
MOST_REPEATS = 20


@dataclass(frozen=True)
class DrafterSpec:
    """A drafter's name in tables, and what LLM takes as `speculative_config`."""

    label: str
    config: dict[str, Any]

    @property
    def fixed(self) -> bool:
        """Drafts the same number of tokens always, instead of leaving it to the policy."""
        return self.config.get(LENGTH) is not None

    @property
    def auto(self) -> bool:
        return self.config.get("method") == AUTO and not self.fixed


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    model: str = DEFAULT_MODEL
    workload: str = STANDARD
    prompts: str | None = None  # a JSONL file; None: the workload's built-in prompts
    limit: int | None = None  # prompts per category
    drafters: tuple[DrafterSpec, ...] = ()
    batch_sizes: tuple[int, ...] = (1, 8)
    temperatures: tuple[float, ...] = (0.0,)
    max_tokens: int = 128
    repeat: int = 3  # with a precision: at least
    precision: float | None = None  # half-width of every ratio's interval, as a share of the ratio
    max_repeat: int | None = None  # with a precision: at most; None: MOST_REPEATS
    seed: int = 0
    same_texts: bool = False  # all drafters are made to write what plain decoding wrote at first
    device: str = "auto"
    dtype: str = "auto"
    quantization: str | None = None
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_tokens", "repeat", "max_repeat", "limit", "max_model_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{_flag(name)} {value} must be at least 1")
        self._check_repeats()
        if self.workload not in WORKLOADS:
            raise ConfigError(unknown_name("workload", self.workload, WORKLOADS))
        if self.workload == REPEATED and self.prompts is not None:
            raise ConfigError(f"--workload {REPEATED} has prompts of its own; leave out --prompts")
        if self.seed < 0:
            raise ConfigError(f"--seed {self.seed} must not be negative")
        for size in self.batch_sizes:
            if size < 1:
                raise ConfigError(f"--batch-sizes holds {size}; a batch has at least 1 request")
        for temperature in self.temperatures:
            if not 0 <= temperature < float("inf"):
                raise ConfigError(f"--temperatures holds {temperature}; give numbers from 0 up")

    def _check_repeats(self) -> None:
        if self.precision is None:
            if self.max_repeat is not None:
                raise ConfigError("--max-repeat needs --precision, e.g. --precision 0.03")
            return
        if not 0 < self.precision < 1:
            raise ConfigError(
                f"--precision {self.precision:g} must lie between 0 and 1; 0.03 stands for 3 %"
            )
        if self.most_repeats < self.least_repeats:
            raise ConfigError(
                f"--max-repeat {self.most_repeats} must be at least {self.least_repeats}"
                + (" (--repeat)" if self.repeat > ENOUGH else ": fewer settle no precision")
            )

    @property
    def least_repeats(self) -> int:
        return self.repeat if self.precision is None else max(self.repeat, ENOUGH)

    @property
    def most_repeats(self) -> int:
        if self.precision is None:
            return self.repeat
        return MOST_REPEATS if self.max_repeat is None else self.max_repeat

    @property
    def in_one_go(self) -> bool:
        """Whether the categories are asked one after the other without forgetting in between."""
        return self.workload == REPEATED

    def to_dict(self) -> dict[str, Any]:
        """As JSON gives it back, so that it compares with what a file holds."""
        return dict(json.loads(json.dumps(asdict(self))))


# Chosen so that two cores finish the default model in less than three minutes.
QUICK: dict[str, Any] = {
    "limit": 1,
    "batch_sizes": (1, 4),
    "temperatures": (0.0,),
    "max_tokens": 32,
    "repeat": 1,
}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def parse_numbers(flag: str, text: str, kind: type[int] | type[float]) -> tuple[Any, ...]:
    """`1,8,32` as numbers, each once."""
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ConfigError(f"{flag} {text!r} must be {what} with commas between them") from None
    return tuple(dict.fromkeys(numbers))


def default_drafters() -> list[str]:
    from outrider.drafters.registry import drafter_names  # imports torch, hence not at the top

    return [AUTO if AUTO in drafter_names() else "ngram"]


def parse_peers(text: str) -> list[str]:
    from outrider.bench.peers.run import PEERS  # imports torch, hence not at the top

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PEERS:
            raise ConfigError(unknown_name("peer", name, PEERS))
    return list(dict.fromkeys(names))


def parse_drafters(texts: list[str]) -> tuple[DrafterSpec, ...]:
    """`ngram`, `ngram:k=4` or JSON objects, with commas between them; the base comes first."""
    given = [spec for text in texts for spec in _split(text)]
    specs = [DrafterSpec(BASE, {"method": BASE})]
    for config in given:
        _check(config)
        if any(config == spec.config for spec in specs):
            continue
        label = _label(config)
        if any(label == spec.label for spec in specs):
            label = _label(config, whole=True)
        specs.append(DrafterSpec(label, config))
    return tuple(specs)


def _split(text: str) -> list[dict[str, Any]]:
    configs: list[dict[str, Any]] = []
    rest = text.strip()
    while rest:
        if rest.startswith("{"):
            try:
                config, end = json.JSONDecoder().raw_decode(rest)
            except json.JSONDecodeError as error:
                raise ConfigError(f"--drafters holds broken JSON ({error}): {rest}") from None
            rest = rest[end:].lstrip()
        else:
            name, _, rest = rest.partition(",")
            rest = "," + rest if rest else ""
            config = _short_form(name.strip())
        configs.append(config)
        if rest and not rest.startswith(","):
            raise ConfigError(f"--drafters needs a comma before {rest!r}")
        rest = rest[1:].lstrip()
    return configs


def _short_form(text: str) -> dict[str, Any]:
    """`ngram:k=4:prompt_lookup_max=3`."""
    method, *parts = text.split(":")
    config: dict[str, Any] = {"method": method}
    for part in parts:
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise ConfigError(f"drafter {text!r}: {part!r} must look like k=4")
        try:
            config[SHORT.get(key, key)] = json.loads(value)
        except json.JSONDecodeError:
            config[SHORT.get(key, key)] = value
    return config


def _check(config: dict[str, Any]) -> None:
    """Names and numbers, without loading a model. Imports torch, hence not at the top."""
    from outrider.drafters.registry import drafter_class, parse_config

    parsed = parse_config(config)
    known = drafter_class(parsed.method).options
    for key in parsed.options:
        if key not in known:
            names = [*known, "num_speculative_tokens", "verification"]
            raise ConfigError(unknown_name(f"option of drafter {parsed.method!r}:", key, names))


def _label(config: dict[str, Any], whole: bool = False) -> str:
    """The short form; of a model only the last part of its path, and of a long value (texts, say)
    the start, where that tells it apart."""
    short = {long: key for key, long in SHORT.items()}
    parts = [str(config.get("method", "draft_model"))]
    for key, value in config.items():
        if key != "method":
            text = str(value)
            if key == "model" and not whole:
                text = text.rstrip("/").rsplit("/", 1)[-1]
            if len(text) > LONGEST_VALUE and not whole:
                text = f"{text[:LONGEST_VALUE]}…"
            parts.append(f"{short.get(key, key)}={text}")
    return ":".join(parts)
