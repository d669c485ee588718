"""`audit_engine`: the whole audit of one model, drafter and set of options."""

import gc
import time
from collections.abc import Callable
from typing import Any

import torch

from outrider.audit.cases import BIAS, Builder, sampled_prompt, symbols
from outrider.audit.distribution import DEPTH, Law, Prefix, Tree, judge_distribution
from outrider.audit.equality import Pair, check_pairs
from outrider.audit.judge import Ask, Judge
from outrider.audit.reference import Reference, load_reference
from outrider.audit.report import AuditReport, Check
from outrider.core.errors import ConfigError, InvalidRequest, ModelError
from outrider.core.outputs import RequestOutput
from outrider.core.params import SamplingParams
from outrider.drafters.registry import parse_config
from outrider.engine.llm import LLM, Prompt

FALSE_ALARM = 1e-6  # over all distribution tests of one audit
PER_REQUEST = 16  # samples that one request asks for as its n
SLOTS = 8192  # KV slots: 64 short texts at once and their drafts

Progress = Callable[[str, float], None]  # what is being done, and how much of all is


def audit_engine(
    model: str,
    speculative_config: str | dict[str, Any] | None = None,
    *,
    seed: int = 0,
    tokens: int = 24,
    samples: int = 1024,
    progress: Progress = lambda stage, done: None,
    **engine: Any,
) -> AuditReport:
    """Compare speculative with plain decoding; `engine` takes the options of `EngineConfig`.

    One copy of the model is in memory at a time: plain decoding runs first, then speculation,
    then the reference that judges both.
    """
    start = time.perf_counter()
    parse_config(speculative_config)  # a wrong one should not cost the loading of a model
    options = {"kv_cache_tokens": SLOTS, **engine}
    run = _Run(model, speculative_config, seed, tokens, samples, progress, options)
    checks = run.checks()
    tested = [c.figures["detectable_total_variation"] for c in checks if _tested(c)]
    return AuditReport(
        subject=run.subject,
        checks=checks,
        seconds=time.perf_counter() - start,
        false_alarm_probability=FALSE_ALARM if tested else 0.0,
        detectable_total_variation=min(tested, default=None),
    )


def _tested(check: Check) -> bool:
    return "detectable_total_variation" in check.figures


class _Run:
    """The state that one audit carries from phase to phase."""

    def __init__(
        self,
        model: str,
        speculative_config: str | dict[str, Any] | None,
        seed: int,
        tokens: int,
        samples: int,
        progress: Progress,
        options: dict[str, Any],
    ) -> None:
        self.model, self.speculative_config, self.options = model, speculative_config, options
        self.seed, self.tokens, self.samples = seed, tokens, samples
        self.progress = progress
        self.subject: dict[str, Any] = {"model": model, "seed": seed}
        self.drawn = parse_config(speculative_config).verification == "traversal"

    def checks(self) -> list[Check]:
        asks, plain = self._plain()
        try:
            got, drawn = self._speculative(asks)
        except (ConfigError, InvalidRequest, ModelError):  # the pair cannot be run at all
            raise
        except Exception as error:
            # A crash is a finding about the drafter, not a fault of the user's command.
            return [Check("engine", False, f"the engine broke: {type(error).__name__}: {error}")]
        return self._judge(asks, plain, got, drawn)

    def _plain(self) -> tuple[list[Ask], list[RequestOutput]]:
        self.progress("plain decoding", 0.0)
        llm = LLM(self.model, None, **self.options)
        loaded = llm.engine.loaded
        self.dtype, self.device, self.tokenizer = loaded.dtype, loaded.device, loaded.tokenizer
        self.quantization = loaded.quantization
        self.parameters = sum(p.numel() for p in loaded.model.parameters())
        builder = Builder(llm, self.seed, self.tokens)
        base = builder.base()
        results = _generate(llm, base)
        self.base = len(base)
        self.progress("plain decoding with options", 0.12)
        more = builder.options(base, results, self.drawn)
        results += _generate(llm, more)
        self.symbols = symbols(self.tokenizer, llm.engine.runner.vocabulary, loaded.eos_ids)
        self.sampled_prompt = sampled_prompt(self.tokenizer, self.symbols, self.seed)
        del llm, loaded, builder
        _free()
        return base + more, results

    def _speculative(
        self, asks: list[Ask]
    ) -> tuple[list[RequestOutput], dict[str, list[RequestOutput]]]:
        self.progress("speculative decoding", 0.2)
        llm = LLM(self.model, self.speculative_config, **self.options)
        llm.engine.policy.draft_always()
        draft = llm.engine.draft_config
        self.subject |= {
            "drafter": draft.method,
            "num_speculative_tokens": draft.num_speculative_tokens,
            "verification": draft.verification,
            "dtype": str(self.dtype).removeprefix("torch."),
            "quantization": self.quantization,
            "device": str(self.device),
        }
        got = _generate(llm, asks)
        sampled: dict[str, list[RequestOutput]] = {}
        start, share = 0.4, 0.4 / max(1, len(self._laws()))
        for name, (law, count) in self._laws().items():
            sampled[name] = self._sample(llm, name, law, count, start, share)
            start += share
        return got, sampled

    def _laws(self) -> dict[str, tuple[Law, int]]:
        """What the samples are drawn by, and how many are: few outcomes, then all of them (at a
        temperature where many samples agree)."""
        if not self.samples:
            return {}
        only = dict.fromkeys(self.symbols, BIAS)
        return {
            "distribution": (Law(bias=only), self.samples),
            "distribution, whole vocabulary": (Law(temperature=0.6), self.samples // 2),
        }

    def _sample(
        self, llm: LLM, name: str, law: Law, count: int, start: float, share: float
    ) -> list[RequestOutput]:
        results: list[RequestOutput] = []
        requests = -(-count // PER_REQUEST)
        for first in range(0, requests, 8):
            self.progress(f"sampling: {name}", start + share * first / requests)
            # One token more than is judged: the last one of a text is never drafted.
            params = [
                SamplingParams(
                    n=PER_REQUEST,
                    seed=(self.seed << 32) + 1000 + i,
                    max_tokens=DEPTH + 1,
                    temperature=law.temperature,
                    logit_bias=law.bias or None,
                    ignore_eos=True,
                )
                for i in range(first, min(first + 8, requests))
            ]
            prompts: list[Prompt] = [self.sampled_prompt] * len(params)
            results += llm.generate(prompts, params, use_tqdm=False)
        return results

    def _judge(
        self,
        asks: list[Ask],
        plain: list[RequestOutput],
        got: list[RequestOutput],
        sampled: dict[str, list[RequestOutput]],
    ) -> list[Check]:
        _free()
        self.progress("loading the reference", 0.8)
        reference = self._reference(self.parameters)
        low = self.dtype != torch.float32
        judge = Judge(reference, self.tokenizer, drawn=self.drawn)
        self.progress("judging texts", 0.84)
        first = judge.calibrate(asks[: self.base], plain[: self.base], self.dtype)
        pairs = [Pair(*pair) for pair in zip(asks, got, plain, strict=True)]
        checks = [first, *check_pairs(judge, pairs, feed_all=low)]
        self.progress("judging distributions", 0.94)
        own = None if reference.loaded.dtype == self.dtype else self._reference()
        return checks + self._distributions(reference, own, sampled)

    def _reference(self, parameters: int | None = None) -> Reference:
        """Of a quantised model always in its own precision: in float32 the weights would be
        rounded from other numbers, so it would be another model."""
        return load_reference(
            self.model,
            self.dtype,
            str(self.device),
            None if self.quantization else parameters,
            self.options.get("quantization"),
        )

    def _distributions(
        self, reference: Reference, own: Reference | None, sampled: dict[str, list[RequestOutput]]
    ) -> list[Check]:
        """Against the model's own precision; where that is low, float32 shows what it costs."""
        first, other = (own, reference) if own else (reference, None)
        tree = Tree(first, self.sampled_prompt, other)
        laws, checks = self._laws(), []
        for name, results in sampled.items():
            outputs = [output for result in results for output in result.outputs]
            samples: list[Prefix] = [tuple(output.token_ids) for output in outputs]
            level = FALSE_ALARM / len(laws)
            check = judge_distribution(name, tree, laws[name][0], samples, level)
            flags = [flag for output in outputs for flag in output.from_draft[1:DEPTH]]
            spec = [result.speculation for result in results]
            check.figures |= {
                "judged_tokens": len(flags),
                "accepted": sum(flags),
                "drafted": sum(s.drafted for s in spec),
                "rejected": sum(s.drafted - s.accepted for s in spec),
            }
            check.detail += _exercised(check.figures)
            checks.append(check)
        if any(check.tested for check in checks):
            # The whole vocabulary may be too wide for the samples; the other test stands alone.
            for check in checks:
                check.passed |= not check.tested
        return checks


def _exercised(figures: dict[str, Any]) -> str:
    if not figures["drafted"]:
        return "; nothing was drafted here"
    return (
        f"; {figures['accepted']} of {figures['judged_tokens']} tokens were accepted drafts, "
        f"{figures['rejected']} drafted ones were not"
    )


def _generate(llm: LLM, asks: list[Ask]) -> list[RequestOutput]:
    prompts: list[Prompt] = [ask.prompt for ask in asks]
    return llm.generate(prompts, [ask.params for ask in asks], use_tqdm=False)


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
