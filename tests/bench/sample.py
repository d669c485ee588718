"""Results as `outrider bench` would write them, made up: two drafters, two temperatures, peers."""

import random
from typing import Any

CATEGORIES = ["chat", "code", "code editing", "extraction to JSON", "summarising"]
ACCEPTANCE = {"ngram": 0.45, "draft_model": 0.7}


def sample_results(*, peers: bool = True, batch_sizes: tuple[int, ...] = (1, 8, 32)) -> dict:
    dice = random.Random(0)
    cells = [
        _cell(dice, category, drafter, batch_size, temperature)
        for temperature in (0.0, 1.0)
        for batch_size in batch_sizes
        for category in [*CATEGORIES, "overall"]
        for drafter in ("none", *ACCEPTANCE)
    ]
    if peers:
        cells += [
            _peer_cell(dice, system, drafter, speed, category)
            for system, drafter, speed in (
                ("transformers", "none", 14.5),
                ("transformers", "prompt_lookup", 16.6),
                ("llama.cpp", "none", 58.0),
                ("llama.cpp", "prompt_lookup", 40.7),
            )
            for category in [*CATEGORIES, "overall"]
        ]
    return {
        "schema": 1,
        "created": "2026-11-15T12:00:00+00:00",
        "outrider": "0.1.0",
        "versions": {"python": "3.11.7", "torch": "2.13.0", "transformers": "5.22.2"},
        "hardware": {
            "cpu": "A processor <with> brackets & more",
            "cores": 2,
            "gpu": None,
            "memory_bytes": 16 << 30,
        },
        "arguments": {"model": "smollm2-135m", "max_tokens": 128, "drafters": ["none", "ngram"]},
        "seed": 0,
        "pass_cost": [
            {"rows": rows, "milliseconds": 28 + 1.1 * rows} for rows in (1, 2, 4, 8, 16, 32)
        ],
        "cells": cells,
        "best_fixed": [
            {
                "category": category,
                "batch_size": batch_size,
                "temperature": temperature,
                "drafter": "auto",
                "best": "ngram:k=4",
                "drafter_ratio": 1.5,
                "best_ratio": 1.6,
                "ratio": 0.94,
                "ratio_low": 0.9,
                "ratio_high": 0.98,
            }
            for temperature in (0.0, 1.0)
            for batch_size in batch_sizes
            for category in [*CATEGORIES, "overall"]
        ],
        "skipped": [{"system": "vllm", "reason": "needs an NVIDIA GPU; none was found here"}]
        if peers
        else [],
    }


def _interval(centre: float, share: float) -> tuple[float, float, float]:
    return centre, centre * (1 - share), centre * (1 + share)


def _cell(
    dice: random.Random, category: str, drafter: str, batch_size: int, temperature: float
) -> dict[str, Any]:
    keep = ACCEPTANCE.get(drafter, 0.0) * dice.uniform(0.6, 1.2) * (1 - 0.3 * temperature)
    drafts = 0 if drafter == "none" else 400
    kept = [round(drafts * keep ** (place + 1)) for place in range(8)] if drafts else []
    accepted = sum(kept)
    steps = 600
    ratio = (1 + accepted / drafts) / 1.25 if drafts else 1.0
    ratio /= 1 + 0.02 * batch_size if drafts else 1.0
    speed = 24.0 * ratio * batch_size**0.8
    middle, low, high = _interval(speed, 0.04)
    _, ratio_low, ratio_high = _interval(ratio, dice.uniform(0.02, 0.08) if drafts else 0.0)
    forward = steps * (0.04 if drafts else 0.03)
    return {
        "system": "outrider",
        "category": category,
        "drafter": drafter,
        "batch_size": batch_size,
        "temperature": temperature,
        "max_tokens": 128,
        "requests": 6,
        "tokens": 768,
        "samples": [low, middle, high],
        "tokens_per_second": middle,
        "tokens_per_second_low": low,
        "tokens_per_second_high": high,
        "ratio": ratio,
        "ratio_low": ratio_low,
        "ratio_high": ratio_high,
        "mean_acceptance_length": 1 + accepted / drafts if drafts else 1.0,
        "accepted_per_position": kept,
        "drafts": drafts,
        "drafted": drafts * 8,
        "accepted": accepted,
        "steps": steps,
        "time_to_first_token": 0.11,
        "inter_token_latency": 1 / speed,
        "phases": {
            "draft": steps * 0.002 if drafts else 0.0,
            "forward": forward,
            "verify": steps * 0.003,
            "rest": steps * 0.001,
        },
        "drafting_share": 0.05 if drafts else 0.0,
        "peak_memory_bytes": 900_000_000,
    }


def _peer_cell(
    dice: random.Random, system: str, drafter: str, speed: float, category: str
) -> dict[str, Any]:
    middle, low, high = _interval(speed * dice.uniform(0.9, 1.1), 0.05)
    unknown = (
        "ratio_low ratio_high mean_acceptance_length accepted_per_position drafts drafted accepted"
        " steps inter_token_latency phases peak_memory_bytes"
    )
    return {
        "system": system,
        "category": category,
        "drafter": drafter,
        "batch_size": 1,
        "temperature": 0.0,
        "max_tokens": 128,
        "requests": 6,
        "tokens": 768,
        "samples": [low, middle, high],
        "tokens_per_second": middle,
        "tokens_per_second_low": low,
        "tokens_per_second_high": high,
        "ratio": 1.0,
        "time_to_first_token": 0.1,
        **dict.fromkeys(unknown.split()),
    }
