"""A small OpenAI-compatible server on loopback, which can be told to cheat."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from outrider import LLM, SamplingParams


class Serving:
    """`tells_ids`: sends token ids; `strict`: refuses fields that are not OpenAI's, and prompts
    that are token ids; `temperature`: what it samples at whatever was asked."""

    def __init__(
        self,
        llm: LLM,
        tells_ids: bool = True,
        strict: bool = False,
        temperature: float | None = None,
        second_best: int | None = None,
    ) -> None:
        self.llm = llm
        self.tells_ids = tells_ids
        self.strict = strict
        self.temperature = temperature
        self.second_best = second_best  # the output position where it takes another token
        self.seen: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.lock = threading.Lock()

    def complete(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.seen.append(body)
        if self.strict and ("return_token_ids" in body or not isinstance(body["prompt"], str)):
            return 400, {"error": {"message": "unknown field"}}
        temperature = body["temperature"]
        if temperature and self.temperature:
            temperature = self.temperature
        processors = [self._cheat] if self.second_best is not None else None
        params = SamplingParams(
            temperature=temperature,
            n=body.get("n", 1),
            seed=body.get("seed"),
            max_tokens=body["max_tokens"],
            logit_bias={int(t): b for t, b in body.get("logit_bias", {}).items()} or None,
            logprobs=body.get("logprobs"),
            logits_processors=processors,
        )
        with self.lock:
            result = self.llm.generate(body["prompt"], params, use_tqdm=False)[0]
        return 200, {"choices": [self._choice(output) for output in result.outputs]}

    def _cheat(self, path: list[int], logits: Any) -> Any:
        if len(path) == self.second_best:
            logits[logits.argmax()] = -1e9
        return logits

    def _choice(self, output: Any) -> dict[str, Any]:
        choice: dict[str, Any] = {"text": output.text, "finish_reason": output.finish_reason}
        if output.logprobs is not None:
            pairs = zip(output.token_ids, output.logprobs, strict=True)
            found = [(entry[t].decoded_token, entry[t].logprob) for t, entry in pairs]
            choice["logprobs"] = {
                "tokens": [text for text, _ in found],
                "token_logprobs": [value for _, value in found],
            }
        if self.tells_ids:
            choice["token_ids"] = output.token_ids
        return choice


@contextmanager
def serving(state: Serving) -> Iterator[str]:
    """The address of a running server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, {"data": [{"id": "tiny"}]})

        def do_POST(self) -> None:
            state.keys.append(self.headers.get("Authorization"))
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._send(*state.complete(body))

        def _send(self, status: int, reply: dict[str, Any]) -> None:
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
