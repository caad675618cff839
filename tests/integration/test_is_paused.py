"""What a server says of its own pause, over HTTP: asked in time, and believed only where it is said."""

import asyncio
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from vllmd.observe.scrape import HttpScraper

PATIENCE_S = 5.0


@contextmanager
def answering(status: int, body: bytes, gate: threading.Event) -> Iterator[str]:
    """Run a server that answers every request so, once the gate is open; give its URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            gate.wait(PATIENCE_S)
            self.send_response(status if self.path == "/is_paused" else 500)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        gate.set()
        server.shutdown()
        server.server_close()


def asked(url: str) -> bool | None:
    """Return what the scraper makes of it."""

    async def ask() -> bool | None:
        scraper = HttpScraper(url)
        try:
            async with asyncio.timeout(PATIENCE_S - 2.0):
                return await scraper.paused()
        finally:
            await scraper.close()

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b'{"is_paused":true}', True),
        (200, b'{"is_paused":false}', False),
        (404, b'{"detail":"Not Found"}', None),
        (500, b'{"is_paused":true}', None),
        (200, b'{"is_paused":"yes"}', None),
        (200, b"[]", None),
        (200, b"\xff{", None),
        (200, b" " * 5000 + b'{"is_paused":true}', None),
    ],
)
def test_only_a_clear_word_counts(status: int, body: bytes, said: object) -> None:
    """A server without the path, with an error, or with anything else in its answer has said nothing."""
    gate = threading.Event()
    gate.set()
    with answering(status, body, gate) as url:
        assert asked(url) is said


def test_a_server_that_does_not_answer_is_not_waited_for() -> None:
    """A hang is found in time, whether or not this path answers."""
    with answering(200, b'{"is_paused":true}', threading.Event()) as url:
        assert asked(url) is None
