"""Who may do what on the control socket."""

import pytest

from vllmd.report.control import Peer, allowed

SERVICE, GROUP = 990, 991


@pytest.mark.parametrize(
    ("peer", "may_read", "may_change"),
    [
        (Peer(1, 0, 0), True, True),
        (Peer(1, SERVICE, SERVICE), True, True),
        (Peer(1, 1000, GROUP), True, False),
        (Peer(1, 1000, 1000, frozenset({27, GROUP})), True, False),
        (Peer(1, 1000, 1000, frozenset({27})), False, False),
        (Peer(1, 1000, 0), False, False),
    ],
    ids=["root", "the service's user", "primary group", "supplementary group", "stranger", "group root"],
)
def test_reading_is_for_the_group_changing_for_root_and_the_service(
    peer: Peer, *, may_read: bool, may_change: bool
) -> None:
    """Root and the service's user may everything, the socket's group may read, others nothing."""
    assert allowed(peer, SERVICE, GROUP, changing=False) is may_read
    assert allowed(peer, SERVICE, GROUP, changing=True) is may_change
