"""One sequence on its way through the engine, and the user's request it belongs to."""

from dataclasses import dataclass, field

from outrider.core.grounding import ground
from outrider.core.outputs import (
    CompletionOutput,
    Delta,
    FinishReason,
    Grounding,
    Logprob,
    RequestOutput,
    Speculation,
)
from outrider.core.request import Request
from outrider.engine.byte_pieces import ByteDetokenizer
from outrider.engine.detokenize import Detokenizer, StopChecker


class Sequence:
    """Tokens in, text and an end out. Knows nothing of slots or passes."""

    def __init__(
        self,
        request: Request,
        job: "Job",
        limit: int,
        detokenizer: Detokenizer | ByteDetokenizer,
    ) -> None:
        self.request = request
        self.job = job
        self.limit = limit  # output tokens at most
        self._text = ""
        self._unread: list[int] = []  # tokens whose text is not in it yet
        self.from_draft: list[bool] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.logprobs: list[dict[int, Logprob]] = []
        self.cumulative_logprob = 0.0
        self.speculation = Speculation(drafter=job.drafter)
        self.cached_tokens: int | None = None  # of the prompt, when first admitted
        self.observed = 0  # tokens whose rows the drafter has been told of
        self._detokenizer = detokenizer
        params = request.params
        self._stops = StopChecker(params.stop_strings, params.include_stop_str_in_output)
        self.told_end = False
        self._told_tokens = 0
        self._told_text = 0

    @property
    def remaining(self) -> int:
        return self.limit - len(self.request.output_ids)

    @property
    def ready(self) -> bool:
        """Further samples of a request wait until the first has computed the prompt they share."""
        first = self.job.sequences[0]
        return first is self or bool(first.request.output_ids) or first.finish_reason is not None

    def admit(self, hit: int) -> None:
        """It joins the running ones, perhaps again; the cache holds its first `hit` tokens."""
        self.observed = 0
        if self.cached_tokens is None:
            self.cached_tokens = hit

    def append(
        self, token: int, from_draft: bool, logprobs: dict[int, Logprob] | None = None
    ) -> bool:
        """Commit one token; True if the text ends with it."""
        request = self.request
        request.append(token)
        self.from_draft.append(from_draft)
        if logprobs is not None:
            self.logprobs.append(logprobs)
            self.cumulative_logprob += logprobs[token].logprob
        written, params = len(request.output_ids), request.params
        may_stop = written > params.min_tokens
        if may_stop and token in request.stop_ids:
            # As in vLLM, an end token is part of the ids but not of the text.
            self._end("stop", token)
            return True
        self._unread.append(token)
        # A text that nothing in it can end is read later: the next pass does not wait for that.
        hit = self._read(may_stop) if params.stop_strings else None
        if hit is not None:
            self._end("stop", hit)
        elif written >= self.limit:
            self._end("length", None)
        return self.finish_reason is not None

    @property
    def text(self) -> str:
        if self._unread:
            self._read(may_stop=False)
        return self._text

    def _read(self, may_stop: bool) -> str | None:
        """Make text of the tokens; the stop string that it completes, if any."""
        piece = self._detokenizer.read(self._unread)
        self._unread.clear()
        if not may_stop:
            self._text += piece
            return None
        emit, hit = self._stops.push(piece)
        self._text += emit
        return hit

    def fail(self, reason: FinishReason) -> None:
        if self.finish_reason is None:
            self._end(reason, None)

    def _end(self, reason: FinishReason, cause: int | str | None) -> None:
        if not isinstance(cause, str):  # a stop string has cut the text already
            self._text = self.text + self._stops.finish() + self._detokenizer.finish()
        self.finish_reason = reason
        self.stop_reason = cause

    def output(self) -> CompletionOutput:
        wants_logprobs = self.request.params.logprobs is not None
        return CompletionOutput(
            index=self.request.sample,
            text=self.text,
            token_ids=list(self.request.output_ids),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            logprobs=list(self.logprobs) if wants_logprobs else None,
            cumulative_logprob=self.cumulative_logprob if wants_logprobs else None,
            from_draft=list(self.from_draft),
            grounding=self._grounding(),
        )

    def _grounding(self) -> list[Grounding] | None:
        """Of the whole text: while it grows, its last words are not settled."""
        documents = self.request.documents
        if not documents or self.finish_reason is None:
            return None
        return ground(self.text, documents)

    def delta(self) -> Delta:
        """What is new since the last call."""
        request, text, told = self.request, self.text, self._told_tokens
        self.told_end = self.finish_reason is not None
        delta = Delta(
            request_id=self.job.id,
            index=request.sample,
            text=text[self._told_text :],
            token_ids=request.output_ids[told:],
            from_draft=self.from_draft[told:],
            finish_reason=self.finish_reason,
            result=self.job.output() if self.told_end and self.job.told else None,
        )
        self._told_tokens, self._told_text = len(request.output_ids), len(text)
        return delta


@dataclass(eq=False)
class Job:
    """A user's request: n sequences that share a prompt."""

    id: str
    prompt: str | None
    prompt_ids: list[int]
    seed: int
    drafter: str
    streamed: bool = True  # whether anybody reads along; else all that is told is the end
    sequences: list[Sequence] = field(default_factory=list)
    error: str | None = None

    @property
    def finished(self) -> bool:
        return all(sequence.finish_reason is not None for sequence in self.sequences)

    @property
    def told(self) -> bool:
        """Whether the user has heard the end of each sequence: then the result may follow."""
        return all(sequence.told_end for sequence in self.sequences)

    def output(self) -> RequestOutput:
        speculation = Speculation(drafter=self.drafter)
        for sequence in self.sequences:
            speculation.add(sequence.speculation)
        return RequestOutput(
            request_id=self.id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_ids,
            outputs=[sequence.output() for sequence in self.sequences],
            finished=self.finished,
            seed=self.seed,
            speculation=speculation,
            num_cached_tokens=max(sequence.cached_tokens or 0 for sequence in self.sequences),
            error=self.error,
        )
