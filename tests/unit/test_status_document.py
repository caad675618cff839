"""The status document: everything of a status, null for unknown, and always JSON."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from examples import NOW_S, example_status, held_status, starting_status
from vllmd.model.decision import Hold, HoldReason, Verdict
from vllmd.model.server import ServerState
from vllmd.model.status import Status
from vllmd.report.status_json import degraded, health, status_document


def instance(status: Status) -> dict[str, Any]:
    """Return the instance's part of the document, as it comes out of JSON."""
    text = json.dumps(status_document(status), allow_nan=False)
    (found,) = json.loads(text)["instances"]
    return dict(found)


def test_document_says_what_when_and_where() -> None:
    """The outer object names its schema, its time in RFC 3339, the host and vllmd's version."""
    document = status_document(example_status())
    about = {key: document[key] for key in ("schema", "time", "host", "vllmd")}
    assert about == {"schema": "vllmd.status/v1", "time": "2026-09-24T17:16:48Z", "host": "gpu7", "vllmd": "0.1.0"}


def test_state_and_process() -> None:
    """State, modes, generation, pid and the start of the state are plain fields."""
    found = instance(example_status())
    assert (found["state"], found["generation"], found["pid"]) == ("serving", 7, 41877)
    assert found["mode"] == {"memory": "active", "latency": "advisory"}
    assert found["since"] == "2026-09-24T16:48:28Z"


def test_target_has_bounds_and_verdict() -> None:
    """A target tells bounds, share, observations and verdict."""
    ttft = instance(example_status())["slo"][0]
    assert (ttft["name"], ttft["now_low_seconds"], ttft["now_high_seconds"]) == ("ttft_p95", 0.5, 0.75)
    assert (ttft["attained_low"], ttft["observations"], ttft["verdict"]) == (0.987, 3720, "met")


def test_quantile_beyond_the_last_bucket_is_null() -> None:
    """A bound that is infinite is null: JSON has no infinity."""
    assessment = example_status().assessment
    assert assessment is not None
    beyond = replace(assessment, now=(replace(assessment.now[0], quantile_low_s=80.0, quantile_high_s=math.inf),))
    (target,) = instance(example_status(assessment=beyond))["slo"]
    assert (target["now_low_seconds"], target["now_high_seconds"]) == (80.0, None)


def test_unknown_is_null() -> None:
    """What is not known is null, never 0 and never left out."""
    found = instance(starting_status())
    unknown = ("generation", "pid", "model", "vllm", "load", "memory", "last_decision", "last_failure", "log")
    assert {key: found[key] for key in unknown} == dict.fromkeys(unknown)
    assert found["data"] == {"age_seconds": None, "missing_metrics": []}
    assert found["host_memory"] == {"total_bytes": None, "free_bytes": None}


def test_memory_names_who_is_not_ours() -> None:
    """A foreign process is named with its pid, its command and its bytes."""
    (gpu,) = instance(example_status())["memory"]
    assert gpu["foreign"] == [{"pid": 3120, "command": "python3", "bytes": 2_254_857_830}]
    assert gpu["ours_bytes"] == 132_000_000_000


def test_memory_has_the_parts_of_the_launch() -> None:
    """Weights, pool, peak, graphs and the rest on the GPU of the budget; null on another one."""
    (gpu,) = example_status().gpus or ()
    found, other = instance(example_status(gpus=(gpu, replace(gpu, index=1))))["memory"]
    assert (found["weights_bytes"], found["graphs_bytes"]) == (61 * 2**30, 1.3 * 2**30)
    assert 0 < found["other_bytes"] < 2**30
    assert (other["weights_bytes"], other["other_bytes"], other["free_bytes"]) == (None, None, gpu.free_bytes)


def test_others_are_null_where_one_may_be_ours() -> None:
    """Where the driver's pids are not ours to know, nobody is called foreign."""
    (gpu,) = example_status().gpus or ()
    hidden = replace(gpu, processes=tuple(replace(p, ours=False) for p in gpu.processes))
    (found,) = instance(example_status(gpus=(hidden,), memory=None))["memory"]
    assert (found["foreign"], found["ours_bytes"]) == (None, None)


def test_decision_has_outcome_and_verification() -> None:
    """A decision tells its changes, its reason, the outage and the effect."""
    first = instance(example_status())["decisions"][0]
    assert first["changes"] == [{"flag": "max-num-batched-tokens", "from": "8192", "to": "2048"}]
    assert (first["id"], first["trigger"], first["outage_seconds"]) == ("D19", "itl_p99", 85.0)
    told = {key: first["outcome"][key] for key in ("generation", "served", "outage_seconds", "start_seconds")}
    took = {"config": 21.0, "loading": 6.0}
    assert told == {"generation": 6, "served": True, "outage_seconds": 85.0, "start_seconds": took}
    assert first["outcome"]["restart"] == {
        "kind": "planned",
        "plain": None,
        "connections_held": 37,
        "most_held_at_once": 30,
        "longest_wait_seconds": 84.5,
        "requests_cut": 0,
        "requests_refused": 1,
    }
    assert first["verification"]["effect"] == "better"


def test_what_is_not_verified_yet_is_null() -> None:
    """A decision without an outcome has null for both."""
    last = instance(example_status())["decisions"][-1]
    assert (last["outcome"], last["verification"], last["outage_seconds"]) == (None, None, None)


def test_last_decision_that_is_a_change_carries_its_verification() -> None:
    """The last decision is told as fully as in the list."""
    status = example_status(last_decision=example_status().decisions[0].change)
    assert instance(status)["last_decision"]["verification"]["effect"] == "better"


def test_hold_has_its_reason() -> None:
    """A hold is a decision with a code and a sentence, and the time when it ends."""
    hold = Hold(HoldReason.COOLDOWN, "soaking D19", until_s=NOW_S + 60)
    last = instance(example_status(last_decision=hold))["last_decision"]
    assert (last["action"], last["reason"], last["message"]) == ("hold", "cooldown", "soaking D19")
    assert last["until"] == "2026-09-24T17:17:48Z"


def test_failure_has_class_line_and_numbers() -> None:
    """The last failure names its class, its log line and the numbers that it rests on."""
    failure = instance(held_status())["last_failure"]
    assert (failure["class"], failure["phase"], failure["exit_code"]) == ("utilization-too-high", "loading", 1)
    assert failure["evidence"]["line"] == 182
    assert failure["numbers"]["free_bytes"] == pytest.approx(125.1 * 2**30)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (ServerState.SERVING, "ok"),
        (ServerState.STARTING, "attention"),
        (ServerState.DRAINING, "attention"),
        (ServerState.BACKOFF, "attention"),
        (ServerState.HELD, "failed"),
        (ServerState.STOPPED, "stopped"),
    ],
)
def test_health_follows_the_state(state: ServerState, said: str) -> None:
    """Each state has one health."""
    assert health(example_status(state=state)) == said


def slipping() -> Status:
    """Return a status whose target slips."""
    assessment = example_status().assessment
    assert assessment is not None
    return example_status(assessment=replace(assessment, now=(replace(assessment.now[0], verdict=Verdict.SLIPPING),)))


@pytest.mark.parametrize(
    "status",
    [
        slipping(),
        example_status(data_at_s=NOW_S - 600),
        example_status(missing_metrics=("itl",)),
        example_status(budget=replace(example_status().budget, breaker_open=True)),
    ],
    ids=["slipping", "blind", "missing metrics", "breaker open"],
)
def test_serving_can_be_degraded(status: Status) -> None:
    """A server that serves needs attention when a target slips, data is old or missing, or the breaker is open."""
    assert degraded(status)
    assert health(status) == "attention"
