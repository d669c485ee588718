"""The packed pass equals transformers' own forward: every family, any packing, chains and trees."""

import random
from array import array
from functools import cache
from pathlib import Path

import pytest
import torch
from tests.tiny import VOCAB, make_tiny
from torch import Tensor
from transformers import AutoModelForCausalLM

from outrider.core.errors import ModelError
from outrider.model.loading import LoadedModel, load_model
from outrider.model.runner import Runner
from outrider.model.segment import WHOLE, Group, Segment, group_segments

FAMILIES = [
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "phi3",
    "gpt2",
    "opt",
    "gpt_neox",
    "olmo2",
    "granite",
    "mixtral",
    "qwen3_moe",
    "gpt_oss",
]
SLOTS = 300
NODES = 12  # of the tree below each text
# The sliding windows of the tiny checkpoints are 8 tokens wide.
LENGTHS = (40, 17, 1, 23)
SHORTER = (19, 10, 1, 13)
# Attention pads keys to multiples of 128: these share a pass but not a shape.
LONG = (150, 12, 1)

Text = tuple[int, ...]
Rows = dict[Text, Tensor]  # a row's whole path, its own token last -> its logits [vocabulary]


class Writer:
    """One sequence on its way through a runner, in slots drawn from a shuffled pool."""

    def __init__(self, tokens: Text, pool: list[int]) -> None:
        self.tokens = tokens
        self.pool = pool
        self.context = array("q")

    @property
    def done(self) -> int:
        return len(self.context)

    def take(self, count: int) -> array:
        return array("q", [self.pool.pop() for _ in range(count)])

    def chunk(self, rows: int) -> Segment:
        """The next rows of the text, all with logits; they become context."""
        tokens = list(self.tokens[self.done : self.done + rows])
        segment = Segment.chain(tokens, self.take(len(tokens)), self.context, logits_from=0)
        self.context = self.context + segment.slots
        return segment

    def rest_and_tree(self, tokens: list[int], parents: list[int]) -> Segment:
        """What is left of the text, and a tree below its last token."""
        rest = list(self.tokens[self.done :])
        last = len(rest) - 1
        below = [last if parent < 0 else parent + len(rest) for parent in parents]
        slots = self.take(len(rest) + len(tokens))
        return Segment(rest + tokens, [*range(-1, last), *below], slots, self.context, 0)


def paths(segment: Segment, before: Text) -> list[Text]:
    """The whole text of every row of a segment that continues `before`."""
    texts: list[Text] = []
    for token, parent in zip(segment.tokens, segment.parents, strict=True):
        texts.append((before if parent < 0 else texts[parent]) + (token,))
    return texts


def run(runner: Runner, segments: list[Segment], befores: list[Text]) -> Rows:
    logits = runner.forward(segments).clone()
    texts = [t for s, before in zip(segments, befores, strict=True) for t in paths(s, before)]
    return dict(zip(texts, logits, strict=True))


def random_tree(rng: random.Random) -> tuple[list[int], list[int]]:
    """Branches, and one path that is deeper than a window. Every path is a text of its own."""
    deep = [-1, -1, *range(1, NODES - 3)]
    parents = deep + [rng.randrange(-1, len(deep)) for _ in range(NODES - len(deep))]
    return rng.sample(range(VOCAB), NODES), parents


def packed_rows(runner: Runner, texts: list[Text], seed: int) -> Rows:
    """All rows of the texts and of a random tree below each, packed in uneven chunks.

    The trees depend on the texts alone; order, chunks and slots on the seed.
    """
    rng = random.Random(seed)
    pool = rng.sample(range(1, SLOTS + 1), SLOTS)
    writers = [Writer(text, pool) for text in texts]
    rows: Rows = {}
    for _ in range(5):  # the rest, whatever is left then, goes with the trees
        rng.shuffle(writers)
        left = [w for w in writers if w.done < len(w.tokens) - 1]
        sizes = [min(rng.randrange(1, 12), len(w.tokens) - 1 - w.done) for w in left]
        befores = [w.tokens[: w.done] for w in left]
        if left:
            rows |= run(runner, [w.chunk(n) for w, n in zip(left, sizes, strict=True)], befores)
    befores = [w.tokens[: w.done] for w in writers]
    trees = [random_tree(random.Random(sum(w.tokens))) for w in writers]
    return rows | run(
        runner, [w.rest_and_tree(*t) for w, t in zip(writers, trees, strict=True)], befores
    )


def alone_rows(runner: Runner, texts: list[Text]) -> Rows:
    """The rows of each text as a chain, one text and one pass at a time."""
    rows: Rows = {}
    for text in texts:
        rows |= run(runner, [Writer(text, list(range(1, SLOTS + 1))).chunk(len(text))], [()])
    return rows


def longest(rows: Rows) -> list[Text]:
    """The texts that no other text continues: one chain each covers all rows."""
    inner = {text[:-1] for text in rows}
    return [text for text in rows if text not in inner]


@torch.inference_mode()
def transformers_rows(folder: Path, texts: list[Text], dtype: torch.dtype) -> Rows:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    rows: Rows = {}
    for text in texts:
        logits = model.eval()(input_ids=torch.tensor([text]), use_cache=False).logits[0]
        rows |= {text[: i + 1]: logits[i] for i in range(len(text))}
    return rows


def worst_error(got: Rows, expected: Rows) -> float:
    """The largest difference, in units of the largest logit."""
    scale = max(float(row.float().abs().max()) for row in expected.values())
    return max(float((got[t].float() - expected[t].float()).abs().max()) for t in got) / scale


def relative_error(row: Tensor, expected: Tensor) -> float:
    return float((row.float() - expected.float()).norm() / expected.float().norm())


def differing(one: Rows, other: Rows) -> list[Text]:
    assert one.keys() == other.keys()
    return [text for text in one if not torch.equal(one[text], other[text])]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    root = tmp_path_factory.mktemp("tiny")
    return cache(lambda family: make_tiny(family, root / family, seed=3))


def make_runner(folder: Path, dtype: str, reproducible: bool = False) -> Runner:
    runner = Runner(load_model(str(folder), dtype=dtype, device="cpu"), reproducible)
    runner.allocate(SLOTS)
    return runner


def some_texts(lengths: tuple[int, ...], seed: int = 0) -> list[Text]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(VOCAB) for _ in range(length)) for length in lengths]


def chains(texts: list[Text]) -> list[Segment]:
    """Each from its start, with logits for all rows."""
    first, segments = 1, []
    for text in texts:
        slots = array("q", range(first, first + len(text)))
        segments.append(Segment.chain(list(text), slots, array("q"), 0))
        first += len(text)
    return segments


def prefixes(texts: list[Text]) -> list[Text]:
    return [text[:end] for text in texts for end in range(1, len(text) + 1)]


def check_parity(folder: Path, runner: Runner, lengths: tuple[int, ...]) -> None:
    rows = packed_rows(runner, some_texts(lengths), seed=1)
    assert len(rows) == sum(lengths) + len(lengths) * NODES
    expected = transformers_rows(folder, longest(rows), torch.float32)
    assert worst_error(rows, expected) <= 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_chunks_and_trees_equal_transformers_forward(tiny, family):
    check_parity(tiny(family), make_runner(tiny(family), "float32"), LENGTHS)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_that_is_read_at_once_equals_transformers_forward(tiny, family):
    """Beside a short one; long enough to be attended to without a mask."""
    runner = make_runner(tiny(family), "float32")
    texts = some_texts((WHOLE + 9, 7))
    rows = dict(zip(prefixes(texts), runner.forward(chains(texts)), strict=True))
    expected = transformers_rows(tiny(family), longest(rows), torch.float32)
    assert worst_error(rows, expected) <= 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_reproducible_rows_equal_transformers_forward(tiny, family):
    check_parity(tiny(family), make_runner(tiny(family), "float32", reproducible=True), SHORTER)


@pytest.mark.parametrize("reproducible", [False, True])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_texts_of_several_key_blocks_equal_transformers_forward(tiny, family, reproducible):
    check_parity(tiny(family), make_runner(tiny(family), "float32", reproducible), LONG)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_reproducible_rows_are_bitwise_the_same_in_any_packing(tiny, family, dtype):
    runner = make_runner(tiny(family), dtype, reproducible=True)
    texts = some_texts(SHORTER)
    packed = packed_rows(runner, texts, seed=3)
    assert not differing(packed, packed_rows(runner, texts, seed=4))  # order, chunks, slots
    assert not differing(packed, alone_rows(runner, longest(packed)))  # and as chains


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_reproducible_rows_do_not_show_how_long_their_neighbours_are(tiny, family, dtype):
    runner = make_runner(tiny(family), dtype, reproducible=True)
    among_long = packed_rows(runner, some_texts(LONG), seed=5)
    among_short = packed_rows(runner, some_texts(LONG)[1:] + some_texts((5, 9), seed=9), seed=6)
    shared = among_long.keys() & among_short.keys()
    assert len(shared) == LONG[1] + LONG[2] + 2 * NODES
    assert not [text for text in shared if not torch.equal(among_long[text], among_short[text])]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_reproducible_bfloat16_is_close_to_transformers(tiny, family):
    runner = make_runner(tiny(family), "bfloat16", reproducible=True)
    rows = packed_rows(runner, some_texts(SHORTER), seed=7)
    expected = transformers_rows(tiny(family), longest(rows), torch.bfloat16)
    # Rounding may send a token of gpt-oss to another expert, so some rows are far away.
    errors = torch.tensor([relative_error(rows[text], expected[text]) for text in rows])
    assert float(errors.quantile(0.75)) <= 0.05


def unchecked(folder: Path) -> LoadedModel:
    """Loaded past the checks of the configuration: what the probe says alone."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    cpu = torch.device("cpu")
    return LoadedModel(model, None, str(folder), frozenset(), 512, cpu, torch.float32)


@pytest.mark.parametrize("family", ["falcon", "gptj", "bloom"])
def test_the_probe_finds_layers_that_ignore_our_attention(tiny, family):
    reason = f"{family} models are not supported: 0 of 2 layers go through"
    with pytest.raises(ModelError, match=reason):
        Runner(unchecked(tiny(family)))


def test_the_probe_finds_a_leak_between_packed_texts(tiny, monkeypatch):
    def see_everything(segments: list[Segment]) -> list[Group]:
        groups = group_segments(segments)
        for group in groups:
            group.visible.fill_(True)
        return groups

    monkeypatch.setattr("outrider.model.admission.group_segments", see_everything)
    with pytest.raises(ModelError, match="packed pass differs from transformers' own"):
        Runner(unchecked(tiny("llama")))


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("layer_types", ["full_attention", "sliding_attention"], "layer 1 slides, but its window"),
        ("attn_logit_softcapping", 5.0, "soft-capped, but the cap is not handed over"),
    ],
)
def test_an_option_that_the_module_does_not_hand_over_is_refused(tiny, option, value, reason):
    loaded = unchecked(tiny("llama"))
    setattr(loaded.model.config, option, value)
    with pytest.raises(ModelError, match=reason):
        Runner(loaded)


REFUSED = {
    "falcon": "FalconForCausalLM does not let its attention be replaced",
    "gptj": "GPTJForCausalLM does not let its attention be replaced",
    "bloom": "BloomForCausalLM does not let its attention be replaced",
    "mamba": "a recurrent state cannot go back",
    "t5": "encoder-decoder",
}


@pytest.mark.parametrize("family", REFUSED)
def test_unsupported_families_are_refused_with_the_reason(tiny, family):
    with pytest.raises(ModelError) as refusal:
        Runner(load_model(str(tiny(family)), dtype="float32", device="cpu"))
    message = str(refusal.value)
    assert message.startswith(f"{family} models are not supported")
    assert REFUSED[family] in message
    assert "\n" not in message
