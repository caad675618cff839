"""A server that answers as a test says, whatever it is asked."""

import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_HANG_LIMIT_S = 30.0


@dataclass
class Stub:
    """A server that answers each path with a status and JSON, and keeps what it was asked. A path of None hangs."""

    answers: Mapping[str, tuple[int, Any] | None]
    url: str = ""
    asked: list[tuple[str, str | None, Any]] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(answers: Mapping[str, tuple[int, Any] | None]) -> Iterator[Stub]:
    """Run a stub for as long as the block runs."""
    stub = Stub(answers)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            stub.asked.append((self.path, self.headers.get("Authorization"), json.loads(body) if body else None))
            answer = stub.answers.get(self.path, (404, {}))
            if answer is None:
                stub.gate.wait(_HANG_LIMIT_S)
                return
            self.send_response(answer[0])
            self.end_headers()
            self.wfile.write(answer[1] if isinstance(answer[1], bytes) else json.dumps(answer[1]).encode())

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield stub
    finally:
        stub.gate.set()
        server.shutdown()
        server.server_close()
