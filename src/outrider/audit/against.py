"""`outrider audit --against`: another engine's texts, judged by the model run here."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from outrider.audit.cases import BIAS, PROMPTS, sampled_prompt, symbols
from outrider.audit.client import Choice, Client
from outrider.audit.distribution import DEPTH, Law, Prefix, Tree, judge_distribution
from outrider.audit.judge import Ask, Judge
from outrider.audit.reference import Reference
from outrider.audit.report import AuditReport, Check, Difference
from outrider.audit.run import FALSE_ALARM, PER_REQUEST, Progress
from outrider.core.errors import ConfigError
from outrider.core.outputs import CompletionOutput
from outrider.core.params import SamplingParams
from outrider.engine.intake import Intake
from outrider.model.loading import choose_dtype, load_model

AT_ONCE = 8  # requests in flight while sampling
GREEDY = SamplingParams(temperature=0.0)


def audit_server(
    url: str,
    model: str,
    *,
    key: str | None = None,
    served_model: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    seed: int = 0,
    tokens: int = 24,
    samples: int = 1024,
    progress: Progress = lambda stage, done: None,
) -> AuditReport:
    """`dtype` is the precision that the server runs in; "auto" allows for 16 bits.

    Here the model runs in float32, apart from the server's code in every way.
    """
    start = time.perf_counter()
    theirs = choose_dtype("bfloat16" if dtype == "auto" else dtype, torch.device("cpu"))
    client = Client(url, key, served_model)  # before any model is loaded: it may not be there
    progress("loading the model", 0.05)
    reference = Reference(load_model(model, dtype="float32", device=device))
    if reference.loaded.tokenizer is None:
        raise ConfigError(f"{model} has no tokenizer here, so a server's text cannot be judged")
    audit = _ServerAudit(client, reference, theirs, seed)
    progress("greedy texts", 0.2)
    checks = audit.greedy(tokens)
    progress("sampling", 0.4)
    check = audit.sampling(samples, progress)
    subject = {
        "model": model, "server": client.url, "served_model": client.model,
        "dtype": str(theirs).removeprefix("torch."), "seed": seed,
    }  # fmt: skip
    return AuditReport(
        subject=subject,
        checks=[*checks, check],
        seconds=time.perf_counter() - start,
        false_alarm_probability=FALSE_ALARM if check.tested else 0.0,
        detectable_total_variation=check.figures.get("detectable_total_variation"),
    )


class _ServerAudit:
    def __init__(self, client: Client, reference: Reference, dtype: torch.dtype, seed: int) -> None:
        self.client, self.reference, self.dtype, self.seed = client, reference, dtype, seed
        self.tokenizer: Any = reference.loaded.tokenizer
        loaded = reference.loaded
        self.intake = Intake(loaded, reference.vocabulary, loaded.context_length)
        self.judge = Judge(reference, self.tokenizer)
        self.reencoded = 0

    def greedy(self, tokens: int) -> list[Check]:
        texts = []
        for i, prompt in enumerate(PROMPTS):
            ids = self.tokenizer(prompt)["input_ids"]
            choices = self.client.complete(ids, prompt, max_tokens=tokens, temperature=0)
            if not choices:
                raise ConfigError(f"{self.client.url}/completions sent no choices")
            ask = Ask("greedy", f"prompt {i}", GREEDY, self.intake.check(ids, GREEDY))
            texts.append((ask, choices[0], self._ids(ids, prompt, choices[0])))
        reference = self._calibrate(texts)
        differences: list[Difference] = []
        worst, count = 0.0, 0
        for ask, choice, found in texts:
            output = CompletionOutput(0, choice.text, found)
            distance, faults = self.judge.feed_back(ask, output)
            worst, count = max(worst, distance), count + len(found)
            differences += faults
        if differences:
            detail = str(differences[0])
        elif count:
            detail = f"{count} tokens fed back, none further than {worst:.2g} from the best score"
        else:
            detail = "nothing was judged: all texts that the server sent are empty"
        figures = {"tokens": count, "worst_margin": worst}
        note = self._note()
        passed = bool(count) and not differences
        greedy = Check("greedy", passed, detail + note, differences, figures, tested=bool(count))
        return [reference, greedy]

    def _calibrate(self, texts: list[tuple[Ask, Choice, list[int]]]) -> Check:
        """The server's own log-probabilities, where it sends them, against the reference."""
        worst, largest, compared = 0.0, 1.0, 0
        for ask, choice, found in texts:
            if not found:
                continue
            logits = self.reference.after(ask.prompt, found)  # [tokens, vocabulary]
            largest = max(largest, float(logits.abs().max()))
            if len(choice.logprobs) != len(found):
                continue
            exact = logits.log_softmax(-1)
            for row, token, said in zip(exact, found, choice.logprobs, strict=True):
                if said is not None:
                    worst = max(worst, abs(float(row[token]) - said))
                    compared += 1
        check = self.judge.settle(worst, largest, self.dtype, "the server")
        if not compared:
            # Nothing to measure rounding by: allow what the precision may cost at most.
            self.judge.settle(check.figures["limit"], largest, self.dtype, "the server")
            check.detail = (
                "the server sends no log-probabilities for its token ids; scores closer than "
                f"{self.judge.tolerance:.2g} are taken for ties"
            )
            check.figures["tolerance"] = self.judge.tolerance
        return check

    def sampling(self, samples: int, progress: Progress) -> Check:
        only = symbols(self.tokenizer, self.reference.vocabulary, self.reference.loaded.eos_ids)
        drawn = sampled_prompt(self.tokenizer, only, self.seed)
        # Text first, then its ids: the server may take either, and they must mean the same.
        text = self.tokenizer.decode(drawn, skip_special_tokens=True)
        ids = self.tokenizer(text)["input_ids"]
        law = Law(bias=dict.fromkeys(only, BIAS))
        bias = {str(token): BIAS for token in only}

        def draw(number: int) -> list[Choice]:
            return self.client.complete(
                ids, text, max_tokens=DEPTH + 1, temperature=1.0, n=PER_REQUEST,
                seed=self.seed + 1000 + number, logit_bias=bias,
            )  # fmt: skip

        choices: list[Choice] = draw(0)  # alone: it settles which fields the server takes
        found = max(1, len(choices))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for batch in pool.map(draw, range(1, -(-samples // found))):
                choices += batch
                progress("sampling", 0.4 + 0.5 * min(1.0, len(choices) / samples))
        outcomes: list[Prefix] = [tuple(self._ids(ids, text, choice)) for choice in choices]
        short = sum(len(outcome) < DEPTH for outcome in outcomes)
        tree = Tree(self.reference, ids)
        check = judge_distribution("distribution", tree, law, outcomes, FALSE_ALARM)
        check.detail += (f"; {short} samples were too short" if short else "") + self._note()
        return check

    def _ids(self, prompt: list[int], prompt_text: str, choice: Choice) -> list[int]:
        """The server's token ids, or those of its text, encoded again here."""
        if choice.token_ids is not None:
            for token in choice.token_ids:
                if not 0 <= token < self.reference.vocabulary:
                    raise ConfigError(
                        f"{self.client.url} sent token id {token}, and the model here has"
                        f" {self.reference.vocabulary} tokens; --model must be what it serves"
                    )
            return choice.token_ids
        self.reencoded += 1
        text = choice.text.split("\ufffd")[0]  # half a character cannot be encoded again
        whole: list[int] = self.tokenizer(prompt_text + text)["input_ids"]
        if whole[: len(prompt)] == prompt:
            return whole[len(prompt) :]
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _note(self) -> str:
        if not self.reencoded:
            return ""
        return "; the server sends no token ids, so its text was encoded again and that was judged"
