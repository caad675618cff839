"""The policies for the host: its memory, and vLLM's own deadline of a start."""

import json
from dataclasses import replace

import pytest

from captures import GIB, failure_of, situation
from vllmd.decide.gates import GateFacts
from vllmd.decide.recover import CrashRecord, decide_recovery
from vllmd.model.decision import Hold, HoldReason, Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import UTILIZATION, Flags, FlagValue
from vllmd.model.host_facts import HostFacts
from vllmd.model.options import Catalogue
from vllmd.model.settings import Budget, Guard, Mode
from vllmd_policies.host_oom import host_oom
from vllmd_policies.start_deadline import start_deadline

KILLED = failure_of(FailureClass.HOST_OOM)
COMPILING = replace(failure_of(FailureClass.HOST_OOM, numbers={"weights_bytes": 44.1 * GIB}), cause="compiling")
TIER = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 549755813888}}


def late(**numbers: float) -> Failure:
    """Return a start that missed vLLM's deadline."""
    return replace(failure_of(FailureClass.INFRA_FAULT, numbers=numbers), cause="deadline")


@pytest.mark.parametrize(
    ("host", "jobs"),
    [
        (HostFacts(unified_memory=True, host_total_gib=121), "4"),
        (HostFacts(unified_memory=True, host_total_gib=80), "2"),
        (HostFacts(host_total_gib=30), "1"),
        (HostFacts(memory_limit_gib=8), "1"),
        (HostFacts(environ={"MAX_JOBS": "4"}), "2"),
        (HostFacts(), "4"),
    ],
)
def test_fewer_compilers_run_at_once(host: HostFacts, jobs: str) -> None:
    """Eight GiB each, beside the weights where the memory is one, and fewer than were too many."""
    wish = host_oom(situation(COMPILING, host=host, supervised=False))
    assert wish is not None
    assert (wish.wish, wish.env, dict(wish.changes)) == (Wish.SET_ENV, {"MAX_JOBS": jobs}, {})


def test_a_tier_in_host_memory_is_halved() -> None:
    """The rest of the connector's configuration stays."""
    wish = host_oom(situation(KILLED, {"kv-transfer-config": json.dumps(TIER)}, supervised=False))
    assert wish is not None
    changed = json.loads(str(wish.changes["kv-transfer-config"]))
    assert changed["kv_connector"] == "OffloadingConnector"
    assert changed["kv_connector_extra_config"] == {"cpu_bytes_to_use": 274877906944}


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"kv-transfer-config": "no JSON"},
        {"kv-transfer-config": "[1]"},
        {"kv-transfer-config": '{"kv_connector_extra_config": {"cpu_bytes_to_use": "all"}}'},
    ],
)
def test_without_a_flag_that_takes_it_the_limit_is_the_operators(flags: dict[str, FlagValue]) -> None:
    """No flag of the GPU's memory is touched."""
    wish = host_oom(situation(KILLED, flags, supervised=False, host=HostFacts(memory_limit_gib=16)))
    assert wish is not None
    assert (wish.wish, dict(wish.changes)) == (Wish.STOP, {})
    assert "raise the limit of 16 GiB" in wish.reason


def test_a_utilization_next_to_nothing_is_not_lowered_to_nothing() -> None:
    """Half of the smallest number is 0, which is no utilization."""
    bounds, host = {UTILIZATION: (None, None)}, HostFacts(unified_memory=True)
    wish = host_oom(situation(KILLED, {UTILIZATION: "5e-324"}, bounds=bounds, host=host))
    assert wish is not None
    assert wish.wish is Wish.STOP


def test_a_flag_that_takes_host_memory_is_halved() -> None:
    """Where several do, the one that costs least."""
    wish = host_oom(situation(KILLED, {"cpu-offload-gb": "8", "swap-space": "16"}, supervised=False))
    assert wish is not None
    assert wish.changes == {"swap-space": "8"}


@pytest.mark.parametrize(
    ("failure", "environ", "seconds"),
    [
        (late(shards=163, shard_s=5.63), {}, "1800"),
        (late(shards=4, shard_s=1.0), {}, "1200"),
        (late(), {}, "1800"),
        (late(shards=163, shard_s=5.63), {"VLLM_ENGINE_READY_TIMEOUT_S": "1800"}, "3600"),
    ],
)
def test_the_deadline_holds_all_shards_at_the_speed_seen(
    failure: Failure, environ: dict[str, str], seconds: str
) -> None:
    """What is left to load, what follows it, half as much again, and at least twice the present one."""
    wish = start_deadline(situation(failure, host=HostFacts(environ=environ)))
    assert wish is not None
    assert wish.env == {"VLLM_ENGINE_READY_TIMEOUT_S": seconds}


def test_the_daemon_holds_what_only_a_variable_helps() -> None:
    """It says which, and that it does not set it."""
    here = situation(late())
    facts = GateFacts(Flags(), Guard(), Budget(), Catalogue({}), 0.0)
    hold = decide_recovery(here, late(), (start_deadline,), facts, Mode.ACTIVE, CrashRecord(1, ()))
    assert isinstance(hold, Hold)
    assert hold.reason is HoldReason.OPERATOR
    assert "VLLM_ENGINE_READY_TIMEOUT_S=1800; vllmd does not change the server's environment" in hold.message


def test_other_failures_are_not_their_business() -> None:
    """Each looks at its own kind only."""
    assert host_oom(situation(late())) is None
    assert start_deadline(situation(KILLED)) is None
