"""A small client of OpenAI's completions endpoint, with the standard library alone."""

import json
import re
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from outrider.core.errors import ConfigError, OutriderError

TIMEOUT = 300  # seconds for one reply: a busy server may queue it


class Refused(OutriderError):
    """The server answered, but not with a completion."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Choice:
    """One completion: its text, its token ids where the server tells, log-probabilities too."""

    text: str
    finish_reason: str | None
    token_ids: list[int] | None
    logprobs: list[float | None] = field(default_factory=list)


class Client:
    def __init__(self, url: str, key: str | None = None, model: str | None = None) -> None:
        if not re.match(r"https?://[^/]", url):
            raise ConfigError(f"--against {url!r} is no address; give one like http://host:8000/v1")
        self.url = url.rstrip("/")
        self.key = key
        # Fields that not every server knows; those it refuses are left out from then on.
        self.extras: dict[str, Any] = {"logprobs": 1, "return_token_ids": True}
        self.takes_ids = True
        self.model = model or self._first_model()

    def _first_model(self) -> str:
        listed = self._call("models", None).get("data")
        if not _objects(listed) or not listed or "id" not in listed[0]:
            raise ConfigError(f"{self.url}/models lists no model; name it with --served-model")
        return str(listed[0]["id"])

    def complete(self, prompt: list[int], text: str, **options: Any) -> list[Choice]:
        """Prompt as token ids where the server takes them, else as text."""
        while True:
            given = prompt if self.takes_ids else text
            body = {"model": self.model, "prompt": given, **options, **self.extras}
            try:
                reply = self._call("completions", body)
            except Refused as refusal:
                if refusal.status not in (400, 422) or not self._simplify():
                    raise
            else:
                return self._choices(reply.get("choices", []))

    def _choices(self, entries: Any) -> list[Choice]:
        if not _objects(entries):
            raise ConfigError(f"{self.url}/completions sent choices that are no list of objects")
        try:
            return [_choice(entry) for entry in entries]
        except (AttributeError, TypeError, ValueError):
            raise ConfigError(
                f"{self.url}/completions sent a choice whose text, token_ids or logprobs are not"
                " as OpenAI's API has them"
            ) from None

    def _simplify(self) -> bool:
        """Ask for less; False when nothing is left to leave out."""
        if self.extras:
            self.extras.popitem()
            return True
        if self.takes_ids:
            self.takes_ids = False
            self.extras = {"logprobs": 1, "return_token_ids": True}
            return True
        return False

    def _call(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        address = f"{self.url}/{path}"
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address, data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
                found = json.load(reply)
        except urllib.error.HTTPError as error:
            said = ""
            with suppress(OSError, HTTPException):
                said = " ".join(error.read(2000).decode(errors="replace").split())
            raise Refused(error.code, f"{address} answered {error.code}: {said[:200]}") from None
        except (OSError, ValueError, HTTPException) as error:
            reason = " ".join(str(getattr(error, "reason", error)).split()) or repr(error)
            raise ConfigError(
                f"{address} cannot be reached or does not speak the API: {reason}"
            ) from None
        if not isinstance(found, dict):
            raise ConfigError(f"{address} answered {type(found).__name__} instead of an object")
        return found


def _objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def _choice(entry: dict[str, Any]) -> Choice:
    """Raises where the entry's fields are of other kinds."""
    logprobs = entry.get("logprobs") or {}
    ids = entry.get("token_ids")
    pieces = logprobs.get("tokens") or []
    if ids is None and pieces and all(re.fullmatch(r"token_id:\d+", str(p)) for p in pieces):
        ids = [int(piece.split(":")[1]) for piece in pieces]
    text, values = entry.get("text") or "", logprobs.get("token_logprobs") or []
    if not isinstance(text, str) or not (ids is None or _all_of(ids, int)):
        raise TypeError
    if not _all_of(values, (int, float, type(None))):
        raise TypeError
    return Choice(text, entry.get("finish_reason"), ids, values)


def _all_of(value: Any, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(value, list) and all(isinstance(item, kinds) for item in value)
