"""The target writes the texts that its drafter learns from."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from outrider import LLM
from outrider.core.errors import ConfigError
from outrider.model.loading import choose_device
from outrider.train.display import Display
from outrider.train.ranks import Ranks
from outrider.train.settings import Settings
from outrider.train.texts import Written, add_texts, load_texts, read_prompts, save_texts
from outrider.train.writer import Numbered, Writer

FILE = "texts.jsonl"
AT_ONCE = 2048  # texts that a process writes before they are stored
AT_LEAST = 16  # are asked for: if none of them comes to anything, none will
SEQUENCES = 256  # in one pass of a GPU

Sources = Sequence[list[str] | None]  # prompts; None: the target makes them up


def write_texts(asked: Settings, ranks: Ranks, display: Display) -> Written:
    """Those in the folder and, where they are too few, more: stored as they come."""
    file = asked.out / FILE
    here = load_texts(file) if ranks.first and file.exists() else Written([])
    found = ranks.from_first(here)
    if len(found.texts) < asked.texts:
        sources = [None if each == "self" else read_prompts(Path(each)) for each in asked.data]
        found = _more(asked, found, sources, file, ranks, display)
    if len(found.texts) < 2:
        raise ConfigError(
            f"only {len(found.texts)} texts were written; raise --texts or --longest, or give "
            "prompts that the target answers with --data FILE"
        )
    return replace(found, texts=found.texts[: asked.texts])


def _more(
    asked: Settings,
    found: Written,
    sources: Sources,
    file: Path,
    ranks: Ranks,
    display: Display,
) -> Written:
    llm = _engine(asked)
    longest = min(asked.longest, llm.engine.max_model_len)
    if llm.tokenizer is not None and llm.tokenizer.chat_template is None:
        display.note(f"{asked.target} has no chat template: it goes on with plain text instead")
    if ranks.first:
        save_texts(found, file)  # without what a kill may have left half written
    with display.writing(len(found.texts), asked.texts) as bar:
        writer = Writer(
            llm, longest, asked.temperature, asked.seed, lambda part: bar.add(part * ranks.count)
        )
        in_vain = 0  # prompts in a row
        while len(found.texts) < asked.texts:
            begun = time.monotonic()
            missing = asked.texts - len(found.texts)
            wanted = min(AT_ONCE * ranks.count, max(AT_LEAST, missing))
            own = ranks.share(range(found.used, found.used + wanted))
            new = sorted(ranks.gather(_part(writer, sources, own)), key=lambda each: each[0])
            more = Written(
                [text for _, text in new],
                found.used + wanted,
                found.seconds + time.monotonic() - begun,
            )
            if ranks.first:
                add_texts(more, file)
            found = replace(more, texts=found.texts + more.texts)
            bar.reached(min(asked.texts, len(found.texts)))
            in_vain = 0 if new else in_vain + wanted
            if in_vain >= max(AT_LEAST, *(len(sources) * len(each or ()) for each in sources)):
                display.note(f"no more texts than {len(found.texts)} can be had")
                break
    return found


def _part(writer: Writer, sources: Sources, numbers: Sequence[int]) -> list[Numbered]:
    """The texts of these numbers: they go to the sources in turn."""
    found = []
    for first, prompts in enumerate(sources):
        mine = [i // len(sources) for i in numbers if i % len(sources) == first]
        if prompts is None:
            part = writer.self_written(mine)
        else:  # from a place on that the seed decides; after the last comes the first once more
            part = writer.answered([(i, prompts[(writer.first + i) % len(prompts)]) for i in mine])
        found += [(i * len(sources) + first, text) for i, text in part]
    return found


def _engine(asked: Settings) -> LLM:
    """Plain decoding: in batches as large as these, drafts gain nothing."""
    many = {"max_num_seqs": SEQUENCES, "kv_cache_tokens": SEQUENCES * asked.longest}
    on_gpu = choose_device(asked.device).type == "cuda"
    return LLM(
        asked.target, None, device=asked.device, dtype=asked.dtype, **(many if on_gpu else {})
    )
