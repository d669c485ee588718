"""Faults to plant, and for each the check that has to notice it."""

from collections.abc import Callable
from typing import NamedTuple

from tests.sampling.frequencies import choice_alarm
from tests.sampling.statistics import ALPHA
from tests.verify.enumeration import worst_step_error
from tests.verify.loops import LONG, SINGLE, WIDE, Loop, loop_p_value
from tests.verify.processed import processed_error

Check = Callable[[], bool]  # True: something is wrong
LIMIT = 1e-12


class Fault(NamedTuple):
    name: str
    module: str
    notices: Check
    pieces: list[tuple[str, str]]  # (clean, faulty)


def enumerated(kind: str, method: str, seeds: range) -> Check:
    return lambda: worst_step_error(kind, method, seeds) > LIMIT


def processed(*names: str) -> Check:
    cases = [(path, seed) for path in ("coupled tree", "traversal tree") for seed in range(3)]
    return lambda: any(processed_error(names, path, seed) > LIMIT for path, seed in cases)


def looped(loop: Loop, method: str, samples: int) -> Check:
    return lambda: loop_p_value(loop, method, samples) < ALPHA


chain = enumerated("chain", "traversal", range(6, 18))
iid = enumerated("iid", "traversal", range(12))
without_replacement = enumerated("without replacement", "traversal", range(12))
point = enumerated("point", "traversal", range(24))
coupled = enumerated("point", "coupled", range(24))
frequency = processed("frequency")
presence = processed("presence")
repetition = processed("repetition")
bad_words = processed("bad_words")
min_tokens = processed("min_tokens")
user_processor = processed("processor")
temperature_top_p = processed("temperature", "top_p")
coupled_loop = looped(WIDE, "coupled", 3000)
wide_loop = looped(WIDE, "traversal", 1000)
short_loop = looped(LONG, "traversal", 700)
long_loop = looped(LONG, "traversal", 3000)
single_loop = looped(SINGLE, "traversal", 2500)

TRAVERSAL = "outrider.verify.traversal"
COUPLED = "outrider.verify.coupled"
VERIFY = "outrider.verify"
ROWS = "outrider.sampling.rows"
COUNTS = "outrider.sampling.counts"
PROCESS = "outrider.sampling.process"
TRUNCATE = "outrider.sampling.truncate"
CHOOSE = "outrider.sampling.choose"
NOISE = "outrider.sampling.noise"

RULE = [
    Fault(
        "the residual is dropped",
        TRAVERSAL,
        chain,
        [("W = (self.a * self.P - self.Q).clamp_(min=0)", "W = self.P.clone()")],
    ),
    Fault(
        "the residual is not scaled by a",
        TRAVERSAL,
        chain,
        [("self.a * self.P - self.Q", "self.P - self.Q")],
    ),
    Fault("a is not clamped", TRAVERSAL, chain, [("min(1.0, visit.a", "max(0.0, visit.a")]),
    Fault("a stays after a miss", TRAVERSAL, chain, [("s / (s + (1 - self.a))", "self.a")]),
    Fault(
        "accepts what it should reject",
        TRAVERSAL,
        chain,
        [("draws.accept(visit.node, visit.a)", "draws.accept(visit.node, 1 - visit.a)")],
    ),
    Fault("q of another node", TRAVERSAL, chain, [("tree.q[child]", "tree.q[child - 1]")]),
    Fault(
        "the last token comes from p, not from what is left of it",
        TRAVERSAL,
        chain,
        [("draws.pick(visit.node, visit.P)", "draws.pick(visit.node, p(visit.node))")],
    ),
    Fault(
        "siblings are sorted by q",
        TRAVERSAL,
        iid,
        [
            (
                "tree.children.get(node, [])[::-1]",
                "sorted(tree.children.get(node, []), key=lambda c: tree.q[c, tree.tokens[c]])",
            )
        ],
    ),
    Fault(
        "drawn without replacement, tested as independent",
        TRAVERSAL,
        without_replacement,
        [("if not tree.with_replacement", "if False")],
    ),
    Fault(
        "drawn independently, tested as without replacement",
        TRAVERSAL,
        iid,
        [("if not tree.with_replacement", "if True")],
    ),
    Fault(
        "a point mass of a half",
        TRAVERSAL,
        point,
        [("Q[tree.tokens[child]] = 1", "Q[tree.tokens[child]] = 0.5")],
    ),
    Fault(
        "traversal: the bonus token comes from the row before",
        VERIFY,
        chain,
        [("slice(node + 1, node + 2)", "slice(max(node, 0), max(node, 0) + 1)")],
    ),
    Fault(
        "coupled: the bonus token comes from the row before",
        COUPLED,
        coupled,
        [("roots[i] + 1 + kept", "roots[i] + kept")],
    ),
    Fault(
        "draws again after a miss",
        COUPLED,
        coupled,
        [
            (
                "Verdict(path, token) for path, token in",
                "Verdict(path, choices([0 if not path else path[-1] + 1])[0]) for path, _ in",
            )
        ],
    ),
]
PROCESSING = [
    Fault("penalties forget the path", COUNTS, frequency, [("Counter(row.path)", "Counter()")]),
    Fault(
        "penalties count every drafted token",
        ROWS,
        presence,
        [("tree.path_tokens(node))", "tree.tokens)")],
    ),
    Fault(
        "penalties count a neighbour's path",
        ROWS,
        repetition,
        [("tree.path_tokens(node))", "tree.path_tokens(max(0, node - 1)))")],
    ),
    Fault(
        "repetition forgets the prompt",
        COUNTS,
        repetition,
        [("dict.fromkeys(request.prompt_ids)", "dict.fromkeys(request.prompt_ids[:0])")],
    ),
    Fault(
        "bad words forget the path",
        PROCESS,
        bad_words,
        [("(row.request.output_ids[-n:] + row.path)[-n:]", "row.request.output_ids[-n:]")],
    ),
    Fault(
        "min_tokens forgets the path",
        PROCESS,
        min_tokens,
        [("if row.position <", "if request.position <")],
    ),
    Fault(
        "the user's processors do not see the path",
        PROCESS,
        user_processor,
        [("row.request.output_ids + row.path, logits", "row.request.output_ids, logits")],
    ),
    Fault(
        "truncation before temperature",
        PROCESS,
        temperature_top_p,
        [
            ("    _divide(scores, rows)\n", ""),
            (
                "    truncate(scores, [row.request.params for row in rows])\n",
                "    truncate(scores, [row.request.params for row in rows])\n"
                "    _divide(scores, rows)\n",
            ),
        ],
    ),
    Fault(
        "top-p stops one token short",
        TRUNCATE,
        temperature_top_p,
        [("last.clamp(max=window - 1)", "(last - 1).clamp(0, window - 1)")],
    ),
]
RANDOMNESS = [
    Fault(
        "one noise for all positions",
        CHOOSE,
        coupled_loop,
        [("row.position, purpose)", "0, purpose)")],
    ),
    Fault(
        "accepts above u",
        TRAVERSAL,
        wide_loop,
        [("self._accept[node + 1] < probability", "self._accept[node + 1] > probability")],
    ),
    Fault(
        "one u for all nodes",
        TRAVERSAL,
        short_loop,
        [("self._accept[node + 1] <", "self._accept[0] <")],
    ),
    Fault(
        "accept and residual share u",
        TRAVERSAL,
        wide_loop,
        [("self._residual[node + 1] *", "self._accept[node + 1] *")],
    ),
    Fault(
        "draft and residual share noise",
        TRAVERSAL,
        single_loop,
        [
            # each request of a step picks once, in order
            (
                "    return [KeyedDraws(",
                "    KeyedDraws.who = iter(requests)\n    return [KeyedDraws(",
            ),
            (
                "        index = int(",
                "        from outrider.sampling.choose import perturbed_max\n"
                "        r = next(self.who)\n"
                "        key = Key(r.seed, r.sample, r.position, Purpose.DRAFT, lane=node + 1)\n"
                "        return int(perturbed_max(weights.log()[None], streams([key]))[1])\n"
                "        index = int(",
            ),
        ],
    ),
    Fault(
        "accept and residual noise recur with the position",
        TRAVERSAL,
        long_loop,
        [("position, purpose, lane=node + 1)", "position + node + 1, purpose)")],
    ),
    Fault(
        "draft noise recurs with the position",
        CHOOSE,
        long_loop,
        [
            (
                "row.request.position, Purpose.DRAFT, lane)",
                "row.request.position + lane, Purpose.DRAFT)",
            )
        ],
    ),
    Fault(
        "the least noise of a group is always its first token's",
        NOISE,
        choice_alarm,
        [("words[..., 1] & (GROUP - 1)", "words[..., 1] & 0")],
    ),
    Fault(
        "the least noise of a group is like any token's",
        NOISE,
        choice_alarm,
        [("_exponential(words[..., 0]) / GROUP", "_exponential(words[..., 0])")],
    ),
    Fault(
        "samples share noise", NOISE, choice_alarm, [("k.position, k.sample,", "k.position, 0,")]
    ),
    Fault("seeds are cut to 32 bits", NOISE, choice_alarm, [("k.seed >> 32", "0")]),
]
FAULTS = [*RULE, *PROCESSING, *RANDOMNESS]
