"""Drafters learn from what a tiny target writes."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from tests.tiny import make_tiny, make_tokenizer

from outrider import LLM, SamplingParams
from outrider.cli import main
from outrider.core.errors import ConfigError, OutriderError
from outrider.train import objective
from outrider.train.batch import Truth, Vocabulary, see
from outrider.train.checkpoint import write
from outrider.train.distill import new_student
from outrider.train.loop import OBJECTIVES, Judgement, Plan, train
from outrider.train.settings import KINDS
from outrider.train.start import learned_head, new_head
from outrider.train.texts import Text


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = make_tiny("llama", tmp_path_factory.mktemp("target"), num_hidden_layers=4)
    make_tokenizer(folder)
    return str(folder)


@pytest.fixture(scope="module")
def llm(target: str) -> LLM:
    return LLM(target, None, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def texts(llm: LLM) -> list[Text]:
    """Greedy, from few starts: little to learn, soon learned."""
    prompts: list[Any] = [[5 + i, 9 + i] for i in range(24)]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    results = llm.generate(prompts, params, use_tqdm=False)
    return [Text([*p, *r.outputs[0].token_ids], len(p)) for p, r in zip(prompts, results)]


def words_of(texts: list[Text], llm: LLM, most: int = 200) -> Vocabulary:
    return Vocabulary.of(texts, most, llm.engine.runner.vocabulary, {0})


def plain_model(target: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)


class Taught(NamedTuple):
    judged: list[Judgement]
    model: Any
    head: Any
    words: Vocabulary


def taught(
    target: str, llm: LLM, texts: list[Text], kind: str, folder: Path, steps: int, **options: Any
) -> Taught:
    torch.manual_seed(0)
    model = plain_model(target)
    if kind == "distill":
        words = words_of(texts, llm, llm.engine.runner.vocabulary)
        head, config = new_student(model, llm.tokenizer, layers=3), {}
    else:
        words = words_of(texts, llm)
        head, config = new_head(kind, model, words)
    # The held-out texts are learned, too: a random model has no rule that would carry over.
    plan = Plan(kind, steps, texts_per_step=12, every=5, seed=1, learning_rate=1e-2)
    judged = train(model, head, config, [*texts[:4], *texts], words, plan, folder, **options)
    return Taught(judged, model, head, words)


@torch.no_grad()
def run_of_hits(
    taught: Taught, kind: str, text: Text, last: int, depths: int, patch: pytest.MonkeyPatch
) -> int:
    """How many guesses below the token at `last` hold, as the objective sees it."""
    batch = see(taught.model, [text], taught.head.taps, taught.words)

    def agreed(first: int) -> float:
        """In blocks, or rows, from that token on."""
        batch.learned[:] = torch.arange(batch.tokens.shape[1]) > first
        patch.setattr(objective, "_anchors", lambda *_: torch.tensor([[first]]))
        learned = OBJECTIVES[kind](taught.head, batch, taught.words, torch.Generator())
        return float(learned.agreed[:depths].sum())

    if kind == "dspark":
        return round(agreed(last))
    return round(agreed(last) - agreed(last + 1))


@pytest.fixture(scope="module", params=KINDS)
def pupil(
    request: Any, target: str, llm: LLM, texts: list[Text], tmp_path_factory: Any
) -> tuple[str, Path, Taught]:
    """A kind of drafter, its folder, and what has become of it."""
    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    steps = 30 if kind == "distill" else 120  # it knows much from the start
    return kind, folder, taught(target, llm, texts, kind, folder, steps)


def test_it_learns_and_what_it_wrote_drafts(
    target: str, texts: list[Text], pupil: tuple[str, Path, Taught]
) -> None:
    kind, folder, (judged, *_) = pupil
    assert judged[-1].loss < judged[0].loss
    assert judged[-1].length > judged[0].length + 0.1
    fast = LLM(target, {"model": str(folder)}, device="cpu", dtype="float32")
    assert fast.drafter_name == ("draft_model" if kind == "distill" else kind)
    fast.engine.policy.draft_always()
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    prompts: list[Any] = [text.tokens[: text.prompt] for text in texts[:4]]
    for text, result in zip(texts, fast.generate(prompts, params, use_tqdm=False)):
        assert result.outputs[0].token_ids == text.tokens[text.prompt :]
        assert result.speculation.accepted > 0


def test_what_is_learned_is_what_is_drafted(
    target: str,
    texts: list[Text],
    pupil: tuple[str, Path, Taught],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guesses that hold in the lessons' view of a text are those that the engine accepts."""
    depths = 3
    kind, folder, found = pupil
    for parameter in found.head.parameters():
        parameter.data = parameter.data.bfloat16().float()  # as in its files
    config = {"model": str(folder), "num_speculative_tokens": depths}
    fast = LLM(target, config, device="cpu", dtype="float32")
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    accepted = 0
    for text in texts[:3]:
        result = fast.generate([text.tokens[: text.prompt]], params, use_tqdm=False)[0]
        last, expected = text.prompt, []  # the first token comes from reading the prompt
        while last + 1 < len(text.tokens):
            room = len(text.tokens) - last - 2  # the target adds one itself
            hits = run_of_hits(found, kind, text, last, min(depths, room), monkeypatch)
            expected.append(hits)
            last += hits + 1
        assert result.speculation.accepted == sum(expected)
        assert result.speculation.steps == len(expected)
        accepted += sum(expected)
    assert accepted > 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_goes_on_to_the_same_result(
    target: str, llm: LLM, texts: list[Text], kind: str, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir(), parts.mkdir()
    taught(target, llm, texts, kind, whole, steps=10)

    def killed(step: int, *_: Any) -> None:
        if step == 7:  # after the checkpoint of step 5
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        taught(target, llm, texts, kind, parts, steps=10, tell=killed)
    judged = taught(target, llm, texts, kind, parts, steps=10).judged
    assert [each.step for each in judged] == [5, 10]
    assert (whole / "model.safetensors").read_bytes() == (parts / "model.safetensors").read_bytes()


def test_a_loss_that_is_no_number_stops_and_keeps_the_checkpoint(
    target: str, llm: LLM, texts: list[Text], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught(target, llm, texts, "medusa", tmp_path, steps=5)
    kept = (tmp_path / "checkpoint.pt").read_bytes()
    monkeypatch.setattr(
        "outrider.train.objective._soft_loss", lambda guess, _: guess.sum() * torch.nan
    )
    with pytest.raises(OutriderError, match="learning-rate"):
        taught(target, llm, texts, "medusa", tmp_path, steps=8)
    assert (tmp_path / "checkpoint.pt").read_bytes() == kept


def test_the_vocabulary_is_what_is_written_most(llm: LLM) -> None:
    text = Text([9, 9, 5, 5, 5, 7, 7, 8], prompt=2)
    words = Vocabulary.of([text], 3, 20, always={0})
    assert words.ids.tolist() == [0, 5, 7]
    assert (torch.arange(3) + words.d2t).tolist() == [0, 5, 7]


def test_the_truth_is_told_in_the_drafters_own_tokens() -> None:
    words = Vocabulary(torch.tensor([0, 5, 7]), 20)
    logits = torch.zeros(2, 20)
    logits[0, 7], logits[1, 8] = 2.0, 2.0
    truth = Truth.of(logits, words)
    p = logits.softmax(-1)
    assert truth.best.tolist() == [2, -1]  # token 8 is none of its own
    assert truth.tokens[0, 0] == 2
    for row in range(2):
        expected = p[row, words.ids[truth.tokens[row]]]
        assert torch.allclose(truth.chances[row], expected)


def test_a_loss_goes_from_cross_entropy_to_the_share_of_rejected_guesses() -> None:
    p = torch.tensor([[0.6, 0.3, 0.1]])
    truth = Truth(torch.tensor([0]), torch.tensor([[0, 1, 2]]), p)
    entropy = float(-(p * p.log()).sum())
    near, afar = p.log(), torch.tensor([[-9.0, -9.0, 9.0]])
    loss = objective._soft_loss(near, truth)
    assert float(loss) == pytest.approx(math.exp(-3) * entropy, rel=1e-5)  # nothing is rejected
    said = afar.log_softmax(-1)
    held = float(torch.minimum(p, said.exp()).sum())  # a tenth: it bets on the third token alone
    share = math.exp(-3 * held)
    expected = share * float(-(p * said).sum()) + (1 - share) * (1 - held)
    assert float(objective._soft_loss(afar, truth)) == pytest.approx(expected, rel=1e-5)
    unknown = truth._replace(best=torch.tensor([-1]))  # the drafter does not know the favourite
    assert float(objective._soft_loss(afar, unknown)) == 0.0


def test_a_normed_head_is_read_as_one(
    target: str, llm: LLM, texts: list[Text], tmp_path: Path
) -> None:
    head, config = new_head("eagle3", plain_model(target), words_of(texts, llm), normed=True)
    write(head, config, tmp_path)
    fast: Any = LLM(target, {"model": str(tmp_path)}, device="cpu", dtype="float32").engine.drafter
    assert fast.head.options.fc_norm and fast.head.options.norm_before_residual


@pytest.mark.parametrize("kind", ["eagle3", "medusa", "dspark"])
def test_a_drafter_goes_on_from_one_that_was_trained_before(
    kind: str, target: str, llm: LLM, texts: list[Text], tmp_path: Path
) -> None:
    """With its weights and its tokens, and is written as such a one again."""
    loaded = llm.engine.loaded
    first, config = new_head(kind, loaded.model, words_of(texts, llm))
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    write(first, config, tmp_path / "first")
    head, same_config, words = learned_head(kind, str(tmp_path / "first"), loaded)
    assert same_config == config and words.ids.equal(words_of(texts, llm).ids)
    write(head, same_config, tmp_path / "second")
    names = ("first", "second")
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in names)
    assert one.keys() == other.keys() and all(one[key].equal(other[key]) for key in one)
    assert all(parameter.requires_grad for parameter in head.parameters())
    with pytest.raises(ConfigError, match="give the folder of one"):
        learned_head("medusa" if kind == "eagle3" else "eagle3", str(tmp_path / "first"), loaded)


def test_the_command_starts_from_a_drafter(target: str, tmp_path: Path) -> None:
    asked = ["train", "eagle3", "--target", target, "--texts", "6", "--longest", "120"]
    asked += ["--texts-per-step", "2", "--device", "cpu", "--dtype", "float32", "--steps", "2"]
    first, second = tmp_path / "first", tmp_path / "second"
    assert main.run([*asked, "--out", str(first), "--vocabulary", "100"]) == 0
    slowly = ["--start", str(first), "--learning-rate", "1e-12"]
    assert main.run([*asked, "--out", str(second), *slowly]) == 0
    one, other = (load_file(folder / "model.safetensors") for folder in (first, second))
    assert all(one[key].equal(other[key]) for key in one)


def test_the_command_trains_and_goes_on(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "drafter"
    asked = ["train", "dspark", "--target", target, "--out", str(out), "--texts", "6"]
    asked += ["--longest", "120", "--texts-per-step", "2", "--device", "cpu", "--dtype", "float32"]
    assert main.run([*asked, "--steps", "2"]) == 0
    assert "tokens per pass on held-out text" in capsys.readouterr().err
    assert main.run([*asked, "--steps", "4"]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main.run([*asked, "--steps", "4", "--resume"]) == 0
    held_out = json.loads((out / "report.json").read_text())["held out"]
    assert [each["step"] for each in held_out] == [1, 2, 3, 4]
    assert (out / "report.md").exists() and (out / "report.png").exists()
    fast = LLM(target, {"model": str(out)}, device="cpu", dtype="float32")
    assert fast.drafter_name == "dspark"
    assert main.run(["train", "ngram", "--target", target, "--out", str(tmp_path / "x")]) == 2
    assert "medusa, eagle3, dspark, distill" in capsys.readouterr().err
