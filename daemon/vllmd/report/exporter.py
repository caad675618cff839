"""The exporter: /metrics, /healthz and /readyz over HTTP, in a thread of its own."""

import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, make_wsgi_app
from prometheus_client.registry import Collector

from vllmd.errors import VllmdError
from vllmd.model.server import ServerState
from vllmd.report.address import parse_address
from vllmd.report.publication import Publication
from vllmd.report.series import families

# The loop publishes every few seconds; longer silence means that it hangs.
HEALTHY_WITHIN_S = 30.0
_REQUEST_LIMIT_S = 10.0

_INDEX = "vllmd: /metrics /healthz /readyz\n"


class InstanceCollector(Collector):
    """Makes the metric families of the latest published status at every scrape."""

    def __init__(self, publication: Publication, now_s: Callable[[], float] = time.time) -> None:
        self._publication = publication
        self._now_s = now_s

    def describe(self) -> Iterable[Metric]:
        """Return nothing: what there is depends on the status."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the families; none before the first status."""
        published = self._publication.latest()
        if published is not None:
            yield from families(published, self._now_s())


class Exporter:
    """Serves one publication. `address` is the HOST:PORT of [listen] metrics; port 0 takes any free one."""

    def __init__(self, address: str, publication: Publication) -> None:
        host, port = parse_address(address)
        try:
            self._server = _Server(host, port)
        except OSError as error:
            raise VllmdError(
                f"cannot listen on {address} for metrics ([listen] metrics): {error.strerror or error}"
            ) from error
        self._server.set_app(application(publication))
        self._thread = threading.Thread(target=self._server.serve_forever, name="exporter", daemon=True)

    @property
    def url(self) -> str:
        """Where it answers."""
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(timeout=_REQUEST_LIMIT_S)
        self._server.server_close()


def application(publication: Publication) -> WSGIApplication:
    """Return the WSGI application: the metrics of the publication and of this process, and two checks."""
    registry = CollectorRegistry()
    registry.register(InstanceCollector(publication))
    ProcessCollector(registry=registry)
    metrics = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        match environ.get("PATH_INFO", ""):
            case "/metrics":
                page: Iterable[bytes] = metrics(environ, start_response)
                return page
            case "/healthz":
                return _check(start_response, *health(publication.age_s()))
            case "/readyz":
                status = publication.get()
                return _check(start_response, *readiness(None if status is None else status.state))
            case "/":
                return _text(start_response, "200 OK", _INDEX)
            case _:
                return _text(start_response, "404 Not Found", _INDEX)

    return answer


def health(age_s: float | None) -> tuple[bool, str]:
    """Return whether the loop lives, and the words for it; `age_s` is how long ago it last published."""
    if age_s is None:
        return False, "the loop has not published yet"
    return age_s <= HEALTHY_WITHIN_S, f"the loop published {age_s:.0f} s ago"


def readiness(state: ServerState | None) -> tuple[bool, str]:
    """Return whether the server serves, and the words for it."""
    return state is ServerState.SERVING, "unknown" if state is None else state.value


def _check(start_response: StartResponse, good: bool, words: str) -> Iterable[bytes]:  # noqa: FBT001 - from a pair
    """Answer a check: 200, or 503 with the reason."""
    return _text(start_response, "200 OK" if good else "503 Service Unavailable", words + "\n")


def _text(start_response: StartResponse, status: str, body: str) -> Iterable[bytes]:
    """Answer with plain text."""
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
    return [body.encode()]


class _Quiet(WSGIRequestHandler):
    """Handles one request within a time limit, and logs nothing: a scrape every few seconds is no news."""

    timeout = _REQUEST_LIMIT_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Log nothing."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """An HTTP server for IPv4 and IPv6 with a thread a request."""

    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self.address_family = family
        super().__init__((str(address[0]), port), _Quiet)

    def server_bind(self) -> None:
        """Bind without the reverse look-up of the base class, which hangs where DNS does."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that hang up."""
