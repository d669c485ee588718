"""What a user gets back; the shapes are vLLM's, plus the statistics of speculation."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

FinishReason = Literal["stop", "length", "abort", "error"]


class Logprob(NamedTuple):
    logprob: float
    rank: int  # 1 is the most likely token
    decoded_token: str


TokenLogprobs = list[dict[int, Logprob]]  # per output token: the chosen one and the alternatives


@dataclass
class Speculation:
    """Counters of one request, or of many added up."""

    drafter: str = "none"
    steps: int = 0  # passes that wrote at least one token after the first
    drafts: int = 0  # of these, passes that checked a proposal
    drafted: int = 0  # nodes proposed
    accepted: int = 0  # nodes kept
    accepted_per_position: list[int] = field(default_factory=list)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per checked proposal, the target's own token included."""
        return 1 + self.accepted / self.drafts if self.drafts else 1.0

    def record(self, drafted: int, accepted: int) -> None:
        self.steps += 1
        if not drafted:
            return
        self.drafts += 1
        self.drafted += drafted
        self.accepted += accepted
        missing = accepted - len(self.accepted_per_position)
        self.accepted_per_position += [0] * missing
        for position in range(accepted):
            self.accepted_per_position[position] += 1

    def add(self, other: "Speculation") -> None:
        self.steps += other.steps
        self.drafts += other.drafts
        self.drafted += other.drafted
        self.accepted += other.accepted
        missing = len(other.accepted_per_position) - len(self.accepted_per_position)
        self.accepted_per_position += [0] * missing
        for position, count in enumerate(other.accepted_per_position):
            self.accepted_per_position[position] += count

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "mean_acceptance_length": self.mean_acceptance_length}


@dataclass(frozen=True)
class Grounding:
    """text[start:end] of an output is text[document_start:document_end] of a document, to the
    letter. All in characters."""

    start: int
    end: int
    document: str | int  # its name, or its place: the engine's documents come before the request's
    document_start: int
    document_end: int


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop id or stop string that ended it
    logprobs: TokenLogprobs | None = None
    cumulative_logprob: float | None = None
    from_draft: list[bool] = field(default_factory=list)  # per token: accepted from a proposal?
    grounding: list[Grounding] | None = None  # quotations, in order; None: no documents


@dataclass
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    seed: int  # as given, or as drawn
    speculation: Speculation
    num_cached_tokens: int = 0  # prompt tokens that the prefix cache held
    error: str | None = None  # why this request was refused or broken; the others of its batch ran


@dataclass(frozen=True)
class Delta:
    """What one step added to one sequence of a streamed request."""

    request_id: str
    index: int  # which of the n sequences
    text: str  # may lag behind token_ids: incomplete characters and possible stop strings wait
    token_ids: list[int]
    from_draft: list[bool]
    finish_reason: FinishReason | None = None
    result: RequestOutput | None = None  # the whole request, with its last delta
