"""Whether a server's port can be parked, and why not."""

from dataclasses import replace
from typing import Any

import pytest

from vllmd.act.parked_port import PortFacts, parking_refused

ALL_WELL = PortFacts(api_servers=1, unix_socket=False, counted=True, shared=True, migrates=True)


def test_a_port_can_be_parked_where_all_is_there() -> None:
    """One API server on TCP, counted and shared by the shim, on a kernel that hands connections over."""
    assert parking_refused(ALL_WELL) is None


@pytest.mark.parametrize(
    ("lacks", "word"),
    [
        ({"unix_socket": True}, "UNIX socket"),
        ({"api_servers": 4.0}, "4 API servers"),
        ({"migrates": None}, "5.14"),
        ({"migrates": False}, "tcp_migrate_req is 0"),
        ({"counted": False, "shared": False}, "does not count"),
        ({"shared": False}, "SO_REUSEPORT"),
        ({"followed": False}, "engine.shim"),
    ],
)
def test_what_is_not_there_is_the_reason(lacks: dict[str, Any], word: str) -> None:
    """Each in words that say what would help, or that nothing does."""
    assert word in (parking_refused(replace(ALL_WELL, **lacks)) or "")
