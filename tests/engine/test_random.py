"""Random traffic: whatever comes together, every text is the one its request gets alone."""

from collections import deque
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.helpers import (
    Ask,
    Models,
    Trees,
    drafting,
    make_llm,
    mixed_options,
    random_prompt,
    run,
    same_results,
)

from outrider.core.outputs import RequestOutput
from outrider.core.params import SamplingParams
from outrider.engine.engine import Engine
from outrider.engine.llm import LLM

MOST = 14  # output tokens
OPTIONS = [{k: v for k, v in o.items() if k != "max_tokens"} for o in mixed_options(MOST)]

requests = st.fixed_dictionaries(
    {
        "options": st.integers(0, len(OPTIONS) - 1),
        "shared": st.integers(0, 10),  # of the prompt: a beginning that others have, too
        "length": st.sampled_from([1, 7, 13, 16, 20]),
        "tokens": st.integers(8, MOST),
        "arrival": st.integers(0, 3),  # steps after the one before
        "abort": st.none() | st.none() | st.integers(0, 12),  # steps after its arrival
        "seed": st.integers(0, 3),
    }
)
plans = st.fixed_dictionaries(
    {
        "requests": st.lists(requests, min_size=3, max_size=8),
        "drafter": st.sampled_from(["none", "ngram", "draft_model", "trees"]),
        "k": st.integers(1, 6),
        "kv_cache_tokens": st.sampled_from([46, 54, 64, 500]),
        "max_num_batched_tokens": st.sampled_from([6, 17, 40, 64]),
        "max_num_seqs": st.sampled_from([1, 4, 9, 16]),
        "enable_prefix_caching": st.booleans(),
    }
)


def _ask(plan: dict[str, Any]) -> Ask:
    options = {**OPTIONS[plan["options"]], "max_tokens": plan["tokens"], "seed": plan["seed"]}
    options["min_tokens"] = min(options.get("min_tokens", 0), plan["tokens"])
    prompt = random_prompt(7, 10)[: plan["shared"]] + random_prompt(plan["seed"], plan["length"])
    return prompt, SamplingParams(**options)


def _serve(engine: Engine, plans: list[dict[str, Any]]) -> list[RequestOutput | None]:
    """Results in the order of the plans; None where a request was aborted."""
    arrivals = deque(enumerate(plans))
    due: dict[int, list[str]] = {}  # step -> requests to abort
    results: dict[str, RequestOutput | None] = {}
    step, next_arrival = 0, plans[0]["arrival"]
    while arrivals or not engine.idle:
        while arrivals and step >= next_arrival:
            place, plan = arrivals.popleft()
            engine.add(*_ask(plan), request_id=str(place))
            if plan["abort"] is not None:
                due.setdefault(step + plan["abort"], []).append(str(place))
            next_arrival = step + (arrivals[0][1]["arrival"] if arrivals else 0)
        for request_id in due.pop(step, []):
            if engine.abort(request_id):
                results[request_id] = None
            engine.kv.check()
        for delta in engine.step():
            if delta.result is not None:
                results[delta.request_id] = delta.result
        engine.kv.check()
        step += 1
        assert step < 5000, "the engine makes no progress"
    return [results[str(place)] for place in range(len(plans))]


def serve_and_compare(models: Models, plain: LLM, plan: dict[str, Any]) -> LLM:
    """Run one plan and hold it against solo runs; the engine, for what else a test looks at."""
    asked = [_ask(request) for request in plan["requests"]]
    alone = [run(plain, [ask])[0] for ask in asked]
    Trees.learn(asked, alone)
    limits = ("kv_cache_tokens", "max_num_batched_tokens", "max_num_seqs", "enable_prefix_caching")
    llm = make_llm(
        models.target,
        drafting(models, plan["drafter"], plan["k"]),
        **{name: plan[name] for name in limits},
    )
    results = _serve(llm.engine, plan["requests"])
    for ask, result, solo in zip(asked, results, alone, strict=True):
        if result is not None:
            same_results(plain, [ask], [result], [solo])
    kv = llm.engine.kv
    cached = sum(len(node.slots) for node in kv.tree.nodes())
    assert kv.available + cached == kv.total
    assert len(kv.tree.evict(kv.total)) == cached  # nothing is locked any more
    return llm


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(plans)
def test_every_request_equals_its_solo_run_and_no_slot_is_lost(
    models: Models, plain: LLM, plan: dict[str, Any]
) -> None:
    serve_and_compare(models, plain, plan)


def test_the_random_plans_include_preemption(models: Models, plain: LLM) -> None:
    request = {"options": 0, "shared": 4, "length": 16, "tokens": MOST, "arrival": 1}
    crowd = [{**request, "abort": None, "seed": seed} for seed in range(4)]
    crowd[2]["abort"] = 5
    plan = {
        "requests": crowd,
        "drafter": "draft_model",
        "k": 4,
        "kv_cache_tokens": 60,
        "max_num_batched_tokens": 17,
        "max_num_seqs": 16,
        "enable_prefix_caching": True,
    }
    assert serve_and_compare(models, plain, plan).engine.scheduler.preemptions > 0
