"""`outrider bench`: drafters, batch sizes and temperatures against plain decoding, and peers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.bench import flags
from outrider.core.errors import ConfigError

if TYPE_CHECKING:
    from outrider.bench.options import BenchOptions
    from outrider.bench.session import Session
    from outrider.bench.workloads import Prompt


def bench(
    workload: flags.Workload = None,
    prompts: flags.Prompts = None,
    limit: flags.Limit = None,
    drafters: flags.Drafters = None,
    batch_sizes: flags.BatchSizes = None,
    temperatures: flags.Temperatures = None,
    max_tokens: flags.MaxTokens = None,
    repeat: flags.Repeat = None,
    precision: flags.Precision = None,
    max_repeat: flags.MaxRepeat = None,
    quick: flags.Quick = False,
    seed: flags.Seed = 0,
    same_texts: flags.SameTexts = False,
    out: flags.Out = Path("bench-results"),
    resume: flags.Resume = False,
    compare: flags.Compare = None,
    model: flags.Model = "smollm2-135m",
    device: flags.Device = "auto",
    dtype: flags.Dtype = "auto",
    quantization: flags.Quantization = None,
    max_model_len: flags.MaxModelLen = None,
    peers: flags.Peers = "",
    peer_timeout: flags.PeerTimeout = 900.0,
    gguf: flags.Gguf = None,
) -> None:
    """Measure how much faster each drafter is than plain decoding, by category of prompt.

    Writes results.json, report.html and its plots into the folder given by --out.
    Ctrl-C keeps what was measured; the same command with --resume goes on.
    Peak memory is of the whole process, which holds one engine per drafter.

    Examples:

    outrider bench --quick
    outrider bench --drafters auto,ngram:k=3 --batch-sizes 1,8,32 --precision 0.03
    outrider bench --workload agents --drafters suffix,ngram
    outrider bench --model Qwen/Qwen2.5-0.5B-Instruct --prompts question.jsonl --limit 5
    outrider bench --quick --peers transformers,llama.cpp,openvino
    outrider bench --compare old/results.json bench-results/results.json
    """
    if compare is not None:
        from rich.console import Console

        from outrider.bench.compare import compare as show

        show(*compare, Console(highlight=False))
        return
    given = {
        "model": model, "workload": workload, "prompts": prompts, "limit": limit,
        "drafters": drafters, "batch_sizes": batch_sizes, "temperatures": temperatures,
        "max_tokens": max_tokens, "repeat": repeat, "precision": precision,
        "max_repeat": max_repeat, "seed": seed, "same_texts": same_texts, "device": device,
        "dtype": dtype,
        "quantization": quantization, "max_model_len": max_model_len,
    }  # fmt: skip
    # All that can be wrong without a model is checked before one is loaded.
    options = read_options(given, quick)
    session, loaded = _prepare(options, out, peers)
    session.resume, session.peer_timeout, session.gguf = resume, peer_timeout, gguf
    _run(session, loaded)


def read_options(given: dict[str, Any], quick: bool) -> "BenchOptions":
    """What was given goes before --quick, and that before the defaults."""
    from outrider.bench import options

    values = {name: value for name, value in given.items() if value is not None}
    for name, kind in (("batch_sizes", int), ("temperatures", float)):
        if name in values:
            flag = "--" + name.replace("_", "-")
            values[name] = options.parse_numbers(flag, values[name], kind)
    drafters = values.get("drafters") or options.default_drafters()
    values["drafters"] = options.parse_drafters(drafters)
    return options.BenchOptions(**{**(options.QUICK if quick else {}), **values})


def _prepare(options: "BenchOptions", folder: Path, peers: str) -> tuple["Session", list["Prompt"]]:
    from outrider.bench.display import TerminalDisplay
    from outrider.bench.options import parse_peers
    from outrider.bench.session import Session
    from outrider.bench.workloads import load_workload

    names = parse_peers(peers)
    prompts, problems = load_workload(options.workload, options.prompts, options.limit)
    display = TerminalDisplay()
    for problem in problems:
        display.note(f"left out {problem}")
    return Session(options, folder, display, peers=names), prompts


def _run(session: "Session", prompts: list["Prompt"]) -> None:
    from rich.console import Console

    from outrider.bench.summary import summary

    try:
        results = session.run(prompts)
    except KeyboardInterrupt:
        session.display.note(_farewell(session))
        raise
    Console(highlight=False).print(summary(results.data))
    session.display.note(f"figures: {results.path}")
    _report(session, results.data)


def _farewell(session: "Session") -> str:
    if session.results is None:
        return "interrupted before anything was measured"
    count = len(session.results.runs)
    return (
        f"interrupted; {count} run{'' if count == 1 else 's'} kept in {session.results.path}."
        " To go on, give the same command with --resume"
    )


def _report(session: "Session", results: dict[str, Any]) -> None:
    """Without matplotlib there is no page, but the figures are there all the same."""
    try:
        from outrider.bench.report import write_report

        page = write_report(results, session.folder)
    except ConfigError as error:
        session.display.note(f"no report: {error}")
    else:
        session.display.note(f"report:  {page}")
