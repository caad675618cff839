"""A canary over HTTP: what is asked, with which key, what each answer means, and that no wait is without end."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from stub_server import serving
from vllmd.model.canary import CanaryOrder, CanaryReply, CanaryResult
from vllmd.observe.canary import CanarySender

PATIENCE_S = 10.0
SHORT_S = 0.5
KEY = "sk-of-the-server"
MODELS = {"data": [{"id": "base"}, {"id": "adapter"}]}
TOKEN = {"usage": {"completion_tokens": 1}}


def told(url: str, key: str | None = KEY, *, paused: bool | None = None, limit_s: float = PATIENCE_S) -> CanaryReply:
    """Send one canary; return what is told of it."""

    async def is_paused() -> bool | None:
        return paused

    async def send() -> CanaryReply:
        replies: asyncio.Queue[CanaryReply] = asyncio.Queue()
        sender = CanarySender(url, is_paused, lambda: key, replies.put_nowait)
        try:
            sender.follow(CanaryOrder(7, 1, limit_s))
            async with asyncio.timeout(PATIENCE_S):
                return await replies.get()
        finally:
            await sender.close()

    return asyncio.run(send())


def test_a_token_is_an_answer() -> None:
    """The first model is asked for one token, with the server's key."""
    with serving({"/v1/models": (200, MODELS), "/v1/completions": (200, TOKEN)}) as stub:
        assert told(stub.url) == CanaryReply(7, CanaryResult.ANSWERED)
    body = {"model": "base", "prompt": "1", "max_tokens": 1, "ignore_eos": True}
    assert stub.asked == [("/v1/models", f"Bearer {KEY}", None), ("/v1/completions", f"Bearer {KEY}", body)]


def test_without_a_key_no_header_is_sent() -> None:
    """A server without a key is asked as anybody would."""
    with serving({"/v1/models": (200, MODELS), "/v1/completions": (200, TOKEN)}) as stub:
        assert told(stub.url, key=None).result is CanaryResult.ANSWERED
    assert {header for _, header, _ in stub.asked} == {None}


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"/v1/models": (401, {})}, "/v1/models answered 401"),
        ({"/v1/models": (200, {"data": []})}, "/v1/models names no model"),
        ({"/v1/models": (200, [])}, "/v1/models names no model"),
        ({"/v1/models": (200, b"<html>")}, "/v1/models answered no JSON"),
        ({"/v1/models": (200, b" " * (9 * 2**20))}, "/v1/models answered more than 8388608 bytes"),
        ({"/v1/models": (200, MODELS)}, "/v1/completions answered 404"),
        ({"/v1/models": (200, MODELS), "/v1/completions": (503, {})}, "/v1/completions answered 503"),
        ({"/v1/models": (200, MODELS), "/v1/completions": (200, {})}, "/v1/completions answered without a token"),
        ({"/v1/models": (200, MODELS), "/v1/completions": (200, [1])}, "/v1/completions answered without a token"),
    ],
)
def test_any_other_answer_is_a_refusal(answers: Mapping[str, tuple[int, Any] | None], reason: str) -> None:
    """What answers does not hang, whatever it says."""
    with serving(answers) as stub:
        assert told(stub.url) == CanaryReply(7, CanaryResult.REFUSED, reason)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions"])
def test_no_answer_is_waited_for_no_longer_than_its_limit(path: str) -> None:
    """A silent server costs a task of its own, and that until the limit."""
    with serving({"/v1/models": (200, MODELS), "/v1/completions": (200, TOKEN), path: None}) as stub:
        assert told(stub.url, limit_s=SHORT_S).result is CanaryResult.SILENT


def test_a_paused_server_is_not_asked() -> None:
    """What it says of itself is heard before the canary is sent."""
    with serving({"/v1/models": (200, MODELS)}) as stub:
        assert told(stub.url, paused=True).result is CanaryResult.PAUSED
    assert stub.asked == []


def test_a_connection_that_cannot_be_made_or_a_key_that_cannot_be_sent_is_told_without_the_key() -> None:
    """Nothing was asked, so nothing is known; the words of the error may hold the key and are left out."""
    with serving({}) as stub:
        broken = told(stub.url, key=f"{KEY}\r\nX: y")
    assert (broken.result, broken.reason) == (CanaryResult.LOST, "LocalProtocolError")
    assert told(stub.url) == CanaryReply(7, CanaryResult.LOST, "ConnectError")


def test_a_canary_that_is_no_longer_wanted_is_given_up_and_not_told() -> None:
    """The server learns of it by its connection, and the next canary is the only one under way."""

    async def is_paused() -> bool | None:
        return None

    async def send(url: str) -> CanaryReply:
        replies: asyncio.Queue[CanaryReply] = asyncio.Queue()
        sender = CanarySender(url, is_paused, lambda: None, replies.put_nowait)
        sender.follow(CanaryOrder(1, 1, PATIENCE_S))
        await asyncio.sleep(0)  # it has begun
        sender.follow(None)
        sender.follow(CanaryOrder(2, 1, SHORT_S))
        async with asyncio.timeout(PATIENCE_S):
            reply = await replies.get()
        await sender.close()
        return reply

    with serving({"/v1/models": None}) as stub:
        assert asyncio.run(send(stub.url)).number == 2


def test_a_bug_in_the_sending_is_no_hang() -> None:
    """What vllmd itself did wrong ends the canaries, not the server."""

    def no_key() -> str | None:
        raise KeyError("no key")

    async def is_paused() -> bool | None:
        return None

    async def send(url: str) -> CanaryReply:
        replies: asyncio.Queue[CanaryReply] = asyncio.Queue()
        sender = CanarySender(url, is_paused, no_key, replies.put_nowait)
        sender.follow(CanaryOrder(1, 1, PATIENCE_S))
        async with asyncio.timeout(PATIENCE_S):
            reply = await replies.get()
        await sender.close()
        return reply

    with serving({}) as stub:
        assert asyncio.run(send(stub.url)) == CanaryReply(1, CanaryResult.REFUSED, "vllmd itself failed: KeyError")
