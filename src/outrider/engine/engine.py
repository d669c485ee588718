"""The step: schedule, draft, forward, verify, commit, emit."""

import logging
import secrets
from array import array
from collections import defaultdict
from time import perf_counter
from typing import Any

import torch

from outrider.core.dictation import Dictation
from outrider.core.errors import InvalidRequest, OutriderError
from outrider.core.outputs import Delta
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.core.verdict import Span, Verdict
from outrider.drafters.base import Drafter
from outrider.drafters.registry import parse_config
from outrider.engine.ahead import RunAhead
from outrider.engine.byte_pieces import ByteDetokenizer, byte_pieces
from outrider.engine.commit import Commit
from outrider.engine.config import EngineConfig
from outrider.engine.detokenize import Detokenizer
from outrider.engine.drafting import Drafting
from outrider.engine.intake import Intake
from outrider.engine.launched import Launched, segment_of
from outrider.engine.memory import Wanted, plan_memory
from outrider.engine.phases import phase
from outrider.engine.policy.calibration import SLOTS, calibrate
from outrider.engine.policy.cost import Measured
from outrider.engine.policy.policy import Policy
from outrider.engine.rehearsal import rehearse
from outrider.engine.scheduler import Scheduler, Work
from outrider.engine.sequence import Job, Sequence
from outrider.engine.stopwatch import Stopwatch, plain_pass
from outrider.model.kv import KVCache
from outrider.model.loading import fix_rotary, load_model
from outrider.model.memory import MemoryUse
from outrider.model.runner import REPRODUCIBLE_ROWS, SCRAP, Runner
from outrider.sampling.counts import Counts
from outrider.sampling.rows import RowError
from outrider.verify import pass_can_choose, verify, verify_chosen

log = logging.getLogger(__name__)


class Engine:
    """Requests join and leave at any step; `step` does one pass and returns what it wrote."""

    def __init__(
        self, model: str, speculative_config: str | dict[str, Any] | None = "auto", **options: Any
    ) -> None:
        self.config = config = EngineConfig.from_options(options)
        self.draft_config = parse_config(speculative_config)
        self.loaded = load_model(
            model,
            revision=config.revision,
            dtype=config.dtype,
            device=config.device,
            tokenizer=config.tokenizer,
            trust_remote_code=config.trust_remote_code,
            quantization=config.quantization,
        )
        self.max_model_len = config.longest_text(self.loaded.name, self.loaded.context_length)
        fix_rotary(self.loaded.model, self.max_model_len)
        self._rows = config.pass_rows(self.loaded.device.type == "cuda")
        self.runner = Runner(self.loaded, reproducible=config.reproducible)
        self.policy = Policy(self._calibrate)
        self.drafting = Drafting(self.draft_config, self.runner, self.policy)
        self.memory = self._plan_memory()
        self.kv = KVCache(self.memory.slots, config.enable_prefix_caching)
        self.max_model_len = min(self.max_model_len, self.kv.total)
        self.runner.allocate(self.kv.total)
        self.runner.speed_up(config.max_num_seqs, self.max_model_len)
        self.policy.ahead = self.runner.runs_ahead
        if not self.runner.runs_ahead:
            self.policy.filled_up = self.runner.filled_up
        self.drafting.bind(self.kv)
        self.scheduler = Scheduler(
            self.kv,
            config.max_num_seqs,
            self._rows,
            self.drafting.most,
            self.runner.replayed_rows,
            self.runner.reproducible,
        )
        self.counts = Counts(self.runner.vocabulary, self.loaded.device)
        self.intake = Intake(
            self.loaded, self.runner.vocabulary, self.max_model_len, config.document_list
        )
        self._pieces = byte_pieces(self.loaded.tokenizer)
        self.run_ahead = RunAhead(
            self.scheduler, self.kv, self.drafting, self.runner, self.draft_config.verification
        )
        self.commit = Commit(self.kv, self.counts, self.loaded.tokenizer)
        self.jobs: dict[str, Job] = {}
        self.steps = 0
        self._ahead: Launched | None = None  # the next pass, where it has already started
        self._modelled = 0.0  # seconds that drafters with a model took for the pass to come
        self.stopwatch = Stopwatch(self.runner, self.drafting)
        self.seconds: defaultdict[str, float] = defaultdict(float)  # by phase, and "step" in all
        if self.drafting.adaptive or self.runner.runs_ahead:
            # Now: not while the first request waits, nor in the middle of passes that hand tokens
            # to each other, once a request leaves its length to the policy.
            _ = self.policy.cost
        if self.drafting.adaptive and self.loaded.device.type == "cpu":
            rehearse(self)

    @property
    def drafter(self) -> Drafter:
        """The one of `speculative_config`; single requests may have chosen others."""
        return self.drafting.root

    def _calibrate(self) -> Measured:
        """Measures with slots of its own, as if it were a request. While others are at work, the
        scrap slot stands in for those that are not free."""
        blank = Request("", [0], SamplingParams(), seed=0)
        self.kv.open(blank)
        wanted = min(SLOTS, self.kv.total)
        free = min(wanted, self.kv.available)
        self.kv.reserve(blank, free)
        try:
            slots = blank.reserved + array("q", [SCRAP]) * (wanted - free)
            return calibrate(self.runner, slots, self.config.max_num_seqs, self.idle)
        finally:
            self.kv.close(blank)

    def forget(self) -> None:
        """Drop cached prefixes and all that drafters and policy have learned from past requests;
        what was measured of the machine stays. Only while idle."""
        assert self.idle, "requests are under way"
        self.kv.forget()
        self.drafting.reset()

    def _plan_memory(self) -> MemoryUse:
        """Once all models are loaded."""
        config = self.config
        wanted = Wanted(
            rows=REPRODUCIBLE_ROWS if config.reproducible else self._rows,
            sequences=config.max_num_seqs,
            longest=self.max_model_len,
            utilization=config.memory_utilization,
            slots=config.kv_cache_tokens,
        )
        per_slot = self.runner.bytes_per_slot + self.drafting.bytes_per_slot
        beside = self.drafting.workspace_bytes
        return plan_memory(self.runner, self.drafting.runners, per_slot, wanted, beside)

    # ---- requests ----

    def add(
        self,
        prompt: str | list[int] | dict[str, Any],
        params: SamplingParams | None = None,
        request_id: str | None = None,
        streamed: bool = True,
        dictation: Dictation | None = None,
    ) -> str:
        """Queue a request; its id. Raises InvalidRequest at once when it could never be served.
        Where it is not `streamed`, steps tell of its end alone."""
        params = params or SamplingParams()
        if dictation is not None and not self.takes_dictation:
            raise InvalidRequest(
                "a text is dictated on a CPU only, under coupled verification, and not where a "
                "drafter reads the target's choices (lookahead)"
            )
        request_id = secrets.token_hex(8) if request_id is None else request_id
        if request_id in self.jobs:
            raise InvalidRequest(f"request id {request_id!r} is already in use")
        checked = self.intake.check(prompt, params)
        plan = self.drafting.crew.plan(params.speculation)
        seed = secrets.randbits(63) if params.seed is None else params.seed
        job = Job(request_id, checked.text, checked.ids, seed, plan.name, streamed)
        for sample in range(params.n):
            request = Request(
                request_id, checked.ids, params, seed, sample, checked.stop_ids, checked.bad_words,
                shared_documents=self.intake.documents, dictation=dictation,
            )  # fmt: skip
            job.sequences.append(Sequence(request, job, checked.limit, self._detokenizer(request)))
            self.drafting.add(request, plan)
            self.scheduler.add(job.sequences[-1])
        self.jobs[request_id] = job
        return request_id

    def _detokenizer(self, request: Request) -> Detokenizer | ByteDetokenizer:
        skip = request.params.skip_special_tokens
        if self._pieces is not None:
            return ByteDetokenizer(self._pieces, skip)
        return Detokenizer(self.loaded.tokenizer, skip, request.prompt_ids)

    def abort(self, request_id: str) -> list[Delta]:
        """End a request now; its last deltas. An id that is not running is no error: it may just
        have finished."""
        job = self.jobs.get(request_id)
        return self._end_job(job, "abort") if job else []

    @property
    def takes_dictation(self) -> bool:
        """Whether the host decides on every token, one after the other."""
        on_host = self.loaded.device.type == "cpu" and not self.drafting.crew.reads_choices
        return on_host and self.draft_config.verification == "coupled"

    @property
    def idle(self) -> bool:
        return not self.jobs

    # ---- the step ----

    @phase("step")
    @torch.inference_mode()
    def step(self) -> list[Delta]:
        """One pass for everybody whose turn it is."""
        if self.idle:
            return []
        launched = self._ahead and self._ahead.still_wanted(self.scheduler)
        self._ahead = None
        work = launched.work if launched else self.scheduler.schedule()
        assert work, "requests are waiting, but none can run"
        self.steps += 1
        try:
            # While a pass that ran ahead is under way, drafts come too late for it; but they tell
            # whether the next one should wait for drafts.
            if launched is not None and launched.drafted:
                trees = launched.trees
            else:
                trees = self._draft(work, launched is not None)
            launched = launched or self._launch(work, trees)
            # Too late for a pass that was not drafted for: it waits.
            found = any(tree.tokens for tree in trees)
            if launched.drafted if found else not self.drafting.wanted:
                self._ahead = self._start_next(launched)
            self._learn(work)
            verdicts = self._verify(launched)
            written = sum(1 + len(verdict.kept) for verdict in verdicts.values())
            self.stopwatch.landed(launched, written)
        except BaseException as error:
            # Nothing was committed: the slots go back, and everybody takes their turn again.
            self._ahead = None
            for item in work:
                self.kv.commit(item.sequence.request, [])
            if isinstance(error, RowError):
                return self._fail(error)
            if isinstance(error, torch.OutOfMemoryError):
                return self._make_room(error)
            raise
        self._review(launched, verdicts)
        spans = self.commit(launched, verdicts, self._ahead)
        self._observe(spans)
        for item in work:
            if item.sequence.finish_reason is not None:
                self._leave(item.sequence)
        if self._ahead is not None and self._ahead.leader is not None:
            self.drafting.followed(self._ahead.leader, spans, self._ahead.slots)
        self._ahead = self._ahead or self._begin_next()
        return self._emit(work)

    def _begin_next(self) -> Launched | None:
        """The pass that had to wait for the last one's tokens, where a GPU can be at it while the
        host tells what was written: only texts being written, nobody to be admitted."""
        if not self.runner.runs_ahead or self.scheduler.reads_next or not self.scheduler.writers:
            return None
        work = self.scheduler.schedule()
        try:
            return self._launch(work, self._draft(work))
        except BaseException as error:
            for item in work:
                self.kv.commit(item.sequence.request, [])
            if isinstance(error, Exception):
                return None  # the next step tries again, and says what is wrong
            raise

    @phase("draft")
    def _draft(self, work: list[Work], late: bool = False) -> list[TokenTree]:
        """One tree per item; empty where nothing was granted."""
        drafting = [item for item in work if item.budget]
        before = self.drafting.calls.model_seconds
        nothing = TokenTree.empty()
        trees: dict[int, TokenTree] = {}
        if drafting:
            proposed = self.drafting.propose(
                [item.sequence.request for item in drafting],
                [item.budget for item in drafting],
                plain_pass(work),
                self.scheduler.room(work),
                late,
            )
            trees = {id(item): tree for item, tree in zip(drafting, proposed, strict=True)}
            self.seconds["draft_model"] = self.drafting.calls.model_seconds
        self._modelled = self.drafting.calls.model_seconds - before
        return [trees.get(id(item), nothing) for item in work]

    @phase("forward")
    def _launch(self, work: list[Work], trees: list[TokenTree]) -> Launched:
        segments = [segment_of(item, tree) for item, tree in zip(work, trees, strict=True)]
        start = perf_counter()
        flight = self.runner.launch(segments)
        if flight.landed is not None:  # a device waits until the launch is made, and begins then
            start = perf_counter()
        return Launched(work, trees, flight, start, drafted=True, modelled=self._modelled)

    @phase("forward")
    def _start_next(self, launched: Launched) -> Launched | None:
        return self.run_ahead(launched)

    @phase("verify")
    def _verify(self, launched: Launched) -> dict[int, Verdict]:
        """Verdicts by index of work; none for prompts that go on in the next pass."""
        work, method = launched.work, self.draft_config.verification
        complete = [i for i, item in enumerate(work) if item.completes]
        requests = [work[i].sequence.request for i in complete]
        asked = any(pass_can_choose(request, method) for request in requests)
        chosen = self.stopwatch.wait(launched) if asked else None
        trees = [launched.trees[i] for i in complete]  # which some passes tell only now
        if chosen is not None:
            verdicts = verify_chosen(trees, requests, chosen, lambda: launched.logits, self.counts)
        else:
            everywhere = self.drafting.crew.reads_choices
            verdicts = verify(trees, requests, launched.logits, self.counts, method, everywhere)
        return dict(zip(complete, verdicts, strict=True))

    @phase("policy")
    def _learn(self, work: list[Work]) -> None:
        """Of the last step, and of the prompts of this one, while the device is at it."""
        self.drafting.learn()
        self.stopwatch.teach()
        self.drafting.meanwhile([item.sequence.request for item in work if item.rows > 1])

    @phase("policy")
    def _review(self, launched: Launched, verdicts: dict[int, Verdict]) -> None:
        """Tell the drafters what became of their proposals."""
        work, trees = launched.work, launched.trees
        drafted = [i for i in verdicts if work[i].budget]
        if drafted:
            requests = [work[i].sequence.request for i in drafted]
            checked = [trees[i] for i in drafted]
            if launched.leader is not None:
                self.drafting.proposed(launched.leader, requests, checked)
            self.drafting.review(requests, checked, [verdicts[i] for i in drafted])

    @phase("policy")
    def _observe(self, spans: list[Span]) -> None:
        self.drafting.observe(spans)

    def _emit(self, work: list[Work]) -> list[Delta]:
        """What each sequence gained."""
        deltas = []
        for item in work:
            sequence = item.sequence
            if sequence.job.streamed or sequence.finish_reason is not None:
                delta = sequence.delta()
                if delta.token_ids or delta.finish_reason:
                    deltas.append(delta)
        self._check_when_idle()
        return deltas

    # ---- leaving ----

    def _leave(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self.drafting.release(sequence.request)
        self.counts.release(sequence.request)
        if sequence.job.finished:
            self.jobs.pop(sequence.job.id, None)

    def _end_job(self, job: Job, reason: Any) -> list[Delta]:
        # Also those that ended in a step which then broke off: they still hold their slots.
        ending = [sequence for sequence in job.sequences if sequence in self.scheduler]
        for sequence in ending:
            sequence.fail(reason)
            self._leave(sequence)
        self._check_when_idle()
        return [sequence.delta() for sequence in ending]

    def _fail(self, error: RowError) -> list[Delta]:
        """No token can be chosen for one request (a user's processor broke, say), so it ends."""
        job = self.jobs[error.request.id]
        job.error = str(error)
        return self._end_job(job, "error")

    def _make_room(self, error: torch.OutOfMemoryError) -> list[Delta]:
        """A pass did not fit into the device's memory: go on with smaller ones. Nobody is lost."""
        done = self.scheduler.shrink()
        remedy = (
            f"memory_utilization={self.config.memory_utilization} leaves too little beside "
            f"{self.kv.total} KV slots; lower it, or max_num_seqs={self.config.max_num_seqs}"
        )
        if done is None:
            raise OutriderError(f"out of GPU memory in the smallest pass: {remedy}") from error
        if self.loaded.device.type == "cuda":
            torch.cuda.empty_cache()
        log.warning("out of GPU memory in a pass: %s (%s)", done, remedy)
        return []

    def _check_when_idle(self) -> None:
        if self.idle:
            self.kv.check()
