"""The simulated scheduler and its step times, in virtual time."""

from dataclasses import replace

import pytest

from vllmd_sim.host import Host
from vllmd_sim.scheduler import Limits, Request, Scheduler, Step, StepClock

ROOMY = Limits(budget=512, sequences=64, pool=1_000_000)


def scheduler_of(limits: Limits, *requests: Request) -> Scheduler:
    """Return a scheduler with these requests in its queue."""
    scheduler = Scheduler(limits)
    for request in requests:
        scheduler.add(request)
    return scheduler


def planned(scheduler: Scheduler) -> Step:
    """Return the next step, which must exist."""
    step = scheduler.plan(0.0)
    assert step is not None
    return step


def shares(step: Step) -> dict[str, int]:
    """Return how many tokens of each request a step computes."""
    return {chunk.request.id: chunk.tokens for chunk in step.chunks}


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    """The first token comes with the last chunk."""
    scheduler = scheduler_of(ROOMY, Request("a", 1200, 3))
    seen = []
    for _ in range(3):
        step = planned(scheduler)
        seen.append((step.tokens, len(scheduler.finish(step))))
    assert seen == [(512, 0), (512, 0), (176, 1)]


def test_decodes_come_before_prefills() -> None:
    """Running answers keep their token a step; the prompt gets what the budget leaves."""
    scheduler = scheduler_of(ROOMY, Request("a", 10, 9), Request("b", 20, 9))
    scheduler.finish(planned(scheduler))
    scheduler.add(Request("long", 5000, 9))
    assert shares(planned(scheduler)) == {"a": 1, "b": 1, "long": 510}


def test_without_chunking_a_prompt_is_computed_whole() -> None:
    """A prompt waits for a step that takes all of it."""
    scheduler = scheduler_of(replace(ROOMY, chunked=False), Request("a", 400, 2), Request("b", 200, 2))
    first = planned(scheduler)
    scheduler.finish(first)
    assert shares(first) == {"a": 400}
    assert shares(planned(scheduler)) == {"a": 1, "b": 200}


def test_sequences_are_limited() -> None:
    """The rest waits, first come, first served."""
    scheduler = scheduler_of(replace(ROOMY, sequences=2), *(Request(name, 5, 1) for name in "abc"))
    step = planned(scheduler)
    assert list(shares(step)) == ["a", "b"]
    scheduler.finish(step)
    assert list(shares(planned(scheduler))) == ["c"]


def test_a_long_prefill_leaves_room_for_another() -> None:
    """Above the threshold a prompt gets only the threshold, unless it is alone."""
    limits = replace(ROOMY, long_prefill=100)
    assert shares(planned(scheduler_of(limits, Request("a", 400, 1)))) == {"a": 400}
    assert shares(planned(scheduler_of(limits, Request("a", 400, 1), Request("b", 50, 1)))) == {"a": 100, "b": 50}


def test_a_full_pool_preempts_the_latest_and_loses_no_token() -> None:
    """The victim is computed again from its prompt and what it had generated; every answer is complete."""
    limits = replace(ROOMY, pool=100)
    requests = [Request("a", 40, 30), Request("b", 40, 30)]
    scheduler = scheduler_of(limits, *requests)
    preemptions, recomputed = 0, False
    for _ in range(200):
        step = scheduler.plan(0.0)
        if step is None:
            break
        preemptions += len(step.preempted)
        recomputed |= any(c.tokens > 1 and c.request.generated for c in step.chunks)
        scheduler.finish(step)
        assert scheduler.used <= limits.pool
    assert preemptions >= 1
    assert recomputed
    assert [request.generated for request in requests] == [30, 30]
    assert scheduler.used == 0


def test_the_watermark_holds_back_admission_only() -> None:
    """A prompt that would eat the reserve waits while others run, and starts when it is alone."""
    limits = replace(ROOMY, pool=100, watermark=0.5)
    scheduler = scheduler_of(limits, Request("a", 40, 2), Request("b", 40, 2))
    step = planned(scheduler)
    assert list(shares(step)) == ["a"]
    scheduler.finish(step)
    scheduler.finish(planned(scheduler))
    assert list(shares(planned(scheduler))) == ["b"]


def test_an_aborted_request_is_forgotten() -> None:
    """Waiting or running, also in the middle of a step."""
    scheduler = scheduler_of(ROOMY, Request("a", 10, 5), Request("b", 10, 5))
    step = planned(scheduler)
    scheduler.abort("a")
    assert [request.id for request in scheduler.finish(step)] == ["b"]
    scheduler.abort("b")
    assert scheduler.plan(0.0) is None


def test_a_step_takes_what_the_formula_says() -> None:
    """6 ms and 28 us a token for a prompt, plus what its attention and the KV of decodes cost."""
    clock = StepClock(Host(q_s_per_pair=0.0))
    prompt = planned(scheduler_of(replace(ROOMY, budget=8192), Request("a", 8192, 1)))
    assert clock.seconds(prompt) == pytest.approx(0.006 + 8192 * 28e-6)
    scheduler = scheduler_of(replace(ROOMY, budget=8192), Request("a", 4000, 9))
    scheduler.finish(planned(scheduler))
    assert clock.seconds(planned(scheduler)) == pytest.approx(0.006 + 28e-6 + 4000 * 34e-9)
    pairs = StepClock(Host(c0_s=0.0, a_s_per_token=0.0, q_s_per_pair=1e-6))
    assert pairs.seconds(prompt) == pytest.approx(8192 * 4096 * 1e-6)


def test_noise_is_reproducible() -> None:
    """The same seed gives the same times."""
    step = planned(scheduler_of(ROOMY, Request("a", 100, 1)))
    noisy = Host(noise=0.1, seed=3)
    one, two = StepClock(noisy), StepClock(noisy)
    times = [one.seconds(step) for _ in range(5)]
    assert times == [two.seconds(step) for _ in range(5)]
    assert len(set(times)) == 5


def itl_p99(budget: int) -> float:
    """Return the p99 gap between tokens under 6 prompts of 3,000 tokens a second with answers of 150."""
    scheduler = Scheduler(replace(ROOMY, budget=budget))
    clock, now_s, arrivals = StepClock(Host()), 0.0, [i / 6 for i in range(60)]
    last: dict[str, float] = {}
    gaps = []
    while arrivals or scheduler.running or scheduler.waiting:
        while arrivals and arrivals[0] <= now_s:
            scheduler.add(Request(f"{arrivals.pop(0)}", 3000, 150))
        step = scheduler.plan(now_s)
        if step is None:
            now_s = arrivals[0]
            continue
        now_s += clock.seconds(step)
        for request in scheduler.finish(step):
            if request.id in last:
                gaps.append(now_s - last[request.id])
            last[request.id] = now_s
    return sorted(gaps)[int(len(gaps) * 0.99)]


def test_inter_token_latency_falls_with_the_budget() -> None:
    """512 batched tokens bring the p99 near 25 ms, 2048 near 70, 8192 lets a whole prompt stand in the way."""
    small, middle, large = itl_p99(512), itl_p99(2048), itl_p99(8192)
    assert small < 0.035 < middle < 0.085 < large
