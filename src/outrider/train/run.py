"""A training run from its settings: texts, lessons, report."""

import gc
from dataclasses import replace
from typing import Any

import torch

from outrider.heads.head import Head
from outrider.model.loading import LoadedModel, load_model
from outrider.train.batch import Vocabulary
from outrider.train.display import Display
from outrider.train.distill import new_student
from outrider.train.loop import SHEETS, Plan, train
from outrider.train.ranks import join
from outrider.train.report import write_report
from outrider.train.settings import Settings
from outrider.train.start import learned_head, new_head
from outrider.train.writing import write_texts


def run(asked: Settings) -> None:
    """A folder that holds a part of it is gone on with."""
    ranks, device = join(asked.device)
    asked = replace(asked, device=device)
    display = Display(quiet=not ranks.first)
    asked.out.mkdir(parents=True, exist_ok=True)
    written = write_texts(asked, ranks, display)
    gc.collect()  # the writer's slots: its memory is needed now
    loaded = load_model(asked.target, device=asked.device, dtype=asked.dtype)
    model: Any = loaded.model
    size = model.get_output_embeddings().weight.shape[0]
    words = Vocabulary.of(written.texts, asked.vocabulary or size, size, set(loaded.eos_ids))
    words = words.to(loaded.device)
    torch.manual_seed(asked.seed)
    if asked.start is not None:
        head, config, words = learned_head(asked.kind, asked.start, loaded)
    else:
        head, config = _pupil(asked, loaded, words)
    every = max(1, min(200, asked.steps // 10))
    wanted = 1 if loaded.device.type == "cuda" else SHEETS
    sheets = -(-wanted // ranks.count) * ranks.count  # as many for each process
    plan = Plan(
        asked.kind, asked.steps, asked.texts_per_step, every, asked.seed, asked.learning_rate,
        sheets,
    )  # fmt: skip
    with display.learning(plan) as tell:
        judged = train(model, head, config, written.texts, words, plan, asked.out, tell, ranks)
    if ranks.first:
        write_report(asked, written, judged, ranks.count, display.note)
        display.note(
            f"the drafter is in {asked.out}: about {judged[-1].length:.2f} tokens per pass on "
            "held-out text"
        )
    ranks.close()


def _pupil(asked: Settings, loaded: LoadedModel, words: Vocabulary) -> tuple[Head, dict[str, Any]]:
    """What is taught, and its config.json; a model writes its own."""
    if asked.kind == "distill":
        return new_student(loaded.model, loaded.tokenizer, asked.layers), {}
    return new_head(asked.kind, loaded.model, words, asked.normed)
