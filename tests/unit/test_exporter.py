"""The exporter's pure parts: from a status to series, what is counted, and the two checks."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from examples import NOW_S, example_change, example_status, starting_status
from vllmd.errors import VllmdError
from vllmd.model.canary import CanaryResult
from vllmd.model.decision import Effect, HoldReason, Verification
from vllmd.model.flags import BATCHED_TOKENS, MAX_NUM_SEQS
from vllmd.model.handover import Handover, Handovers, RestartKind
from vllmd.model.live import Knob, Live
from vllmd.model.orders import Pause
from vllmd.model.server import ServerState
from vllmd.model.snapshot import Gpu, GpuProcess
from vllmd.model.status import DecisionRecord, FlagStatus, LiveStatus, StartFacts, Status
from vllmd.report.address import parse_address
from vllmd.report.exporter import InstanceCollector, health, readiness
from vllmd.report.publication import Publication
from vllmd.report.samples import LABEL_LIMIT
from vllmd.report.series import families

Series = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def series(*statuses: Status, now_s: float = NOW_S, since_s: float = 0.0) -> Series:
    """Return every series after these statuses were published one after the other."""
    publication = Publication(since_s)
    for status in statuses:
        publication.set(status)
    published = publication.latest()
    assert published is not None
    samples = [sample for family in families(published, now_s) for sample in family.samples]
    return {(s.name.removeprefix("vllmd_"), frozenset(s.labels.items())): s.value for s in samples}


def value(found: Series, name: str, **labels: str) -> float | None:
    """Return the value of one series of the instance, None if it is absent."""
    return found.get((name, frozenset({"name": "qwen", **labels}.items())))


def of(found: Series, name: str) -> list[dict[str, str]]:
    """Return the labels of every series of one name."""
    return [dict(labels) for series_name, labels in found if series_name == name]


def test_state_is_one_hot() -> None:
    """Exactly the state that holds is 1, and every other state has a series of 0."""
    found = series(example_status())
    states = {state: value(found, "engine_state", state=state) for state in ServerState}
    assert states.pop(ServerState.SERVING) == 1
    assert set(states.values()) == {0}


def test_every_hold_reason_has_a_series() -> None:
    """A reason that never came is 0, not absent: a panel of it is never empty."""
    found = series(example_status())
    assert {labels["by"] for labels in of(found, "suppressed_total")} == {reason.value for reason in HoldReason}
    assert value(found, "suppressed_total", by="targets_met") == 12


def test_every_end_of_a_canary_has_a_series() -> None:
    """What never happened is 0: an alert on silent ones has something to count from."""
    found = series(example_status(canaries={"answered": 3}))
    assert {labels["result"] for labels in of(found, "canary_total")} == {result.value for result in CanaryResult}
    assert value(found, "canary_total", result="answered") == 3
    assert value(found, "canary_total", result="silent") == 0


def test_unknown_is_absent() -> None:
    """What is not known has no series; it is never told as 0."""
    found = series(starting_status())
    for name in ("generation", "data_age_seconds", "start_expected_seconds"):
        assert value(found, name) is None
    assert not of(found, "gpu_memory_bytes")
    assert not of(found, "slo_limit_seconds")


def test_ages_are_those_of_the_scrape() -> None:
    """The age of the data grows between two statuses: it is computed when Prometheus asks."""
    found = series(example_status(), now_s=NOW_S + 100)
    assert value(found, "data_age_seconds") == pytest.approx(104)
    assert value(found, "engine_state_seconds") == pytest.approx(1800)


def test_a_pause_has_its_beginning() -> None:
    """A pause is 1 with the time it began; without one the time is absent."""
    found = series(example_status(pause=Pause(NOW_S - 60, None, "root")))
    assert (value(found, "paused"), value(found, "paused_since_timestamp_seconds")) == (1, NOW_S - 60)
    found = series(example_status())
    assert (value(found, "paused"), value(found, "paused_since_timestamp_seconds")) == (0, None)


def test_target_has_bounds_share_and_verdict() -> None:
    """A target is told with its limit, both bounds of quantile and share, and its verdict."""
    found = series(example_status())
    assert value(found, "slo_limit_seconds", slo="itl_p99") == 0.1
    assert value(found, "slo_quantile_seconds", slo="itl_p99", bound="low") == 0.05
    assert value(found, "slo_quantile_seconds", slo="itl_p99", bound="high") == 0.075
    assert value(found, "slo_share_ratio", slo="itl_p99", bound="low") == 0.9993
    assert value(found, "slo_verdict", slo="itl_p99", verdict="met") == 1
    assert value(found, "slo_verdict", slo="itl_p99", verdict="slipping") == 0


def test_flags_are_numbers_where_they_can_be() -> None:
    """Numbers with vLLM's suffixes and switches are values; texts stand in the info series only."""
    flags = (
        FlagStatus("max-num-batched-tokens", "8k", "8192"),
        FlagStatus("enforce-eager", True, None),  # noqa: FBT003 - a switch that is on
        FlagStatus("dtype", "bfloat16", "auto"),
    )
    found = series(example_status(flags=flags))
    assert value(found, "flag_value", flag="max-num-batched-tokens") == 8000
    assert value(found, "flag_value", flag="enforce-eager") == 1
    assert value(found, "flag_value", flag="dtype") is None
    assert value(found, "flag_baseline", flag="enforce-eager") is None
    assert value(found, "flag_info", flag="dtype", value="bfloat16", baseline="auto", decision="") == 1
    assert value(found, "flags_off_baseline") == 3


def test_unset_batched_tokens_are_those_of_the_log() -> None:
    """What the command does not set has the value that the start log told."""
    status = example_status(
        flags=(FlagStatus("max-num-batched-tokens", None, None),), start=StartFacts(batched_tokens=8192)
    )
    assert value(series(status), "flag_value", flag="max-num-batched-tokens") == 8192


def test_gpu_memory_of_others_is_told_apart() -> None:
    """Memory of our processes and of others are different series."""
    found = series(example_status())
    assert value(found, "gpu_memory_bytes", gpu="0", kind="foreign") == 2_254_857_830
    assert value(found, "gpu_memory_bytes", gpu="0", kind="ours") == 132_000_000_000


def test_gpu_memory_of_the_launch_is_told_by_part() -> None:
    """Every part is a kind; with others and what is free they add up to the whole."""
    found = series(example_status())
    kinds = ("weights", "kv_cache", "activation", "non_torch", "graphs", "foreign", "free", "unexplained")
    parts = [value(found, "gpu_memory_bytes", gpu="0", kind=kind) or 0.0 for kind in kinds]
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(150_754_820_096)


def test_gpu_memory_that_the_driver_hides_is_absent() -> None:
    """One process of unknown size makes the sum unknown."""
    processes = (GpuProcess(1, None, "a", ours=False), GpuProcess(2, 5, "b", ours=True))
    found = series(example_status(gpus=(Gpu(0, "u", "n", 100, 50, processes),)))
    assert value(found, "gpu_memory_bytes", gpu="0", kind="foreign") is None
    assert value(found, "gpu_memory_bytes", gpu="0", kind="ours") == 5


def test_budget_left() -> None:
    """A budget is told as the share that is left; nothing is left of a budget of 0."""
    status = example_status(
        budget=replace(example_status().budget, restarts_hour=1, restarts_day=0, restarts_day_limit=0)
    )
    found = series(status)
    assert value(found, "budget_remaining_ratio", budget="restarts_per_hour") == 0.5
    assert value(found, "budget_remaining_ratio", budget="restarts_per_day") == 0
    assert value(found, "breaker_open") == 0


def test_decisions_are_bounded_in_number_and_age() -> None:
    """Only the last 20 decisions of the last 24 hours are series: they cannot pile up in Prometheus."""
    many = tuple(DecisionRecord(example_change(n, age_s=86_400.0 * 2 - n * 3600)) for n in range(1, 41))
    found = series(example_status(decisions=many))
    ids = {labels["id"] for labels in of(found, "decision_timestamp_seconds")}
    assert ids == {f"D{n}" for n in range(24, 41)}


def test_decision_tells_change_and_reason() -> None:
    """A decision's labels are what its annotation shows."""
    labels = next(x for x in of(series(example_status()), "decision_timestamp_seconds") if x["id"] == "D19")
    assert labels["change"] == "max-num-batched-tokens 8192 -> 2048"
    assert labels["reason"].startswith("itl_p99 slips")


def test_a_decision_is_counted_once() -> None:
    """The same decision in many statuses counts once, and stays counted when it left the status."""
    with_it = example_status(decisions=(DecisionRecord(example_change()),))
    found = series(with_it, with_it, example_status(decisions=()))
    assert value(found, "decisions_total", trigger="itl_p99", action="restart") == 1


def test_a_verification_is_counted_once_when_it_comes() -> None:
    """A verification that comes after its decision is counted once, under its effect."""
    before = DecisionRecord(example_change())
    after = replace(before, verification=Verification("D19", NOW_S, Effect.WORSE, "slower"))
    later = example_status(decisions=(after,))
    found = series(example_status(decisions=(before,)), later, later)
    assert value(found, "verifications_total", effect="worse") == 1
    assert value(found, "verifications_total", effect="better") == 0


def test_decisions_of_an_earlier_daemon_are_not_counted() -> None:
    """What an earlier daemon decided is shown, and not counted again."""
    found = series(example_status(decisions=(DecisionRecord(example_change(age_s=600)),)), since_s=NOW_S - 60)
    assert not of(found, "decisions_total")
    assert of(found, "decision_timestamp_seconds")


def page(status: Status) -> str:
    """Return the text that Prometheus would scrape."""
    publication = Publication()
    publication.set(status)
    registry = CollectorRegistry()
    registry.register(InstanceCollector(publication, lambda: NOW_S))
    return generate_latest(registry).decode()


@given(st.text())
def test_text_in_labels_cannot_add_series(hostile: str) -> None:
    """Whatever text reaches a label, the page parses to the same series and the label stays short."""
    change = example_change(reason=hostile, trigger=hostile)
    status = example_status(decisions=(DecisionRecord(change),), model=hostile)
    parsed = [s for family in text_string_to_metric_families(page(status)) for s in family.samples]
    assert len(parsed) == len(series(status))
    reason = next(s.labels["reason"] for s in parsed if s.name == "vllmd_decision_timestamp_seconds")
    assert len(reason) <= LABEL_LIMIT
    assert reason.isprintable()


def test_page_before_the_first_status_is_empty() -> None:
    """A scrape before the loop has published finds no series of the instance."""
    registry = CollectorRegistry()
    registry.register(InstanceCollector(Publication()))
    assert generate_latest(registry) == b""


@pytest.mark.parametrize(("age_s", "good"), [(None, False), (0.0, True), (30.0, True), (31.0, False)])
def test_health_is_the_loops(age_s: float | None, *, good: bool) -> None:
    """The daemon is healthy while its loop has published within 30 seconds."""
    assert health(age_s)[0] is good


@pytest.mark.parametrize("state", [None, *ServerState])
def test_ready_is_serving_only(state: ServerState | None) -> None:
    """Only a server that serves is ready, and the answer says what it does instead."""
    good, words = readiness(state)
    assert good is (state is ServerState.SERVING)
    assert words == (state or "unknown")


def test_age_of_a_publication_is_by_the_monotonic_clock() -> None:
    """The age is how long ago the last status came."""
    times = iter([100.0, 107.0])
    publication = Publication(monotonic=lambda: next(times))
    assert publication.age_s() is None
    publication.set(example_status())
    assert publication.age_s() == 7.0


@pytest.mark.parametrize(
    ("address", "parsed"),
    [("127.0.0.1:9842", ("127.0.0.1", 9842)), ("[::1]:80", ("::1", 80)), (":9842", ("", 9842)), ("h:0", ("h", 0))],
)
def test_address_is_host_and_port(address: str, parsed: tuple[str, int]) -> None:
    """An address is HOST:PORT, an IPv6 one in brackets."""
    assert parse_address(address) == parsed


@pytest.mark.parametrize("address", ["", "9842", "host", "host:", "host:http", "host:70000", "::1:9842", "host:-1"])
def test_wrong_address_is_named(address: str) -> None:
    """An address that is none says where it is set and how it is written."""
    with pytest.raises(VllmdError, match=r"\[listen\] metrics"):
        parse_address(address)


def test_restarts_are_told_by_kind_with_what_they_meant() -> None:
    """Every kind has a series, sums begin at 0, and the last restart has its own gauges."""
    found = series(example_status())
    kinds = {kind.value: value(found, "restarts_total", kind=kind.value) for kind in RestartKind}
    assert kinds == {"gated": 0, "planned": 1, "plain": 0}
    sums = [value(found, f"{name}_total") for name in ("connections_held", "requests_cut", "requests_refused")]
    assert sums == [37, 0, 1]
    assert value(found, "restart_held_connections") == 30
    assert value(found, "restart_longest_wait_seconds") == 84.5


def test_before_a_restart_nothing_is_told_of_the_last_one() -> None:
    """No wait is not a wait of 0 s; the sums are there all the same."""
    found = series(example_status(handovers=Handovers()))
    assert value(found, "restart_longest_wait_seconds") is None
    assert value(found, "requests_cut_total") == 0
    plain = series(example_status(handovers=Handovers().with_one(Handover(plain="a UNIX socket"))))
    assert value(plain, "restart_held_connections") is None
    assert value(plain, "restarts_total", kind="plain") == 1


def test_live_values_are_told_as_launched_asked_and_in_force() -> None:
    """A flag that is off has no values; what nobody asked for is what was launched."""
    found = series(example_status())
    told = {
        kind: value(found, "live_value", flag=BATCHED_TOKENS, kind=kind) for kind in ("launched", "asked", "in_force")
    }
    assert told == {"launched": 2048, "asked": 1024, "in_force": 1024}
    assert [value(found, "flag_live", flag=flag) for flag in (BATCHED_TOKENS, MAX_NUM_SEQS)] == [1, 0]
    assert not [labels for labels in of(found, "live_value") if labels["flag"] == MAX_NUM_SEQS]
    launched = LiveStatus(Live({MAX_NUM_SEQS: Knob("", 64, None, None, 64)}), plain_restart="a UNIX socket")
    found = series(example_status(live=launched))
    assert value(found, "live_value", flag=MAX_NUM_SEQS, kind="asked") == 64
    assert value(found, "restart_plain") == 1
    assert value(found, "requests_in_flight") is None
    assert value(found, "engine_steps_total") is None


def test_steps_and_requests_are_told() -> None:
    """Steps, what the shim takes of them, the silence since the last one, and what is being answered."""
    found = series(example_status())
    assert value(found, "engine_steps_total") == 5000
    assert value(found, "shim_overhead_seconds_total") == 0.04
    assert value(found, "engine_silent_seconds") == 0.01
    assert value(found, "engine_longest_step_seconds") == 0.25
    assert value(found, "requests_in_flight") == 43
    assert value(series(example_status(live=None)), "restart_plain") is None
