"""The library's front door, shaped like vLLM's."""

import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from jinja2 import TemplateError

from outrider.core.errors import InvalidRequest
from outrider.core.outputs import CompletionOutput, Delta, RequestOutput, Speculation
from outrider.core.params import SamplingParams
from outrider.engine.engine import Engine
from outrider.engine.intake import check_unicode
from outrider.engine.policy.explain import Explanation
from outrider.engine.progress import progress_bar
from outrider.model.memory import MemoryUse

Prompt = str | list[int] | dict[str, Any]
Messages = list[dict[str, str]]
Params = SamplingParams | Sequence[SamplingParams] | None
Shown = bool | Callable[[], None]  # a bar, or what is called for each request that is finished
Inbox = deque[Delta]  # of requests that somebody waits for


class LLM:
    """`LLM("smollm2-135m")` drafts where it pays; `speculative_config` names one drafter, or None
    for plain decoding. The options are those of `EngineConfig`."""

    def __init__(
        self, model: str, speculative_config: str | dict[str, Any] | None = "auto", **options: Any
    ) -> None:
        self.engine = Engine(model, speculative_config, **options)
        self._inboxes: dict[str, Inbox] = {}  # by request: of who waits for it

    @property
    def tokenizer(self) -> Any:
        return self.engine.loaded.tokenizer

    @property
    def model_name(self) -> str:
        return self.engine.loaded.name

    @property
    def drafter_name(self) -> str:
        return self.engine.drafter.name

    @property
    def memory(self) -> MemoryUse:
        """What the engine takes: weights, KV, workspace, passes. `str()` is for people."""
        return self.engine.memory

    def explain(self) -> Explanation:
        """Why so much was drafted since the start: costs, acceptance, the lengths chosen."""
        return self.engine.drafting.explain()

    def generate(
        self, prompts: Prompt | list[Prompt], sampling_params: Params = None, use_tqdm: Shown = True
    ) -> list[RequestOutput]:
        """Continue each prompt as it is. A request that is refused has its `error` set while the
        others finish; if all are refused, the first error is raised."""
        return self._complete(_as_list(prompts), lambda p: p, sampling_params, use_tqdm)

    def chat(
        self,
        messages: Messages | list[Messages],
        sampling_params: Params = None,
        use_tqdm: Shown = True,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of several, through the model's chat template."""
        several = bool(messages) and isinstance(messages[0], list)
        talks: list[Any] = messages if several else [messages]
        return self._complete(talks, self.chat_prompt, sampling_params, use_tqdm)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Generator[Delta]:
        """What is accepted, as it is accepted. Closing the iterator aborts the request."""
        params = sampling_params or SamplingParams()
        self.engine.intake.check(prompt, params)  # fail here, not at the first delta

        def deltas() -> Generator[Delta]:
            inbox: Inbox = deque()
            yield from self._run([self._add(prompt, params, inbox, streamed=True)], inbox)

        return deltas()

    def chat_prompt(self, messages: Messages) -> list[int]:
        """The token ids of a conversation, ready for the answer."""
        tokenizer = self.tokenizer
        if tokenizer is None or tokenizer.chat_template is None:
            raise InvalidRequest(
                f"{self.model_name} has no chat template; use generate with plain text (--raw)"
            )
        _check_messages(messages)
        try:
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:  # e.g. a template that knows no system role
            raise InvalidRequest(
                f"the chat template of {self.model_name} refuses this conversation: {error}"
            ) from error
        # The template writes the special tokens itself.
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _add(
        self, prompt: Prompt, params: SamplingParams | None, inbox: Inbox, streamed: bool
    ) -> str:
        request_id = self.engine.add(prompt, params, streamed=streamed)
        self._inboxes[request_id] = inbox
        return request_id

    def _complete(
        self, batch: list[Any], prompt_of: Callable[[Any], Prompt], params: Params, use_tqdm: Shown
    ) -> list[RequestOutput]:
        """Run all that can be served in one batch."""
        results: dict[int, RequestOutput] = {}
        errors: list[InvalidRequest] = []
        places: dict[str, int] = {}
        inbox: Inbox = deque()
        each = _params_for(len(batch), params)
        for place, (item, sampling) in enumerate(zip(batch, each, strict=True)):
            try:
                places[self._add(prompt_of(item), sampling, inbox, streamed=False)] = place
            except InvalidRequest as error:
                errors.append(error)
                results[place] = _refused(str(error))
            except BaseException:
                self._forget(list(places))
                raise
        if errors and not places:
            raise errors[0]
        for refusal in errors:
            warnings.warn(f"a request was refused: {refusal}", stacklevel=3)
        with progress_bar(len(places), "generating", shown=use_tqdm) as finished_one:
            for delta in self._run(list(places), inbox):
                if delta.result is not None:
                    results[places[delta.request_id]] = delta.result
                    finished_one()
        aborted = _refused("the request was aborted")
        return [results.get(place, aborted) for place in range(len(batch))]

    def _run(self, request_ids: list[str], inbox: Inbox) -> Iterator[Delta]:
        """Step until these requests are finished. Several of these may run in turns: a delta of
        another's request goes to its inbox."""
        open_ids = set(request_ids)
        try:
            while open_ids:
                if not inbox:
                    for delta in self.engine.step():
                        if (
                            delta.request_id in self._inboxes
                        ):  # else somebody drives the engine, too
                            self._inboxes[delta.request_id].append(delta)
                if not inbox:  # one that somebody has aborted says no more
                    open_ids.intersection_update(self.engine.jobs)
                while inbox:
                    delta = inbox.popleft()
                    if delta.result is not None:
                        open_ids.discard(delta.request_id)
                    yield delta
        finally:
            self._forget(request_ids)

    def _forget(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self.engine.abort(request_id)
            self._inboxes.pop(request_id, None)


def _as_list(prompts: Any) -> list[Any]:
    """One prompt is a batch of one; a list of ids is one prompt, not many."""
    if isinstance(prompts, (str, dict)):
        return [prompts]
    if not isinstance(prompts, list):
        raise InvalidRequest(f"prompts must be a string, a dict or a list, not {prompts!r}")
    one = bool(prompts) and all(isinstance(item, int) for item in prompts)
    return [prompts] if one else prompts


def _params_for(count: int, params: Params) -> list[SamplingParams]:
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, (list, tuple)) or not all(
        isinstance(each, SamplingParams) for each in params
    ):
        raise InvalidRequest(f"sampling_params must be SamplingParams or a list, not {params!r}")
    if len(params) != count:
        raise InvalidRequest(f"{count} prompts but {len(params)} sampling params; give one or all")
    return list(params)


def _refused(message: str) -> RequestOutput:
    output = CompletionOutput(index=0, text="", token_ids=[], finish_reason="error")
    return RequestOutput(
        request_id="",
        prompt=None,
        prompt_token_ids=[],
        outputs=[output],
        finished=True,
        seed=0,
        speculation=Speculation(),
        error=message,
    )


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages must be a non-empty list of {'role': …, 'content': …}")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise InvalidRequest(f"a message needs 'role' and text 'content', not {message!r}")
        check_unicode("a message", message["content"])
        if message.get("role") not in ("system", "user", "assistant", "tool"):
            raise InvalidRequest(f"unknown role {message.get('role')!r} in a message")
