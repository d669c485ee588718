"""What a single request may say about speculation, and what the engine tells about it."""

import pytest
from tests.engine.helpers import Models, make_llm, registered, same_results
from tests.engine.policy.replay import STEPPED, oracle

from outrider.core.errors import InvalidRequest
from outrider.core.params import SamplingParams
from outrider.core.tree import TokenTree
from outrider.engine import drafting
from outrider.engine.llm import LLM
from outrider.engine.policy.cost import SOON, Measured, PassCost
from outrider.engine.policy.moods import Moods

LOOP = [7, 8, 9, 7, 8, 9, 7, 8, 9]


def params(speculation: object = None, **options: object) -> SamplingParams:
    return SamplingParams(
        temperature=0.0, max_tokens=100, ignore_eos=True, speculation=speculation, **options
    )  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def llm(models: Models) -> LLM:
    return make_llm(models.target, {"method": "ngram", "num_speculative_tokens": 4})


def test_false_is_plain_decoding(llm: LLM) -> None:
    drafted, plain = llm.generate([LOOP, LOOP], [params(), params(False)])
    assert drafted.speculation.drafted > 0
    assert drafted.speculation.drafter == "ngram"
    assert plain.speculation.drafted == 0
    assert plain.speculation.drafter == "none"
    assert plain.outputs[0].token_ids == drafted.outputs[0].token_ids


def test_a_length_of_its_own(llm: LLM) -> None:
    (result,) = llm.generate(LOOP, params({"num_speculative_tokens": 2}))
    spec = result.speculation
    assert spec.drafter == "ngram"
    assert 0 < spec.drafted <= 2 * spec.drafts


def test_a_drafter_of_its_own(models: Models) -> None:
    """A light drafter is made when somebody first asks for it."""
    llm = make_llm(models.target)
    (other,) = llm.generate(LOOP, params({"method": "ngram", "num_speculative_tokens": 3}))
    (plain,) = llm.generate(LOOP, params())
    assert other.speculation.drafter == "ngram"
    assert other.speculation.drafted > 0
    assert plain.speculation.drafted == 0
    same_results(llm, [(LOOP, params())], [other], [plain])
    llm.engine.kv.check()


def test_a_length_left_to_the_policy(models: Models) -> None:
    llm = make_llm(models.target)
    (result,) = llm.generate(LOOP, params({"method": "ngram"}))
    (plain,) = llm.generate(LOOP, params())
    assert result.outputs[0].token_ids == plain.outputs[0].token_ids
    llm.engine.kv.check()


@pytest.mark.parametrize(
    ("speculation", "message"),
    [
        (True, "must be None, False or a dict"),
        ("ngram", "must be None, False or a dict"),
        ({"model": "other"}, "other options belong to the engine"),
        ({"method": "ngrm"}, "did you mean 'ngram'"),
        ({"method": "draft_model"}, "not loaded with this engine"),
        ({"method": "ngram", "num_speculative_tokens": -1}, "num_speculative_tokens=-1"),
    ],
)
def test_what_cannot_be_had_is_refused(llm: LLM, speculation: object, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        llm.generate(LOOP, params(speculation))
    llm.engine.kv.check()


def test_forgetting_leaves_a_fresh_engine(models: Models) -> None:
    llm = make_llm(models.target, "ngram")
    llm.engine.policy.draft_always()  # how often a lookup is asked depends on how fast it was
    llm.generate(LOOP, params())
    assert llm.engine.policy.tracks["ngram"].levels[0].count > 0
    llm.engine.forget()
    assert llm.engine.policy.tracks["ngram"].levels[0].count == 0
    assert llm.engine.kv.available == llm.engine.kv.total
    (again,) = llm.generate(LOOP, params())
    assert again.num_cached_tokens == 0


class Random(oracle(0.0)):  # type: ignore[misc]
    """Always wrong, and sure of itself."""

    name = "random"

    def lookup(self, request, ahead, budget):  # type: ignore[no-untyped-def]
        wrong = [(sum(request.tokens) + i) % 300 for i in range(budget)]
        return TokenTree.chain(wrong, self.name, confidence=[0.95] * budget)


def test_a_hopeless_drafter_is_soon_ignored(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registered(Random):
        llm = make_llm(models.target, "random")
    # On so small a model rows cost nothing, and then neither does hope.
    llm.engine.policy.cost = PassCost(STEPPED)
    monkeypatch.setattr(PassCost, "learn", lambda *args: None)
    (result,) = llm.generate([3, 1, 4, 1, 5], SamplingParams(max_tokens=200, ignore_eos=True))
    assert 0 < result.speculation.drafts <= 10
    (again,) = llm.generate([3, 1, 4, 1, 6], SamplingParams(max_tokens=200, ignore_eos=True))
    assert again.speculation.drafts == 0


def test_explanations(models: Models) -> None:
    fixed = make_llm(models.target, {"method": "ngram", "num_speculative_tokens": 4})
    fixed.generate(LOOP, params())
    assert "fixed" in str(fixed.explain())
    llm = make_llm(models.target, "ngram")
    llm.generate([LOOP, LOOP], [params(), params()])
    found = llm.explain()
    assert found.adaptive
    assert found.pass_milliseconds[1] > 0
    (drafter,) = found.drafters
    assert drafter.name == "ngram"
    assert drafter.milliseconds is not None
    assert all(0 < chance < 1 for chance in drafter.chances)
    assert [report.batch_size for report in found.budgets] in ([1, 2], [2])
    report = found.budgets[-1]
    assert report.drafts == sum(report.nodes.values())
    assert report.mean_nodes == pytest.approx(
        sum(nodes * times for nodes, times in report.nodes.items()) / report.drafts
    )
    text = str(found)
    assert "a pass over   1 row" in text
    assert "nodes checked per step with 2 at once" in text
    assert found.to_dict()["drafters"][0]["name"] == "ngram"


FREE = Measured([1, 2], [1.0, 1.0], context=256)  # any number of rows, in the same time


def test_while_lookups_are_in_doubt_nobody_looks_up(models: Models) -> None:
    with registered(Random):
        llm = make_llm(models.target, "random")
    policy = llm.engine.policy
    policy.cost = PassCost(FREE, fixed=True)
    policy.lookups_doubt.left = 1000
    assert not llm.generate(LOOP, params())[0].speculation.drafted
    assert policy.lookups_doubt.passed > 0
    policy.lookups_doubt.left = 0
    assert llm.generate(LOOP, params())[0].speculation.drafted


def test_several_texts_are_written_without_drafts_now_and_then(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it is known what that takes now; of one text alone, calibration has told."""
    with registered(Random):
        llm = make_llm(models.target, "random")
    llm.engine.policy.cost = PassCost(FREE)
    llm.engine.runner._sizes.update(range(1000))  # of which the first pass tells nothing
    monkeypatch.setattr(Moods, "learn", lambda *_: None)  # rows stay free
    drafted: list[int] = []
    propose = drafting.Drafting.propose

    def noted(self: drafting.Drafting, *args: object, **options: object) -> list[TokenTree]:
        trees = propose(self, *args, **options)  # type: ignore[arg-type]
        drafted.append(sum(map(len, trees)))
        return trees

    def plain_among(texts: int) -> list[int]:
        """Which of the passes had no drafts, the last one aside: there is no room for any."""
        drafted.clear()
        llm.generate([LOOP] * texts, params())
        return [i for i, nodes in enumerate(drafted[:-1]) if not nodes]

    monkeypatch.setattr(drafting.Drafting, "propose", noted)
    first, *_ = plain = plain_among(2)
    assert SOON <= first <= SOON + 2  # what a pass took is told while the next one is under way
    assert first + 1 not in plain  # one, and not several in a row
    assert not plain_among(1)


def test_beside_drafts_of_a_fixed_length_nobody_waits_for_a_plain_pass(models: Models) -> None:
    always = params({"num_speculative_tokens": 2})
    with registered(Random):
        llm = make_llm(models.target, "random")
        llm.engine.policy.cost = PassCost(FREE)
        fixed, free = llm.generate([LOOP, LOOP], [always, params()])
    assert fixed.speculation.drafted and free.speculation.drafted


def test_while_drafting_is_in_doubt_nobody_asks_whether_it_pays(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make_llm(models.target, {"method": "auto", "model": models.noisy})
    asked: list[int] = []
    prospects = drafting.prospects
    monkeypatch.setattr(
        drafting, "prospects", lambda *args: asked.append(len(args[2])) or prospects(*args)
    )
    doubt = llm.engine.policy.doubts["draft_model"]
    doubt.left = 1000
    llm.generate(LOOP, params())
    assert not asked and 0 < doubt.passed <= 100
    monkeypatch.setattr(type(llm.engine.runner), "runs_ahead", True)  # then it costs nothing
    llm.generate(LOOP, params())
    assert asked
