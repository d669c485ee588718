"""Runs the benchmark: one engine per drafter, the same prompts for all, in turns."""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from statistics import median
from time import perf_counter
from typing import Any

import torch

from outrider.bench.cells import BASE, PHASES, Key, Run
from outrider.bench.conversation import Answer, Conversation, Floor, conversations, prompt_ids
from outrider.bench.hardware import PeakMemory
from outrider.bench.options import BenchOptions
from outrider.bench.plan import Measurement
from outrider.bench.texts import Texts
from outrider.bench.workloads import Prompt
from outrider.core.errors import ConfigError, InvalidRequest
from outrider.core.outputs import Speculation
from outrider.core.params import SamplingParams
from outrider.engine.llm import LLM
from outrider.model.segment import Segment

WARM_UP_TOKENS = 4
PASS_ROWS = (1, 2, 4, 8, 16, 32)
PASS_CONTEXT = 256
PASS_REPEATS = 7
INSIDE = {"draft_model": "draft"}  # phases that the engine counts in another one as well


@dataclass
class Engines:
    """One per drafter, all at once in this process.

    In float32 on a CPU, each lays out the weights anew, so memory holds one copy per engine.
    """

    llms: dict[str, LLM]

    @classmethod
    def load(cls, options: BenchOptions) -> "Engines":
        engine: dict[str, Any] = {
            "device": options.device,
            "dtype": options.dtype,
            "quantization": options.quantization,
            "max_model_len": options.max_model_len,
            "max_num_seqs": max(options.batch_sizes),
        }
        return cls(
            {spec.label: LLM(options.model, spec.config, **engine) for spec in options.drafters}
        )

    @property
    def base(self) -> LLM:
        return self.llms[BASE]

    def warm_up(self, options: BenchOptions, prompts: list[Prompt]) -> None:
        """First calls build kernels and fill caches; they belong to no measurement."""
        for label in self.llms:
            for size in options.batch_sizes:
                first = prompts[0].category
                warm_up = Measurement(label, (first,), size, max(options.temperatures), repeat=0)
                self.measure([warm_up], prompts[:1], WARM_UP_TOKENS, options.seed)

    @property
    def take_turns(self) -> bool:
        """Whether drafters can be measured side by side, some steps of each in turn: then the moods
        of a machine, which last for seconds, are the same for all. A GPU is at work on the next
        step of one while another has its turn."""
        return self.base.engine.loaded.device.type == "cpu"

    def check_dictation(self) -> None:
        for label, llm in self.llms.items():
            if not llm.engine.takes_dictation:
                raise ConfigError(
                    f"--same-texts cannot dictate to drafter {label!r}: it needs a CPU, coupled "
                    "verification, and no lookahead; in float32 texts are the same without it"
                )

    def measure(
        self,
        measurements: list[Measurement],
        prompts: list[Prompt],
        max_tokens: int,
        seed: int,
        finished_one: Callable[[], None] = lambda: None,
        texts: Texts | None = None,
    ) -> list[Run]:
        """From a cold start, a run for each category and each of the measurements, which differ in
        the drafter alone: the prompts of a category are all answered before the next begins."""
        for measurement in measurements:
            self.llms[measurement.drafter].engine.forget()
        runs = []
        for keys in zip(*(measurement.keys for measurement in measurements), strict=True):
            talking = [
                Talking(key, self.llms[key.drafter], prompts, max_tokens, seed, texts)
                for key in keys
            ]
            in_turns([each.turns(finished_one) for each in talking])
            runs += [each.run() for each in talking]
        return runs


class Talking:
    """The conversations of one run, and what an engine was like before them."""

    def __init__(
        self,
        key: Key,
        llm: LLM,
        prompts: list[Prompt],
        max_tokens: int,
        seed: int,
        texts: Texts | None,
    ) -> None:
        category, batch_size, temperature = key.setting
        dictated = None if texts is None else texts.at(temperature)
        self._key, self._llm = key, llm
        self._talks = conversations([p for p in prompts if p.category == category], batch_size)
        self._floor = Floor(llm, batch_size, temperature, max_tokens, seed, dictated)
        self._memory = PeakMemory(llm.engine.loaded.device)
        self._before = dict(llm.engine.seconds)
        self._replays = Replays(llm)

    def turns(self, finished_one: Callable[[], None]) -> Iterator[int]:
        return self._floor.turns(self._talks, finished_one)

    def run(self) -> Run:
        run = _summed(self._key, self._talks, self._floor.clock.now)
        run.phases = phases(self._before, self._llm.engine.seconds)
        run.peak_memory_bytes, run.peak_cuda_bytes = self._memory.host, self._memory.cuda
        run.graph_share = self._replays.share
        return run


def in_turns(several: list[Iterator[int]]) -> None:
    """Until all have come to their end. Each tells how many tokens it has written, and it is the
    turn of who has written least: so all come to their end together, and a slow minute is as much
    one of the drafter that needs few steps as of the one that needs many."""
    waiting = [(0, each) for each in several]
    try:
        while waiting:
            turn = min(waiting, key=itemgetter(0))  # of equals, who has waited longest
            waiting.remove(turn)
            written = next(turn[1], None)
            if written is not None:
                waiting.append((written, turn[1]))
    finally:
        for each in several:  # who was interrupted takes back what it has asked
            each.close()  # type: ignore[attr-defined]


class Replays:
    """How many of the steps from now on are CUDA graphs, of those that only write."""

    def __init__(self, llm: LLM) -> None:
        self._engine = llm.engine
        self._before = (llm.engine.stopwatch.writing_steps, llm.engine.stopwatch.replayed_steps)

    @property
    def share(self) -> float | None:
        """None on a machine that has none."""
        engine, (writing, replayed) = self._engine, self._before
        steps = engine.stopwatch.writing_steps - writing
        if engine.loaded.device.type != "cuda" or not steps:
            return None
        return (engine.stopwatch.replayed_steps - replayed) / steps


def fitting(llm: LLM, prompts: list[Prompt]) -> tuple[list[Prompt], list[str]]:
    """The prompts that the model's context can hold, and why the others are left out."""
    kept, problems = [], []
    for prompt in prompts:
        talk = Conversation(prompt)
        talk.ask()
        try:
            llm.engine.intake.check(prompt_ids(llm, talk.messages), SamplingParams())
            kept.append(prompt)
        except InvalidRequest as error:
            problems.append(f"prompt {prompt.id!r} left out: {error}")
    if not kept:
        raise ConfigError(f"no prompt fits the model; first {problems[0]}")
    return kept, problems


def pass_cost(llm: LLM) -> list[dict[str, float]]:
    """Milliseconds of one pass over n rows of one sequence, with a context before them."""
    engine = llm.engine
    room = min(engine.max_model_len, engine.kv.total)
    context = min(PASS_CONTEXT, room - 1)
    engine.forget()  # the passes below write slots that no request owns
    before = array("q", range(1, context + 1))
    engine.runner.forward([Segment.chain([5] * context, before, array("q"), context)])
    costs = []
    for rows in PASS_ROWS:
        if context + rows > room:
            break
        slots = array("q", range(context + 1, context + 1 + rows))
        segment = Segment.chain([5] * rows, slots, before, 0)
        times = [_timed_pass(llm, segment) for _ in range(1 + PASS_REPEATS)]
        costs.append({"rows": rows, "milliseconds": median(times[1:]) * 1e3})
    return costs


def _timed_pass(llm: LLM, segment: Segment) -> float:
    start = perf_counter()
    llm.engine.runner.forward([segment])
    if llm.engine.loaded.device.type == "cuda":
        torch.cuda.synchronize(llm.engine.loaded.device)
    return perf_counter() - start


def _summed(key: Key, talks: list[Conversation], seconds: float) -> Run:
    answers = [answer for talk in talks for answer in talk.answers]
    speculation = Speculation()
    for answer in answers:
        assert answer.result is not None
        speculation.add(answer.result.speculation)
    gaps = [gap for answer in answers for gap in answer.gaps]
    return Run(
        drafter=key.drafter,
        **key.setting._asdict(),
        repeat=key.repeat,
        requests=len(answers),
        tokens=sum(answer.tokens for answer in answers),
        seconds=seconds,
        decode_tokens=sum(answer.tokens - answer.tokens_at_first for answer in answers),
        decode_seconds=sum(answer.last - answer.first for answer in answers),
        time_to_first_token=median(_wait(answer) for answer in answers),
        inter_token_latency=median(gaps) if gaps else None,
        steps=speculation.steps,
        drafts=speculation.drafts,
        drafted=speculation.drafted,
        accepted=speculation.accepted,
        accepted_per_position=speculation.accepted_per_position,
        overruled=sum(answer.dictation.overruled for answer in answers if answer.dictation),
    )


def _wait(answer: Answer) -> float:
    return answer.first - answer.asked


def phases(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Seconds of each phase that the engine names, and what is left of the step."""
    spent = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
    step = spent.pop("step", 0.0)
    found = {name: spent.pop(name, 0.0) for name in PHASES[:-1]} | spent
    for part, whole in INSIDE.items():
        found[whole] -= found.get(part, 0.0)
    return {**found, PHASES[-1]: step - sum(found.values())}
