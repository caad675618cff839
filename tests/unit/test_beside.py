"""Whether the next server can be prepared beside the serving one, and why not."""

from typing import Any

import pytest

from vllmd.act.beside import Room, beside_refused, local_ranks, room_on_host
from vllmd.model.flags import Flags
from vllmd.model.live import Gate

GIB = 2**30
ALL_WELL: dict[str, Any] = {
    "flags": Flags((("tensor-parallel-size", "2"), ("distributed-executor-backend", "mp"))),
    "plain": None,
    "gate": Gate(passed=2),
    "room": Room(free_bytes=8 * GIB, held_bytes=6 * GIB, tasks_a_core=2.0),
}


def test_it_can_where_all_is_there() -> None:
    """The port can be parked, the workers came through the gate, and there is room."""
    assert beside_refused(**ALL_WELL) is None


@pytest.mark.parametrize(
    ("lacks", "word"),
    [
        ({"plain": "4 API servers listen"}, "4 API servers"),
        ({"gate": Gate(off="this vLLM has no such place")}, "no such place"),
        ({"gate": Gate()}, "no worker"),
        ({"gate": Gate(passed=1, off="one of them")}, "one of them"),
        ({"flags": Flags((("nnodes", "2"),))}, "--nnodes"),
        ({"flags": Flags((("distributed-executor-backend", "ray"),))}, "--distributed-executor-backend"),
        ({"flags": Flags((("kv-transfer-config", "{}"),))}, "--kv-transfer-config"),
        ({"flags": Flags((("tensor-parallel-size", "32"),))}, "32 workers"),
        ({"room": Room(7 * GIB - 1, 6 * GIB, 2.0)}, "7.0 GiB are free on the host, the server holds 6.0"),
        ({"room": Room(8 * GIB, 6 * GIB, 10.5)}, "processors are busy"),
    ],
)
def test_what_is_not_there_is_the_reason(lacks: dict[str, Any], word: str) -> None:
    """Each in words that an operator can act on."""
    assert word in (beside_refused(**{**ALL_WELL, **lacks}) or "")


def test_a_launch_has_a_worker_for_each_part_of_the_model() -> None:
    """Tensor parallelism times pipeline parallelism; one where neither is asked for."""
    both = Flags((("tensor-parallel-size", "2"), ("pipeline-parallel-size", "3")))
    assert (local_ranks(both), local_ranks(Flags())) == (6, 1)


def test_the_host_is_read() -> None:
    """Some memory is free, a server without processes holds none, and the load is no negative number."""
    room = room_on_host(())
    assert room.free_bytes > 0
    assert (room.held_bytes, room.tasks_a_core >= 0) == (0, True)
