"""The exporter over HTTP: its paths, its addresses, and a port that is taken."""

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import httpx
import pytest

from examples import example_status, held_status
from vllmd.errors import VllmdError
from vllmd.report.exporter import Exporter
from vllmd.report.publication import Publication


def has_ipv6() -> bool:
    """Whether this machine has an IPv6 loopback."""
    try:
        with closing(socket.socket(socket.AF_INET6)) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@contextmanager
def serving(publication: Publication, address: str = "127.0.0.1:0") -> Iterator[str]:
    """Give the address of an exporter that answers."""
    exporter = Exporter(address, publication)
    exporter.start()
    yield exporter.url
    exporter.close()


def get(url: str) -> tuple[int, str]:
    """Return the status code and the text of a page."""
    answer = httpx.get(url, timeout=10)
    return answer.status_code, answer.text


def test_metrics_and_checks_of_a_server_that_serves() -> None:
    """A published, serving instance has metrics, and both checks are 200."""
    publication = Publication()
    publication.set(example_status())
    with serving(publication) as url:
        code, page = get(f"{url}/metrics")
        assert code == 200
        assert 'vllmd_engine_state{name="qwen",state="serving"} 1.0' in page
        assert "process_resident_memory_bytes" in page
        assert [get(f"{url}/{check}")[0] for check in ("healthz", "readyz")] == [200, 200]


def test_a_held_server_is_healthy_and_not_ready() -> None:
    """The daemon is well when its server is held; the server is not ready, and the answer says what it is."""
    publication = Publication()
    publication.set(held_status())
    with serving(publication) as url:
        assert get(f"{url}/healthz")[0] == 200
        assert get(f"{url}/readyz") == (503, "held\n")


def test_before_the_first_status_nothing_is_well() -> None:
    """Until the loop has published, both checks are 503 and the page still answers."""
    with serving(Publication()) as url:
        assert [get(f"{url}/{path}")[0] for path in ("healthz", "readyz", "metrics")] == [503, 503, 200]


def test_a_loop_that_hangs_is_unhealthy() -> None:
    """When the last status is too old, /healthz is 503."""
    times = iter([0.0, 31.0])
    publication = Publication(monotonic=lambda: next(times))
    publication.set(example_status())
    with serving(publication) as url:
        assert get(f"{url}/healthz") == (503, "the loop published 31 s ago\n")


def test_other_paths_are_not_found() -> None:
    """A wrong path is 404 and names the right ones."""
    with serving(Publication()) as url:
        assert get(f"{url}/metric") == (404, "vllmd: /metrics /healthz /readyz\n")


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_ipv6() -> None:
    """An IPv6 address in brackets is listened on."""
    with serving(Publication(), "[::1]:0") as url:
        assert url.startswith("http://[::1]:")
        assert get(f"{url}/")[0] == 200


def test_a_taken_port_is_named() -> None:
    """A port that is taken is an error with the address and the setting."""
    with serving(Publication()) as url:
        address = url.removeprefix("http://")
        with pytest.raises(VllmdError, match=rf"cannot listen on {address} .*\[listen\] metrics"):
            Exporter(address, Publication())


def test_a_port_is_free_after_the_end() -> None:
    """A closed exporter frees its port, and one that never started can be closed too."""
    with serving(Publication()) as url:
        address = url.removeprefix("http://")
    Exporter(address, Publication()).close()
