"""The whole examination, as one object."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from outrider.audit.doctor.machine import FastPath, cache_state, fast_paths, machine
from outrider.audit.doctor.measure import SLOTS, Measurement, measure
from outrider.audit.doctor.pair import Finding, chat_template, compare, inspect, inspect_heads
from outrider.audit.doctor.paths import model_paths
from outrider.core.errors import OutriderError
from outrider.drafters.registry import drafter_names
from outrider.engine.llm import LLM
from outrider.model.loading import choose_device, choose_dtype
from outrider.model.memory import MemoryUse
from outrider.model.quantized import check_quantization


@dataclass
class Examination:
    machine: dict[str, Any]
    fast_paths: list[FastPath]
    cache: dict[str, Any]
    findings: list[Finding] = field(default_factory=list)
    model_paths: list[FastPath] = field(default_factory=list)  # of the model, as it was loaded
    memory: MemoryUse | None = None
    measurement: Measurement | None = None

    @property
    def healthy(self) -> bool:
        return all(finding.ok for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.healthy,
            "machine": self.machine,
            "fast_paths": [path.to_dict() for path in self.fast_paths],
            "cache": self.cache,
            "findings": [finding.to_dict() for finding in self.findings],
            "model_fast_paths": [path.to_dict() for path in self.model_paths],
            "memory": self.memory and self.memory.to_dict(),
            "measurement": self.measurement and self.measurement.to_dict(),
        }


def examine(
    model: str | None = None,
    drafter: str | None = None,
    progress: Callable[[str, float], None] = lambda stage, done: None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    quantization: str | None = None,
) -> Examination:
    """Without `model`, only the machine; `drafter` is a drafter's name, a draft model or heads
    that were trained for the model."""
    choose_dtype(dtype, choose_device(device))  # a wrong option is no finding about the pair
    check_quantization(quantization)
    progress("looking at the machine", 0.0)
    found = Examination(machine(), fast_paths(), cache_state())
    if model is None:
        return found
    progress(f"looking at {model}", 0.0)
    target, findings = inspect("model", model)
    found.findings += findings
    if target is not None:
        found.findings.append(chat_template(target))
    config: str | dict[str, Any] = drafter or "ngram"
    if drafter is not None and drafter not in drafter_names():
        config = {"method": "draft_model", "model": drafter}  # or whatever its files hold
        trained = inspect_heads(drafter)
        if trained is not None:
            found.findings.append(trained)
        else:
            draft, findings = inspect("drafter", drafter)
            found.findings += findings
            if target is not None and draft is not None:
                found.findings += compare(target, draft)
    if found.healthy:
        try:
            llm = LLM(
                model, config, device=device, dtype=dtype, quantization=quantization,
                kv_cache_tokens=SLOTS,
            )  # fmt: skip
            found.model_paths, found.memory = model_paths(llm), llm.memory
            found.measurement = measure(llm, progress=progress)
        except OutriderError as error:
            found.findings.append(Finding("running the pair", False, str(error)))
    return found
