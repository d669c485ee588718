"""A training run from its settings: texts, lessons, report."""

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from outrider import LLM
from outrider.core.errors import ConfigError
from outrider.model.loading import choose_device, load_model
from outrider.train.batch import Vocabulary
from outrider.train.loop import Judgement, Plan, Tell, train
from outrider.train.settings import Settings
from outrider.train.start import new_head
from outrider.train.texts import Text, answered, load_texts, read_prompts, save_texts, self_written

TEXTS = "texts.jsonl"
WRITING_AT_ONCE = 1024  # texts that the target writes before they are stored
SEQUENCES = 256  # of them in one pass of a GPU


def run(asked: Settings) -> None:
    """A folder that holds a part of it is gone on with."""
    asked.out.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    texts = _texts(asked, console)
    gc.collect()  # the writer's slots: its memory is needed now
    loaded = load_model(asked.target, device=asked.device, dtype=asked.dtype)
    model: Any = loaded.model
    size = model.get_output_embeddings().weight.shape[0]
    words = Vocabulary.of(texts, asked.vocabulary, size, set(loaded.eos_ids)).to(loaded.device)
    torch.manual_seed(asked.seed)
    head, config = new_head(asked.kind, model, words)
    every = max(1, min(200, asked.steps // 10))
    plan = Plan(
        asked.kind, asked.steps, asked.texts_per_step, every, asked.seed, asked.learning_rate
    )

    def lessons(tell: Tell) -> list[Judgement]:
        return train(model, head, config, texts, words, plan, asked.out, tell)

    judged = _with_progress(plan, console, lessons)
    report = {"target": asked.target, "kind": asked.kind, "steps": asked.steps}
    report |= {"texts": len(texts)}
    report |= {"held out": [{**vars(each), "length": each.length} for each in judged]}
    (asked.out / "report.json").write_text(json.dumps(report, indent=2))
    last = judged[-1].length
    console.print(
        f"the drafter is in {asked.out}: about {last:.2f} tokens per pass on held-out text",
        soft_wrap=True,
    )


def _texts(asked: Settings, console: Console) -> list[Text]:
    """Those in the folder and, where they are too few, more: stored as they come."""
    file = asked.out / TEXTS
    found = load_texts(file) if file.exists() else []
    if len(found) >= asked.texts:
        return found[: asked.texts]
    prompts = None if asked.data == "self" else read_prompts(Path(asked.data))
    console.print(f"{asked.target} writes {asked.texts - len(found)} texts to learn from")
    llm = _writer(asked)
    longest = min(asked.longest, llm.engine.max_model_len)
    turn = len(found)
    while len(found) < asked.texts:
        wanted = min(WRITING_AT_ONCE, asked.texts - len(found))
        seed = asked.seed + turn
        if prompts is None:
            more = list(self_written(llm, wanted, longest, asked.temperature, seed))
        else:
            part = [prompts[i % len(prompts)] for i in range(turn, turn + wanted)]
            more = list(answered(llm, part, longest, asked.temperature, seed))
        turn += wanted
        found += more
        save_texts(found, file)
        if not more:
            break
    if len(found) < 2:
        raise ConfigError(f"only {len(found)} texts were written; raise --texts or --longest")
    return found


def _writer(asked: Settings) -> LLM:
    device = choose_device(asked.device)
    many = {"max_num_seqs": SEQUENCES, "kv_cache_tokens": SEQUENCES * asked.longest}
    return LLM(
        asked.target,
        None,
        device=str(device),
        dtype=asked.dtype,
        **(many if device.type == "cuda" else {}),
    )


def _with_progress(
    plan: Plan, console: Console, lessons: Callable[[Tell], list[Judgement]]
) -> list[Judgement]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("learning", total=plan.steps)

        def tell(step: int, loss: float, judged: Judgement | None) -> None:
            said = f"step {step} of {plan.steps}, loss {loss:.3f}"
            progress.update(task, completed=step, description=said)
            if judged is not None:
                depths = " ".join(f"{share:.2f}" for share in judged.depths)
                progress.console.print(
                    f"step {judged.step}: held-out loss {judged.loss:.3f}, guesses that hold by "
                    f"depth {depths}, {judged.length:.2f} tokens per pass",
                    soft_wrap=True,
                )

        return lessons(tell)
