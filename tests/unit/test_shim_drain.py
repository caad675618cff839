"""The middleware: what it counts, when it ends a connection, and where it is asked for."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from vllmd_shim.block import Block, Word, fresh_bytes, opened
from vllmd_shim.drain import OPTION, Drain, Requests, ask_for_middleware

Message = dict[str, Any]
START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"Connection", b"keep-alive"), (b"a", b"b")],
}


@pytest.fixture
def block(tmp_path: Path) -> Block:
    """Make a block."""
    path = tmp_path / "block"
    path.write_bytes(fresh_bytes())
    return opened(str(path))


def sent_by(app: Any, requests: Requests | None, kind: str = "http") -> list[Message]:
    """Let one request through the middleware; return what was sent."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(Drain(app, requests)({"type": kind}, receive, send))
    return sent


async def answering(_scope: Message, _receive: Any, send: Any) -> None:
    """Answer."""
    await send(START)
    await send({"type": "http.response.body", "body": b"x"})


def test_an_answer_passes_unchanged_and_its_connection_is_kept(block: Block) -> None:
    """Not draining: the very messages, and the end of the answer is told."""
    requests = Requests(block)
    assert sent_by(answering, requests)[0] is START
    assert [block.words[w] for w in (Word.IN_FLIGHT, Word.REQUESTS)] == [0, 1]
    assert block.words[Word.KEPT_NS] > 0
    assert block.words[Word.API_PID] > 0


def test_an_answer_ends_its_connection_while_the_block_says_so(block: Block) -> None:
    """The connection's header is replaced, the others stay, and no connection is told as kept."""
    requests = Requests(block)
    block.words[Word.DRAIN] = 1
    headers = sent_by(answering, requests)[0]["headers"]
    assert headers == [(b"a", b"b"), (b"connection", b"close")]
    assert block.words[Word.KEPT_NS] == 0


def test_a_drain_that_begins_within_a_request_ends_its_connection(block: Block) -> None:
    """What counts is the moment at which the answer begins."""

    async def slow(_scope: Message, _receive: Any, send: Any) -> None:
        assert block.words[Word.IN_FLIGHT] == 1
        block.words[Word.DRAIN] = 1
        await send(START)

    assert (b"connection", b"close") in sent_by(slow, Requests(block))[0]["headers"]


def test_a_request_that_fails_is_no_longer_in_flight(block: Block) -> None:
    """The error is the application's, and passes."""

    async def failing(_scope: Message, _receive: Any, _send: Any) -> None:
        raise ValueError("of the application")

    with pytest.raises(ValueError, match="of the application"):
        sent_by(failing, Requests(block))
    assert block.words[Word.IN_FLIGHT] == 0


def test_what_is_no_request_passes_uncounted(block: Block) -> None:
    """Start and end of the application are its own; a WebSocket counts while it is open."""
    requests = Requests(block)
    sent_by(answering, requests, kind="lifespan")
    assert block.words[Word.REQUESTS] == 0
    sent_by(answering, requests, kind="websocket")
    assert [block.words[w] for w in (Word.REQUESTS, Word.KEPT_NS)] == [1, 0]


def test_without_a_block_everything_passes() -> None:
    """A server by hand has none."""
    assert sent_by(answering, None)[0] is START


@pytest.mark.parametrize(
    ("argv", "asked"),
    [
        (["/bin/vllm", "serve", "m", "--port", "1"], True),
        (["/x/openai/api_server.py", "--model", "m"], True),
        (["/bin/vllm", "bench", "serve"], False),
        (["-c"], False),
        (["/bin/vllm", "serve", "m", OPTION], False),
    ],
)
def test_a_server_is_asked_for_the_middleware_once(argv: list[str], *, asked: bool) -> None:
    """Behind all other options; other commands of vLLM, and its other processes, are left alone."""
    before = list(argv)
    ask_for_middleware(argv)
    assert argv == [*before, OPTION] if asked else argv == before
