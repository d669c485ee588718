"""The tables at the end: whole in 80 columns, and what is said below them."""

import io
from typing import Any

import pytest
from rich.console import Console
from tests.bench.sample import sample_results

from outrider.bench.summary import precision_line, summary

CATEGORIES = ["chat", "code", "code editing", "extraction to JSON", "summarising"]


def shown(results: dict[str, Any], width: int = 80) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=width, highlight=False).print(summary(results))
    return [line.rstrip() for line in text.getvalue().splitlines()]


@pytest.fixture
def results() -> dict[str, Any]:
    found = sample_results(peers=False, batch_sizes=(1, 32))
    for name in ("cells", "best_fixed"):
        found[name] = [row for row in found[name] if row["temperature"] == 0]
    return {**found, "categories": CATEGORIES}


@pytest.mark.parametrize("width", [80, 120])
def test_one_line_per_cell(results: dict[str, Any], width: int) -> None:
    lines = shown(results, width)
    cells = [line for line in lines if line.startswith((*CATEGORIES, "overall"))]
    duels = [line for line in cells if " auto " in line]
    assert len(cells) == len(results["cells"]) + len(duels)
    assert len(duels) == len(results["best_fixed"])
    assert max(map(len, lines)) <= width
    over = [line for line in lines if line.startswith("batch")]
    assert over == ["batch 1, T=0", "batch 32, T=0"] * 2
    first = next(line for line in lines if line.startswith("chat") and "ngram" in line)
    cell = next(c for c in results["cells"] if c["drafter"] == "ngram")
    assert first.split()[:3] == ["chat", "ngram", f"{cell['tokens_per_second']:.1f}"]
    assert f"({cell['ratio_low']:.2f}-{cell['ratio_high']:.2f})" in first and "5.0%" in first


def test_the_best_fixed_is_named(results: dict[str, Any]) -> None:
    lines = shown(results)
    entry = results["best_fixed"][0]
    row = next(line for line in lines if line.startswith("chat") and "ngram:k=4" in line)
    assert row.split()[1:] == ["auto", "1.50", "ngram:k=4", "1.60", "0.94", "(0.90-0.98)"]
    assert entry["best"] == "ngram:k=4"
    results["best_fixed"] = []
    assert not any("fixed length" in line for line in shown(results))


def test_markup_in_names(results: dict[str, Any]) -> None:
    for cell in results["cells"]:
        cell["drafter"] = cell["drafter"].replace("ngram", "[red]x[/]")
    assert any("[red]x[/]" in line for line in shown(results))


def test_too_many_cells(results: dict[str, Any]) -> None:
    results["cells"] *= 3
    lines = shown(results)
    assert not any(line.startswith("chat") and "none" in line for line in lines)
    assert any("results.json and the report have every category" in line for line in lines)


def test_what_is_said_of_precision(results: dict[str, Any]) -> None:
    assert precision_line(results) is None
    results["arguments"]["precision"] = 0.03
    drafted = [cell for cell in results["cells"] if cell["drafter"] != "none"]
    for cell in drafted:
        cell["precision_reached"] = True
    assert precision_line(results) == (
        f"All {len(drafted)} speed-ups are known to within 3 % of themselves (95 %)."
    )
    drafted[0] |= {"precision_reached": False, "ratio": 2.0, "ratio_low": 1.9, "ratio_high": 2.1}
    line = precision_line(results)
    assert line is not None and f"1 of {len(drafted)} speed-ups are not known" in line
    assert "ngram in chat, batch 1, T=0 (within 5.0 %). A higher --max-repeat" in line
    for cell in drafted:
        cell["precision_reached"] = False
    assert f"and {len(drafted) - 4} more" in str(precision_line(results))
    assert any("are not known" in line for line in shown(results))
