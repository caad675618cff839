"""The loop begins beside a server that an earlier vllmd left: it is gone on with as it is, or ended."""

from dataclasses import replace

import pytest

from fakes import MemoryLedger
from house import ARGV, CATALOGUE, House, house, settings
from unit.test_loop import RUNTIME_OOM, SLO, begun, effects, serve
from vllmd.model.argv import parse_command
from vllmd.model.decision import Action, Change, Effect, Verification
from vllmd.model.server import Left, ServerState
from vllmd.model.settings import Engine, Slo
from vllmd.model.snapshot import Snapshot
from vllmd.supervisor import as_it_is
from vllmd_policies import BUILT_IN

NO_TARGETS = Slo()


def successor(first: House, *argv: str, left: Left | None = None, slo: Slo = NO_TARGETS) -> House:
    """Return the house of the daemon that comes after one that was killed, begun, over its ledger."""
    built = house(settings(slo), argv or ARGV, first.ledger)
    built.clock.at_s = first.clock.at_s + 1
    living = first.server.living
    built.server.left_behind = left or Left(living.generation if living else None)
    built.loop.begin(Snapshot(built.clock.at_s, 0, None, None))
    return built


def test_a_server_that_was_left_is_taken_over_without_a_launch() -> None:
    """Its generation and its flags go on; nothing is launched and nothing is decided."""
    second = successor(begun())
    assert second.state == ServerState.STARTING
    second.ready()
    assert second.state == ServerState.SERVING
    assert second.server.launches == []
    assert second.told[-1].generation == 1
    assert second.told[-1].launches == {}
    assert second.told[-1].pending == ()


def test_flags_that_were_moved_are_those_of_the_server_that_was_left() -> None:
    """A recovery of the daemon before stays in force, and the next one goes on from there."""
    first = begun()
    first.dies(0, *RUNTIME_OOM)
    first.ready()
    moved = first.flags
    assert moved != first.loop.supervisor.instance.baseline
    second = successor(first)
    second.ready()
    assert second.flags == moved
    second.dies(0, *RUNTIME_OOM)
    assert float(str(second.flags["gpu-memory-utilization"])) < float(str(moved["gpu-memory-utilization"]))


def test_a_secret_is_known_again_at_the_next_launch() -> None:
    """The ledger holds it masked; the launch that follows has the operator's own value."""
    argv = (*ARGV, "--api-key=s3cr3t-value")
    first = house(settings(NO_TARGETS), argv)
    first.loop.begin()
    first.ready()
    second = successor(first, *argv)
    second.ready()
    second.loop.restart()
    second.drained()
    assert "s3cr3t-value" in second.server.launches[-1].argv


def test_another_command_is_pending_until_the_next_launch() -> None:
    """What was moved off the old command is moved off the new one, too; what is the operator's is the new one's."""
    first = begun()
    first.dies(0, *RUNTIME_OOM)
    first.ready()
    moved = first.flags["gpu-memory-utilization"]
    second = successor(first, *ARGV[:-1], "--max-num-batched-tokens=4096", "--max-num-seqs=64")
    second.ready()
    assert second.flags["max-num-batched-tokens"] == "2048"
    assert set(second.told[-1].pending) == {"--max-num-batched-tokens", "--max-num-seqs"}
    second.loop.restart()
    second.drained()
    second.ready()
    assert second.flags["max-num-batched-tokens"] == "4096"
    assert second.flags["max-num-seqs"] == "64"
    assert second.flags["gpu-memory-utilization"] == moved
    assert second.told[-1].pending == ()


def test_another_model_is_pending_until_the_next_launch() -> None:
    """The server goes on with the old one, and that is said."""
    second = successor(begun(), "vllm", "serve", "another", *ARGV[3:])
    second.ready()
    assert second.told[-1].model == "model"
    assert second.told[-1].pending == ("the model",)
    second.loop.restart()
    second.drained()
    assert "another" in second.server.launches[-1].argv


def test_a_vllm_that_was_upgraded_under_the_server_is_said() -> None:
    """The status names the version that runs, and the one that the next launch will have."""
    first = begun()
    first.ledger.record(replace(first.server.launches[0], vllm="0.32.0"), first.clock.now_s())
    second = successor(first)
    second.ready()
    assert second.told[-1].vllm_version == "0.32.0"
    assert second.told[-1].pending == ("vLLM 0.33.0, which is installed now (it runs 0.32.0)",)


@pytest.mark.parametrize(
    ("argv", "left", "ledger"),
    [
        (ARGV, Left(problem="its end had been asked for"), None),
        (ARGV, None, MemoryLedger()),
        ((*ARGV, "--port=9000"), None, None),
    ],
    ids=["cannot be taken over", "is not in the ledger", "answers elsewhere"],
)
def test_what_cannot_be_gone_on_with_is_launched_anew(
    argv: tuple[str, ...], left: Left | None, ledger: MemoryLedger | None
) -> None:
    """The launch ends it first: never two servers."""
    first = begun()
    if ledger is not None:
        first.ledger = ledger
    second = successor(first, *argv, left=left)
    assert second.server.adopted == []
    assert len(second.server.launches) == 1


def test_where_the_ledger_was_lost_the_process_shows_its_flags() -> None:
    """What vllmd may move, it moved; what else is otherwise is the operator's, and pending. The ledger has it again."""
    first = begun()
    first.dies(0, *RUNTIME_OOM)
    first.ready()
    moved = first.flags["gpu-memory-utilization"]
    words = (*first.server.launches[-1].argv[1:], "--api-key=s3cr3t-value")
    first.ledger = MemoryLedger()
    second = successor(first, *ARGV, "--enable-sleep-mode", left=Left(2, words=words))
    second.ready()
    assert second.server.launches == []
    assert (second.flags["gpu-memory-utilization"], second.told[-1].generation) == (moved, 2)
    assert set(second.told[-1].pending) == {"--enable-sleep-mode", "--api-key"}
    stored = second.ledger.launch_of(2)
    assert stored is not None
    assert "s3cr3t-value" not in str(stored)
    third = successor(second)
    assert (third.flags["gpu-memory-utilization"], third.server.launches) == (moved, [])


def test_where_the_ledger_was_lost_another_address_is_still_seen() -> None:
    """A server that answers elsewhere cannot be watched, however it became known."""
    first = begun()
    first.ledger = MemoryLedger()
    second = successor(first, left=Left(1, words=(*ARGV[1:], "--port=9000")))
    assert len(second.server.launches) == 1


def test_an_end_whose_code_is_not_known_is_a_crash_like_any_other() -> None:
    """A server that was taken over is no child, so that its exit code is nobody's to know."""
    second = successor(begun())
    second.ready()
    second.dies(None, "nothing that says why")
    second.tick(after_s=60)
    assert len(second.server.launches) == 1
    assert second.told[-1].last_failure is not None


def test_a_change_that_soaked_when_vllmd_died_is_not_called_good() -> None:
    """What it brought cannot be told any more: it is unknown, and no other change is made on top of it."""
    first = begun()
    serve(first, share_slow=0.05, seconds=200)
    first.drained()
    first.ready()
    second = successor(first, slo=SLO)
    second.ready()
    assert effects(second) == [Effect.UNKNOWN]
    serve(second, share_slow=0.05, seconds=400)
    changes = [e for _, e in second.ledger.entries if isinstance(e, Change)]
    assert [c.action for c in changes] == [Action.RESTART]


def test_a_recovery_that_was_starting_when_vllmd_died_is_told_as_served() -> None:
    """The next daemon says what the launch of the one before it came to."""
    first = begun()
    first.dies(0, *RUNTIME_OOM)
    second = successor(first)
    second.ready()
    (verification,) = [e for _, e in second.ledger.entries if isinstance(e, Verification)]
    assert verification.effect is Effect.SERVING


def test_a_crash_loop_is_held_over_the_ends_of_vllmd() -> None:
    """What failed in the breaker's window counts, whichever daemon saw it; not what came before the operator's word."""
    first = begun()
    for _ in range(4):
        first.dies(1, "nothing that says why")
        first.tick(after_s=30)
        first.ready()
    second = successor(first)
    second.ready()
    second.dies(1, "nothing that says why")
    assert second.state == ServerState.HELD
    second.clock.at_s += 1
    second.loop.restart()
    second.ready()
    third = successor(second)
    third.ready()
    third.dies(1, "nothing that says why")
    assert third.state != ServerState.HELD


def test_a_reload_moves_what_follows_from_the_settings_with_the_next_launch() -> None:
    """VLLM's own drain is an option of its command: the server that runs keeps the one that it was launched with."""
    built = begun()
    supervisor = built.loop.supervisor
    chosen = replace(supervisor.instance.settings, engine=Engine(drain_timeout_s=15.0))
    asked = replace(supervisor.instance, settings=chosen, command=parse_command(ARGV, 2, CATALOGUE))
    built.loop.configure(asked, BUILT_IN, as_it_is)
    assert built.flags["shutdown-timeout"] == "60"
    assert built.told[-1].pending == ("--shutdown-timeout",)
    built.loop.restart()
    built.drained()
    assert built.flags["shutdown-timeout"] == "15"
    assert not built.told[-1].pending


REFUSED = "ValueError: max_num_seqs (7) is refused by this model."


def configure(built: House, *argv: str) -> None:
    """Let the operator write another command, and reload."""
    supervisor = built.loop.supervisor
    asked = replace(supervisor.instance, command=parse_command(argv, 2, CATALOGUE))
    built.loop.configure(asked, BUILT_IN, as_it_is)


def test_a_new_command_that_is_refused_is_not_taken_back_to_the_old_one() -> None:
    """What served before was another command's: nobody asked for it any more."""
    built = begun()
    configure(built, *ARGV, "--max-num-seqs=7")
    built.loop.restart()
    built.drained()
    built.dies(1, REFUSED)
    built.tick(after_s=600)
    assert built.flags["max-num-seqs"] == "7"


def test_no_masked_secret_comes_onto_a_command_line() -> None:
    """Neither of a key that the operator has taken away, nor of one that looks like a value that was moved."""
    argv = (*ARGV, "--api-key=s3cr3t-value")
    first = house(settings(NO_TARGETS), argv)
    first.loop.begin()
    first.ready()
    second = successor(first, *ARGV, "--max-num-seqs=7")
    second.ready()
    second.loop.restart()
    second.drained()
    second.dies(1, REFUSED)
    second.tick(after_s=600)
    assert not [launch.argv for launch in second.server.launches if "***" in launch.argv]


def test_a_trial_is_given_up_when_the_command_changes() -> None:
    """A rollback would bring the old command back."""
    first = begun()
    serve(first, share_slow=0.05, seconds=200)
    configure(first, *ARGV, "--max-num-seqs=64")
    first.drained()
    first.dies(1, REFUSED)
    first.tick(after_s=600)
    assert first.flags["max-num-seqs"] == "64"
    assert Effect.UNKNOWN in effects(first)


def test_crashes_of_a_clock_that_was_ahead_do_not_count() -> None:
    """What is recorded for next year is no failure of the last minutes."""
    first = begun()
    first.clock.at_s += 86400 * 365
    for _ in range(4):
        first.dies(1, "nothing that says why")
        first.tick(after_s=30)
        first.ready()
    first.clock.at_s -= 86400 * 365
    second = successor(first)
    second.ready()
    second.dies(1, "nothing that says why")
    assert second.state != ServerState.HELD
