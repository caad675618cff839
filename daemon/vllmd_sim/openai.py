"""OpenAI's bodies as vLLM reads and writes them: what a client asks for, and the answers' JSON."""

import json
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from vllmd_sim.http1 import HttpResponse, json_response

PIECE = " sim"  # the text of every generated token
_CHARACTERS_PER_TOKEN = 4
_DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions


class AskError(Exception):
    """A request that vLLM would refuse; `response` is the refusal."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.response = error_response(status, kind, message)


def error_response(status: int, kind: str, message: str) -> HttpResponse:
    """Return an error in OpenAI's form."""
    return json_response(error_body(status, kind, message), status)


def error_body(status: int, kind: str, message: str) -> dict[str, Any]:
    """Return the JSON of an error in OpenAI's form."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client wants generated. `ends_with` is the finish reason of an answer that was not disturbed."""

    chat: bool
    model: str
    prompt_tokens: int
    max_tokens: int
    ends_with: str
    stream: bool
    usage_in_stream: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:16])
    created: int = field(default_factory=lambda: int(time.time()))


@dataclass(frozen=True, slots=True)
class Offer:
    """What this server can be asked for."""

    names: tuple[str, ...]
    max_model_len: int
    answer_tokens: int


def parse_ask(body: bytes, offer: Offer, *, chat: bool) -> Ask:
    """Return what a completion or chat body asks for; raises AskError as vLLM refuses.

    Text counts four characters a token. An answer without max_tokens is answer_tokens long for chat, 16 otherwise.
    """
    try:
        given = json.loads(body)
    except ValueError as error:
        raise AskError(400, "BadRequestError", f"invalid JSON: {error}") from error
    if not isinstance(given, dict):
        raise AskError(400, "BadRequestError", "the body must be a JSON object")
    model = given.get("model", offer.names[0])
    if model not in offer.names:
        raise AskError(404, "NotFoundError", f"The model `{model}` does not exist.")
    prompt = _count_chat(given.get("messages")) if chat else _count_prompt(given.get("prompt"))
    asked = given.get("max_completion_tokens", given.get("max_tokens"))
    if asked is not None and (not isinstance(asked, int) or asked < 1):
        raise AskError(400, "BadRequestError", f"max_tokens must be at least 1, got {asked}.")
    room = offer.max_model_len - prompt
    most = asked if asked is not None else min(room, offer.answer_tokens if chat else _DEFAULT_COMPLETION_TOKENS)
    if room < 1 or most > room:
        raise AskError(400, "BadRequestError", _too_long(offer.max_model_len, asked or 0, prompt))
    options = given.get("stream_options")
    return Ask(
        chat=chat,
        model=model,
        prompt_tokens=prompt,
        max_tokens=most,
        ends_with="stop" if chat and asked is None else "length",
        stream=bool(given.get("stream")),
        usage_in_stream=isinstance(options, dict) and bool(options.get("include_usage")),
    )


def whole_answer(ask: Ask, generated: int) -> dict[str, Any]:
    """Return the body of an answer that is not streamed."""
    text = PIECE * generated
    content = {"message": {"role": "assistant", "content": text}} if ask.chat else {"text": text}
    choice = {"index": 0, **content, "logprobs": None, "finish_reason": ask.ends_with, "stop_reason": None}
    kind = "chat.completion" if ask.chat else "text_completion"
    return {**_head(ask, kind), "choices": [choice], "usage": _usage(ask, generated)}


def opening(ask: Ask) -> list[bytes]:
    """Return the events that a stream begins with: the role, for chat."""
    return [_chunk(ask, {"delta": {"role": "assistant", "content": ""}}, None)] if ask.chat else []


def token(ask: Ask, *, last: bool) -> bytes:
    """Return the event of one token."""
    content: dict[str, Any] = {"delta": {"content": PIECE}} if ask.chat else {"text": PIECE}
    return _chunk(ask, content, ask.ends_with if last else None)


def closing(ask: Ask, generated: int) -> list[bytes]:
    """Return the events that a stream ends with."""
    usage = {**_head(ask, _chunk_kind(ask)), "choices": [], "usage": _usage(ask, generated)}
    return [*([event(usage)] if ask.usage_in_stream else []), DONE]


def event(content: dict[str, Any]) -> bytes:
    """Return a server-sent event."""
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def _chunk(ask: Ask, content: dict[str, Any], reason: str | None) -> bytes:
    choice = {"index": 0, **content, "logprobs": None, "finish_reason": reason}
    return event({**_head(ask, _chunk_kind(ask)), "choices": [choice]})


def _chunk_kind(ask: Ask) -> str:
    return "chat.completion.chunk" if ask.chat else "text_completion"


def _head(ask: Ask, kind: str) -> dict[str, Any]:
    prefix = "chatcmpl" if ask.chat else "cmpl"
    return {"id": f"{prefix}-{ask.id}", "object": kind, "created": ask.created, "model": ask.model}


def _usage(ask: Ask, generated: int) -> dict[str, int]:
    return {
        "prompt_tokens": ask.prompt_tokens,
        "total_tokens": ask.prompt_tokens + generated,
        "completion_tokens": generated,
    }


def _too_long(limit: int, asked: int, prompt: int) -> str:
    return (
        f"This model's maximum context length is {limit} tokens. However, you requested {asked} output tokens and your "
        f"prompt contains {prompt} input tokens, for a total of {asked + prompt} tokens. Please reduce the length of "
        "the input prompt or the number of requested output tokens."
    )


def _count_prompt(prompt: object) -> int:
    match prompt:
        case str():
            return max(1, len(prompt) // _CHARACTERS_PER_TOKEN)
        case [str() as only] | [[*_] as only]:
            return _count_prompt(only)
        case [int(), *_]:
            return len(prompt)
        case _:
            raise AskError(400, "BadRequestError", "prompt must be a string or a list of token ids")


def _count_chat(messages: object) -> int:
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise AskError(400, "BadRequestError", "messages must be a list of objects")
    return max(1, len(json.dumps([message.get("content") for message in messages])) // _CHARACTERS_PER_TOKEN)
