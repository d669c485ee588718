"""What the policy makes of recorded drafts, in seconds instead of an hour.

    python benchmarks/replay.py record --out tape.pkl
    python benchmarks/replay.py run tape.pkl --batch-size 32 --drafters auto,suffix:k=4,eagle3:k=1

`record` has the default model write texts on a CPU, all prompts of the benchmark, notes what the
drafter that comes with the package guesses after every token and after its own guesses, and
measures what passes and the drafter's levels take. `run` is the benchmark itself, with engines
that are real but for their passes: those choose the recorded texts, and take as long on a clock of
their own as was measured. Host code runs as ever and its time counts. So two policies are compared
without the moods of a machine, and a step can be looked at as often as one likes. What it says of
speed is only as good as the measured passes: the benchmark has the last word.
"""

import argparse
import pickle
import time
from array import array
from bisect import bisect_left
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

MODEL, BATCH, TOKENS, PROMPTS = "smollm2-135m", 32, 48, 8
GUESSES, DEPTH = 16, 7  # of the drafts that are recorded
LEAST = 0.004  # chance of a guess that is kept
CONTEXT, LONG = 150, 400  # of the texts in passes that are measured
TEXTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
NODES = {1: (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24)}  # of each text; else:
FEW_NODES = (0, 1, 2, 3, 4, 8)
MOST_ROWS = 150
PROMPT_ROWS = (64, 128, 256, 512)
REPEATS = 6

real_clock = time.perf_counter
jumped = 0.0  # seconds


def clock() -> float:
    return real_clock() + jumped


def spend(seconds: float, since: float) -> None:
    """As if what began then, on the real clock, had taken so long."""
    global jumped
    jumped += seconds - (real_clock() - since)


def head() -> str:
    import outrider.heads

    return str(Path(outrider.heads.__file__).parent / "shipped" / MODEL)


# ---- recording ----


def record(out: Path) -> None:
    from outrider.bench.conversation import Floor, conversations
    from outrider.bench.options import BenchOptions
    from outrider.bench.texts import Texts
    from outrider.bench.workloads import categories, load_prompts
    from outrider.core.tree import TokenTree
    from outrider.engine.llm import LLM

    prompts, _ = load_prompts(None, PROMPTS)
    options = BenchOptions(batch_sizes=(BATCH,), max_tokens=TOKENS)
    plain = LLM(MODEL, None, max_num_seqs=BATCH, device="cpu")
    print("writing the texts", flush=True)
    texts = Texts.written_by(plain, options, prompts)
    print("measuring passes", flush=True)
    passes, reading = measured_passes(plain.engine.runner)
    plain.engine.forget()  # the passes wrote slots that no request owns
    calibrated = plain.engine._calibrate()
    config = {"method": "eagle3", "model": head(), "tree": "confidence", "depth": DEPTH}
    config["num_speculative_tokens"] = GUESSES
    # Beside prompts, too, every text is to be drafted for.
    llm = LLM(MODEL, config, max_num_seqs=BATCH, device="cpu", max_num_batched_tokens=8192)
    drafter: Any = llm.engine.drafter
    guesses: dict[int, Any] = {}
    levels = timed_parts(drafter)
    find, propose = drafter._find, drafter.propose

    def finding(logits: Any, rows: Any, wanted: Any, lanes: Any) -> Any:
        found = find(logits, rows, wanted, lanes)
        for row, each in zip(rows, found, strict=True):
            kept = max(1, sum(chance >= LEAST for chance in each.confidence))
            guesses[place(row)] = (each.tokens[:kept], each.confidence[:kept])
        return found

    def proposing(batch: Any, budgets: Any) -> Any:
        propose(batch, budgets)
        return [TokenTree.empty()] * len(batch)  # so that every place of a text is come to

    drafter._find, drafter.propose = finding, proposing
    for category in categories(prompts):
        print(f"recording {category}", flush=True)
        talks = conversations([p for p in prompts if p.category == category], BATCH)
        for _ in Floor(llm, BATCH, 0.0, TOKENS, options.seed, texts.at(0.0)).turns(talks, int):
            pass
        llm.engine.forget()
    tape = {"texts": {"0": texts.at(0.0)}, "guesses": guesses, "passes": passes}
    tape |= {"reading": reading, "levels": {part: means(calls) for part, calls in levels.items()}}
    tape["calibrated"] = calibrated
    out.write_bytes(pickle.dumps(tape))


def place(row: Any) -> int:
    """Names a text with the guesses after it."""
    return hash((*row.request.tokens, *row.path))


def timed_parts(drafter: Any) -> dict[str, dict[int, list[float]]]:
    """By part of a level and by rows: what calls take, from now on."""
    taken: dict[str, dict[int, list[float]]] = {
        part: defaultdict(list) for part in ("_forward", "_logits")
    }
    for part, calls in taken.items():
        method = getattr(drafter, part)

        def timed(first: Any, *others: Any, method: Any = method, calls: Any = calls) -> Any:
            start = real_clock()
            result = method(first, *others)
            rows = len(first) if hasattr(first, "shape") else sum(map(len, first))
            calls[rows].append(real_clock() - start)
            return result

        setattr(drafter, part, timed)
    return taken


def means(calls: dict[int, list[float]]) -> list[tuple[int, float]]:
    """By rows, rising: more cannot take less."""
    found, highest = [], 0.0
    for rows in sorted(calls):
        highest = max(highest, median(calls[rows][1:] or calls[rows]))  # the first one prepares
        found.append((rows, highest))
    return found


def measured_passes(runner: Any) -> tuple[dict[tuple[int, int, int], float], list[Any]]:
    """By context, texts and nodes of each: seconds; and by rows of a prompt."""
    shapes = [
        (context, texts, nodes)
        for context in (CONTEXT, LONG)
        for texts in TEXTS
        for nodes in NODES.get(texts, FEW_NODES)
        if texts * (1 + nodes) <= MOST_ROWS and (context == CONTEXT or nodes == 0)
    ]
    taken: dict[Any, list[float]] = defaultdict(list)
    for _ in range(1 + REPEATS):
        for shape in shapes:
            taken[shape].append(one_pass(runner, *shape))
        for rows in PROMPT_ROWS:
            taken[rows].append(one_pass(runner, 0, 1, rows - 1))
    known = {shape: median(times[1:]) for shape, times in taken.items()}
    return {s: known[s] for s in shapes}, [(rows, known[rows]) for rows in PROMPT_ROWS]


def one_pass(runner: Any, context: int, texts: int, nodes: int) -> float:
    import torch

    from outrider.model.segment import Segment

    segments, first = [], 1
    for _ in range(texts):
        before, end = first + context, first + context + 1 + nodes
        slots, keys = array("q", range(before, end)), array("q", range(first, before))
        wanted = nodes if context == 0 else 0  # of a prompt, what its last row says
        segments.append(Segment.chain([5] * (1 + nodes), slots, keys, logits_from=wanted))
        first = end
    with torch.inference_mode():
        start = real_clock()
        runner.launch(segments)
        return real_clock() - start


# ---- replaying ----


def between(points: list[tuple[int, float]], place: float) -> float:
    """On the line between the two nearest points; beyond the last in proportion to it."""
    right = bisect_left(points, (place,))
    if right == 0:
        return points[0][1]
    if right == len(points):
        return points[-1][1] * place / points[-1][0]
    (a, low), (b, high) = points[right - 1], points[right]
    return low + (place - a) * (high - low) / (b - a)


class Tape:
    def __init__(self, file: Path) -> None:
        tape = pickle.loads(file.read_bytes())
        self.texts, self.guesses = tape["texts"], tape["guesses"]
        self.levels, self.reading, passes = tape["levels"], tape["reading"], tape["passes"]
        self.calibrated = tape["calibrated"]
        self._curves: dict[int, list[tuple[int, float]]] = defaultdict(list)  # by texts
        for (context, texts, nodes), seconds in sorted(passes.items()):
            if context == CONTEXT:
                self._curves[texts].append((nodes, seconds))
        self._keys = [  # what a further one takes, by texts
            (texts, (passes[LONG, texts, 0] - passes[CONTEXT, texts, 0]) / (LONG - CONTEXT) / texts)
            for texts in TEXTS
        ]

    def pass_seconds(self, segments: list[Any]) -> float:
        from outrider.model.row_sizes import filled_up

        rows, texts = filled_up(sum(map(len, segments))), len(segments)
        if any(segment.logits_from for segment in segments):  # prompts among them
            return between(self.reading, rows)
        curves = [(n, between(curve, rows / texts - 1)) for n, curve in self._curves.items()]
        keys = sum(len(segment.context) for segment in segments) - CONTEXT * texts
        return between(curves, texts) + keys * between(self._keys, texts)

    def play(self, llm: Any) -> None:
        """Have this engine's passes and its drafter's levels take what was measured."""
        import torch

        from outrider.engine.policy.cost import PassCost
        from outrider.model.flight import Flight
        from outrider.model.row_sizes import filled_up

        runner = llm.engine.runner
        logits = torch.zeros(2048, runner.vocabulary, dtype=llm.engine.loaded.dtype)

        def launch(segments: list[Any]) -> Flight:
            start = real_clock()
            runner._sizes.add(filled_up(sum(map(len, segments))))
            wanted = sum(len(segment) - segment.logits_from for segment in segments)
            spend(self.pass_seconds(segments), start)
            return Flight(logits[:wanted])

        runner.launch = launch
        llm.engine.policy.cost = PassCost(self.calibrated, filled_up=filled_up)
        for drafter in llm.engine.drafting.crew.members:
            if drafter.name == "eagle3":
                self._play_drafter(drafter)

    def _play_drafter(self, drafter: Any) -> None:
        import torch

        from outrider.drafters.candidates import Found

        states = torch.zeros(4096, drafter.head.config.hidden_size)

        def forward(segments: list[Any], features: Any) -> Any:
            start, rows = real_clock(), sum(map(len, segments))
            drafter._beyond("states", rows)
            spend(between(self.levels["_forward"], rows), start)
            return states[:rows]

        def scores(rows: Any) -> Any:
            start = real_clock()
            drafter._beyond("logits", len(rows))
            spend(between(self.levels["_logits"], len(rows)), start)
            return states[: len(rows)]

        def find(_: Any, rows: Any, wanted: Any, lanes: Any) -> list[Found]:
            known = [self.guesses.get(place(row), ((), ())) for row in rows]
            return [
                Found(list(tokens[:most]), list(chances[:most]))
                for (tokens, chances), most in zip(known, wanted, strict=True)
            ]

        drafter._forward, drafter._logits, drafter._find = forward, scores, find


def run(file: Path, batch_size: int, prompts_each: int, drafters: str) -> None:
    time.perf_counter = clock  # before any module takes its own
    from outrider.bench.options import BenchOptions, parse_drafters
    from outrider.bench.plan import Measurement
    from outrider.bench.runner import Engines
    from outrider.bench.texts import Texts
    from outrider.bench.workloads import categories, load_prompts

    if prompts_each > PROMPTS:
        raise SystemExit(f"the tape has {PROMPTS} prompts of a category, not {prompts_each}")
    tape = Tape(file)
    specs = parse_drafters([drafters])
    for spec in specs:
        if spec.config["method"] == "eagle3":
            spec.config["model"] = head()
    prompts, _ = load_prompts(None, prompts_each)
    options = BenchOptions(
        drafters=specs, batch_sizes=(batch_size,), max_tokens=TOKENS, device="cpu"
    )
    engines, texts = Engines.load(options), Texts(tape.texts)
    for llm in engines.llms.values():
        tape.play(llm)
    engines.warm_up(options, prompts)
    for category in categories(prompts):
        due = [Measurement(spec.label, (category,), batch_size, 0.0, 0) for spec in specs]
        runs = engines.measure(due, prompts, TOKENS, options.seed, texts=texts)
        speeds = {each.drafter: each.tokens / each.seconds for each in runs}
        plain = speeds.pop("none")
        ratios = "  ".join(f"{name} {speed / plain:.3f}x" for name, speed in speeds.items())
        print(f"{category:14} {plain:6.1f} tok/s  {ratios}", flush=True)


def main() -> None:
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kind)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="texts, guesses and what passes take here")
    recording.add_argument("--out", type=Path, default=Path("tape.pkl"))
    running = commands.add_parser("run", help="the benchmark over a tape")
    running.add_argument("tape", type=Path)
    running.add_argument("--batch-size", type=int, default=BATCH)
    running.add_argument("--limit", type=int, default=PROMPTS, help="prompts of a category")
    running.add_argument("--drafters", default="auto,suffix:k=4,eagle3:k=1")
    given = parser.parse_args()
    if given.command == "record":
        record(given.out)
    else:
        run(given.tape, given.batch_size, given.limit, given.drafters)


if __name__ == "__main__":
    main()
