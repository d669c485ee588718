"""The report: every plot, or a sentence why not; readable in a real browser, light and dark."""

import copy
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.bench.sample import sample_results

from outrider.bench import plots, theme
from outrider.bench import report as reports
from outrider.bench.report import write_report
from outrider.bench.view import View
from outrider.core.errors import ConfigError

PLOTS = ["speedup", "systems", "acceptance", "batch-size", "pass-cost", "phases"]
VOID = {"meta", "link", "br", "path", "use", "rect", "circle", "line", "image", "polygon"}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(sample_results(), tmp_path_factory.mktemp("report"))


class Page(HTMLParser):
    """Balanced tags, ids used once, and the text without style."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"]] if found.get("id") else []
        self.links += [found[key] for key in ("src", "href", "xlink:href") if found.get(key)]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)


def test_every_plot_is_on_the_page_and_a_png(report: Path) -> None:
    html = report.read_text()
    assert re.findall(r'data-plot="([\w-]+)"', html) == PLOTS
    for name in PLOTS:
        assert (report.parent / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(report: Path) -> None:
    page = Page(report.read_text())
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    outside = [link for link in page.links if not link.startswith(("#", "data:"))]
    assert outside == []
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert "url(http" not in report.read_text()
    assert "<script" not in report.read_text()


def test_the_figures_are_there(report: Path) -> None:
    results = sample_results()
    page = Page(report.read_text())
    for cell in results["cells"]:
        assert f"{cell['tokens_per_second']:.1f}" in page.text
    assert "A processor <with> brackets & more" in page.text
    assert "16.0 GiB" in page.text
    assert "vllm needs an NVIDIA GPU; none was found here" in page.text
    assert "None" not in page.text
    assert "nan" not in page.words


def words(results: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page without plots, which take seconds."""
    monkeypatch.setattr(reports, "draw_all", lambda view, folder: [])
    return Page(write_report(results, folder).read_text()).text


def test_auto_stands_beside_the_best_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = sample_results()
    text = words(results, tmp_path, monkeypatch)
    assert "Against the best fixed drafter" in text
    assert "chat 1 0 auto 1.50 ngram:k=4 1.60 0.94 0.90\N{EN DASH}0.98" in text
    del results["best_fixed"]
    assert "best fixed" not in words(results, tmp_path, monkeypatch)


def test_what_did_not_become_precise_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = sample_results()
    results["arguments"]["precision"] = 0.01
    results["cells"][1]["precision_reached"] = False
    text = words(results, tmp_path, monkeypatch)
    assert "1 of 1 speed-ups are not known to within 1 % of themselves: ngram in chat" in text


def test_phases_beyond_the_usual_ones() -> None:
    results = sample_results()
    for cell in results["cells"]:
        if cell["phases"]:
            cell["phases"] = {"policy": 0.3, "draft_model": 0.7, **cell["phases"]}
    with plots._drawing():
        from outrider.bench import figures

        figure, _ = figures.phases(View(results))
        legend = figure.legends[0]
    names = [text.get_text() for text in legend.get_texts()]
    colours = [patch.get_facecolor() for patch in legend.get_patches()]
    assert set(names) == {"draft", "forward", "verify", "rest", "policy", "draft_model"}
    assert len(set(colours)) == len(names)


def test_a_system_skipped_for_two_reasons(tmp_path: Path) -> None:
    results = sample_results()
    results["skipped"] = [{"system": "vllm", "reason": reason} for reason in ("one", "two")]
    assert "vllm one; two" in Page(write_report(results, tmp_path).read_text()).text


def test_every_colour_of_a_plot_follows_the_mode(report: Path) -> None:
    figures = report.read_text().split("</style>", 1)[1]
    fixed = set(re.findall(r"#[0-9a-f]{6}\b", figures.lower()))
    # The ends of error bars have a fill that no area shows, and black shapes are only defined.
    assert not fixed & {colour.light for colour in theme.ALL}
    assert fixed <= {"#1f77b4", "#000000"}
    assert len({colour.light for colour in theme.ALL}) == len(theme.ALL)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_contrast(mode: str) -> None:
    """WCAG: 4.5 for text, 3 for shapes."""
    ground = luminance(getattr(theme.CARD, mode))
    for colour, needed in [
        (theme.INK, 4.5),
        (theme.MUTED, 4.5),
        (theme.PLAIN, 3),
        *((series, 3) for series in theme.SERIES),
    ]:
        low, high = sorted([ground, luminance(getattr(colour, mode))])
        assert (high + 0.05) / (low + 0.05) >= needed, colour


def test_what_has_no_data_is_left_out_with_a_reason(tmp_path: Path) -> None:
    results = sample_results(peers=False, batch_sizes=(1,))
    results["pass_cost"] = []
    write_report(sample_results(), tmp_path)  # its pictures must not outlive it
    html = write_report(results, tmp_path).read_text()
    assert re.findall(r'data-plot="([\w-]+)"', html) == ["speedup", "acceptance", "phases"]
    assert sorted(p.stem for p in tmp_path.glob("*.png")) == ["acceptance", "phases", "speedup"]
    text = Page(html).text
    assert "Systems side by side: No other system was measured" in text
    assert "--peers" in text
    assert "Throughput by batch size: Only one batch size was measured" in text
    assert "Cost of a pass: The cost of a pass was not measured" in text


@pytest.mark.parametrize("kept", ["nothing", "plain", "one category", "peers", "few keys"])
def test_partial_results(kept: str, tmp_path: Path) -> None:
    """An interrupted benchmark has a report of what there is."""
    results = copy.deepcopy(sample_results())
    cells: list[dict[str, Any]] = results["cells"]
    few = ("category", "drafter", "batch_size", "temperature", "tokens_per_second")
    results["cells"] = {
        "nothing": [],
        "plain": [cell for cell in cells if cell["drafter"] == "none"],
        "one category": [cell for cell in cells if cell["category"] == "code"],
        "peers": [cell for cell in cells if cell["system"] != "outrider"],
        "few keys": [{key: cell[key] for key in few} for cell in cells[:3]],
    }[kept]
    if kept == "few keys":
        results = {"cells": results["cells"]}
    page = Page(write_report(results, tmp_path).read_text())
    assert page.open == []
    assert "None" not in page.text


def test_a_drafter_named_like_markup(tmp_path: Path) -> None:
    results = sample_results()
    for cell in results["cells"]:
        cell["drafter"] = cell["drafter"].replace("draft_model", "<b>$x_1$ & co</b>")
    page = Page(write_report(results, tmp_path).read_text())
    assert page.open == []
    assert "<b>$x_1$ & co</b>" in page.text


def test_without_matplotlib_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'outrider\[bench\]'") as error:
        write_report(sample_results(), tmp_path)
    assert "results.json" in str(error.value)
    assert not (tmp_path / "report.html").exists()


def test_the_report_module_imports_no_matplotlib() -> None:
    code = "import sys, outrider.bench.report; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# In a real browser

PROBE = """<script>
const faults = [];
addEventListener("error", event => faults.push(event.message || event.target.tagName), true);
addEventListener("securitypolicyviolation", event => faults.push(event.blockedURI));
addEventListener("load", () => {
  const plots = [...document.querySelectorAll("svg[data-plot]")].map(svg => {
    const box = svg.getBoundingClientRect();
    const words = [...svg.querySelectorAll("text")].filter(t => t.getBoundingClientRect().width);
    return [svg.dataset.plot, box.width > 300 && box.height > 100, words.length > 5].join(":");
  });
  const words = document.querySelector("svg text");
  const out = document.createElement("pre");
  out.id = "probe";
  out.textContent = JSON.stringify({
    faults, plots,
    ink: getComputedStyle(words).fill,
    page: getComputedStyle(document.body).backgroundColor,
    scrolls: document.documentElement.scrollWidth > document.documentElement.clientWidth,
  });
  document.body.append(out);
});
</script>"""


@pytest.fixture(scope="module")
def browser() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    message = "no chromium or google-chrome on PATH; install one to see the page in a browser"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def probe(browser: str, page: Path, profile: Path, size: str) -> tuple[dict[str, Any], str]:
    """What a script in the page found out, and what the browser logged meanwhile."""
    import json

    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={size}"]
    command += ["--disable-background-networking", "--no-first-run", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={profile}", "--enable-logging=stderr", "--dump-dom"]
    done = subprocess.run(
        [*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(found[1]), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("size", ["1200,2000", "500,900"])
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_in_a_browser(mode: str, size: str, browser: str, report: Path, tmp_path: Path) -> None:
    html = report.read_text()
    # Headless browsers are in light mode, so the dark page is shown by making its rule apply.
    html = html.replace("(prefers-color-scheme: dark)", "all" if mode == "dark" else "not all")
    # Whatever the page tried to fetch would be a violation, and a console error.
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    )
    guard = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = tmp_path / "probe.html"
    page.write_text(html.replace("<head>", f"<head>{guard}{PROBE}"))
    seen, log = probe(browser, page, tmp_path / "profile", size)
    assert seen["faults"] == []
    assert "CONSOLE" not in log
    assert seen["plots"] == [f"{name}:true:true" for name in PLOTS]
    assert not seen["scrolls"]  # tables and wide plots scroll in their own boxes
    ink, ground = getattr(theme.INK, mode), {"light": "#f3f5f8", "dark": "#11151b"}[mode]
    assert (seen["ink"], seen["page"]) == (rgb(ink), rgb(ground))


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"
