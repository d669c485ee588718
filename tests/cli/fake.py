"""A stand-in for LLM that writes a script, so that the command line is tested without a model."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from outrider.core.errors import ConfigError, InvalidRequest, ModelError, unknown_name
from outrider.core.grounding import ground
from outrider.core.outputs import CompletionOutput, Delta, RequestOutput, Speculation
from outrider.engine.policy.explain import Explanation

# Steps of one answer: tokens as bytes, and whether each came from a draft.
Step = list[tuple[bytes, bool]]
SCRIPT: list[Step] = [
    [(b"The", False)],
    [(b" sky", True), (b" is", True), (b" \xe2", False)],
    [(b"\x82\xac", True), (b"!", False)],
]


class FakeTokenizer:
    """Ids are places in the list of all tokens of the script."""

    def __init__(self, script: list[Step]) -> None:
        self.tokens = [token for step in script for token, _ in step]

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": []}

    def decode(self, ids: list[int], **options: Any) -> str:
        return b"".join(self.tokens[i] for i in ids).decode(errors="replace")


@dataclass
class FakeLLM:
    """Takes the arguments of LLM and remembers what it was asked."""

    model: str
    speculative_config: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    script: list[Step] = field(default_factory=lambda: SCRIPT)
    prompts: list[Any] = field(default_factory=list)
    params: list[Any] = field(default_factory=list)
    aborted: int = 0

    def __post_init__(self) -> None:
        self.tokenizer = FakeTokenizer(self.script)
        self.model_name = self.model
        self.engine = SimpleNamespace(
            loaded=SimpleNamespace(dtype="torch.float32"), max_model_len=400
        )
        config = self.speculative_config
        name = config.get("method", "draft_model") if isinstance(config, dict) else config or "none"
        known = ["none", "ngram", "draft_model", "auto"]
        if name not in known:
            raise ConfigError(unknown_name("drafter", name, known))
        if self.model.startswith("./"):
            raise ModelError(f"there is no folder {self.model}")
        self.drafter_name = name

    def before_step(self, step: int) -> None:
        """A place for tests to strike."""

    def chat_prompt(self, messages: list[dict[str, str]]) -> list[int]:
        self.prompts.append([dict(message) for message in messages])
        if sum(len(message["content"]) for message in messages) > 1000:
            raise InvalidRequest("the prompt is longer than the context")
        return []

    def stream(self, prompt: Any, params: Any) -> Iterator[Delta]:
        if isinstance(prompt, str):
            self.prompts.append(prompt)
        self.params.append(params)
        speculation = Speculation(drafter=self.drafter_name)
        ids: list[int] = []
        text = ""
        try:
            for number, step in enumerate(self.script):
                self.before_step(number)
                new = list(range(len(ids), len(ids) + len(step)))
                ids += new
                decoded = self.tokenizer.decode(ids).rstrip("\ufffd")
                text, piece = decoded, decoded[len(text) :]
                flags = [drafted for _, drafted in step]
                if number:
                    speculation.record(drafted=4, accepted=sum(flags))
                last = number == len(self.script) - 1
                result = self._result(text, ids, speculation, params) if last else None
                yield Delta("0", 0, piece, new, flags, "stop" if last else None, result)
        except GeneratorExit:
            self.aborted += 1
            raise

    def explain(self) -> Explanation:
        return Explanation("auto", True, {1: 50.0, 2: 75.0})

    def _result(
        self, text: str, ids: list[int], speculation: Speculation, params: Any
    ) -> RequestOutput:
        output = CompletionOutput(0, text, ids, finish_reason="stop")
        if params.document_list:
            output.grounding = ground(text, params.document_list)
        return RequestOutput("0", None, [], [output], True, 7, speculation)
