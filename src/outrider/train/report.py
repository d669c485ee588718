"""What a training run says at its end: report.json, and report.md with a picture."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

from outrider import __version__
from outrider.core.errors import ConfigError
from outrider.model.loading import choose_device
from outrider.train.disk import safely
from outrider.train.display import span
from outrider.train.loop import Judgement, held_out_of
from outrider.train.plot import draw
from outrider.train.settings import Settings
from outrider.train.texts import Written

TITLES = {
    "medusa": "Medusa heads",
    "eagle3": "An EAGLE-3 drafter",
    "dspark": "A DSpark drafter",
    "distill": "A distilled draft model",
}


def write_report(
    asked: Settings,
    written: Written,
    judged: list[Judgement],
    processes: int,
    note: Callable[[str], None],
) -> None:
    found = facts(asked, written, judged, processes)
    with safely("the report", asked.out / "report.json") as partial:
        partial.write_text(json.dumps(found, indent=2) + "\n")
    with safely("the report", asked.out / "report.md") as partial:
        partial.write_text(page(found, _picture(asked, judged, note)))


def facts(
    asked: Settings, written: Written, judged: list[Judgement], processes: int
) -> dict[str, Any]:
    texts = written.texts
    return {
        "target": asked.target,
        "kind": asked.kind,
        "steps": judged[-1].step,
        "texts": len(texts),
        "settings": {key: _plain(value) for key, value in asdict(asked).items()},
        "data": {
            "prompts used": written.used,
            "texts": len(texts),
            "texts held out": held_out_of(len(texts)),
            "tokens": sum(len(text.tokens) for text in texts),
            "tokens that the target wrote": sum(len(t.tokens) - t.prompt for t in texts),
        },
        "seconds": {"writing texts": written.seconds, "lessons": judged[-1].seconds},
        "machine": {
            "device": _device(asked.device),
            "processes": processes,
            "outrider": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "held out": [{**asdict(each), "length": each.length} for each in judged],
    }


def page(found: dict[str, Any], picture: str | None) -> str:
    """One page of Markdown."""
    last = found["held out"][-1]
    depths = range(1, 1 + max(len(each["depths"]) for each in found["held out"]))
    times = {name: span(seconds) for name, seconds in found["seconds"].items()}
    rows = [
        [each["step"], _number(each["lessons"]), _number(each["loss"])]
        + [f"{share:.0%}" for share in each["depths"]]
        + [""] * (len(depths) - len(each["depths"]))
        + [f"{each['length']:.2f}"]
        for each in found["held out"]
    ]
    parts = [
        f"# {TITLES[found['kind']]} for {found['target']}",
        f"{last['length']:.2f} tokens per pass of the target on held-out text, after "
        f"{found['steps']} lessons from {found['texts']} texts that it wrote itself. Use it with "
        f'`speculative_config={{"model": "{found["settings"]["out"]}"}}`.',
        picture,
        "Tokens per pass are those of a greedy chain without a limit but the depths below, the "
        "target's own token included.",
        "## On held-out text",
        _table(
            ["step", "loss of lessons", "loss"]
            + [f"depth {depth}" for depth in depths]
            + ["tokens per pass"],
            rows,
        ),
        "## Data, times and machine",
        _table(["", ""], [*found["data"].items(), *times.items(), *found["machine"].items()]),
        "## Settings",
        _table(["", ""], found["settings"].items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _picture(asked: Settings, judged: list[Judgement], note: Callable[[str], None]) -> str | None:
    """Markdown for it; None without matplotlib, where the figures are there all the same."""
    try:
        with safely("the report", asked.out / "report.png") as partial:
            draw(judged, f"{TITLES[asked.kind]} for {asked.target}", partial)
    except ConfigError as error:
        note(str(error))
        return None
    return "![loss, guesses that hold by depth, tokens per pass over the steps](report.png)"


def _table(head: list[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(value) for value in line) + " |" for line in lines)


def _cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "\\|")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _device(name: str) -> str:
    device = choose_device(name)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device}"
