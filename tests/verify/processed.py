"""The joint error of one step with sampling options, against the reference of tests/sampling."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import ROOT, TokenTree
from tests.sampling.reference import reference_p
from tests.verify.enumeration import (
    Branches,
    Outcome,
    Prefix,
    Toy,
    all_runs,
    drawn_tree,
    joint_error,
    verified,
)

VOCABULARY = 6


def user_processor(tokens: list[int], logits: Tensor) -> Tensor:
    """Depends on the whole path, changes what it is given, as users' functions do."""
    logits[(3 * sum(tokens) + len(tokens)) % len(logits)] += 1.5
    if tokens:
        logits[tokens[-1]] = -torch.inf
    return logits


# Alone, each changes p somewhere in the tree below.
OPTIONS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "greedy": {"temperature": 0.0},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.75},
    "min_p": {"min_p": 0.15},
    "repetition": {"repetition_penalty": 1.4},
    "presence": {"presence_penalty": 0.8},
    "frequency": {"frequency_penalty": 0.6},
    "bias": {"logit_bias": {0: 1.2, 4: -0.9}},
    "bad_words": {"bad_word_ids": [[1], [3, 2], [2, 3, 5], [5, 5, 0]]},
    "min_tokens": {"min_tokens": 4},  # the output has 2 tokens: the ban ends inside the tree
    "processor": {"logits_processors": [user_processor]},
}
SHAPE = [-1, -1, 0, 0, 1]
PATHS = ("coupled tree", "traversal tree", "traversal drawn")


def make_request(names: Iterable[str]) -> Request:
    options = {key: value for name in names for key, value in OPTIONS[name].items()}
    bad_words = options.pop("bad_word_ids", [])
    return Request(
        "toy",
        [0, 3, 3],
        SamplingParams(**options),
        seed=0,
        stop_ids=frozenset([4]),
        bad_word_ids=bad_words,
        output_ids=[2, 3],
    )


def raw_logits(seed: int, prefix: Prefix) -> np.ndarray:
    return np.random.default_rng([seed, 5, *prefix]).normal(scale=1.5, size=VOCABULARY)


def tree_logits(seed: int, tree: TokenTree) -> Tensor:
    prefixes = [tuple(tree.path_tokens(node)) for node in range(ROOT, len(tree))]
    return torch.from_numpy(np.stack([raw_logits(seed, prefix) for prefix in prefixes]))


def processed_error(names: Iterable[str], path: str, seed: int) -> float:
    request = make_request(names)
    random = np.random.default_rng([seed, 6])
    siblings = random.permutation(VOCABULARY)[:4].tolist()
    fixed = TokenTree([*siblings, int(random.integers(VOCABULARY))], SHAPE, "toy")

    def run(branches: Branches) -> Outcome:
        tree = fixed
        if path == "traversal drawn":
            tree = drawn_tree(Toy(seed, VOCABULARY), [-1, 0], True, branches)
        method = path.split()[0]
        return verified(tree, request, tree_logits(seed, tree), branches, method)

    @cache
    def p(prefix: Prefix) -> np.ndarray:
        return reference_p(raw_logits(seed, prefix), request, list(prefix))

    return joint_error(p, 3, all_runs(run))
