"""What the options mean, written a second time: plain Python, one prefix at a time."""

from math import exp, inf, log

import numpy as np
import torch

from outrider.core.request import Request


def reference_scores(logits: np.ndarray, request: Request, path: list[int]) -> list[float]:
    params = request.params
    output = [*request.output_ids, *path]
    z = [float(x) for x in logits]
    for token in range(len(z)):
        count = output.count(token)
        if token in request.prompt_ids or count:
            r = params.repetition_penalty
            z[token] = z[token] / r if z[token] > 0 else z[token] * r
        z[token] -= params.frequency_penalty * count
        z[token] -= params.presence_penalty if count else 0
        z[token] += (params.logit_bias or {}).get(token, 0.0)
    for word in request.bad_word_ids:
        start = word[:-1]
        if output[len(output) - len(start) :] == start and len(output) >= len(start):
            z[word[-1]] = -inf
    if len(output) < params.min_tokens:
        for token in request.stop_ids:
            z[token] = -inf
    for processor in params.logits_processors or []:
        z = processor(output, torch.tensor(z, dtype=torch.float64)).tolist()
    if params.temperature > 0:
        z = truncated([x / params.temperature for x in z], params.top_k, params.top_p, params.min_p)
    return z


def truncated(z: list[float], top_k: int, top_p: float, min_p: float) -> list[float]:
    if 0 < top_k < len(z):
        kth = sorted(z, reverse=True)[top_k - 1]
        z = [x if x >= kth else -inf for x in z]
    if top_p < 1:
        p = softmax(z)
        kept, mass = -inf, 0.0
        for token in sorted(range(len(z)), key=lambda t: -z[t]):
            kept, mass = z[token], mass + p[token]
            if mass >= top_p:
                break
        z = [x if x >= kept else -inf for x in z]
    if min_p > 0:
        z = [x if x >= max(z) + log(min_p) else -inf for x in z]
    return z


def softmax(z: list[float]) -> list[float]:
    weights = [exp(x - max(z)) for x in z]
    return [w / sum(weights) for w in weights]


def reference_p(logits: np.ndarray, request: Request, path: list[int]) -> np.ndarray:
    z = reference_scores(logits, request, path)
    if request.params.temperature == 0:
        return np.eye(len(z))[int(np.argmax(z))]
    return np.array(softmax(z))
