"""Requests to the server: one that proves that it serves, and long ones that keep it busy."""

import threading
import time

import httpx

from simulated import NAME

_BUSY_TOKENS = 20_000  # minutes of work for the simulated engine
_BUSY_LIMIT_S = 60.0
_BUSY_WITHIN_S = 3.0
_WAITING_LIMIT_S = 600.0  # more than any restart takes: who waits for so long waits for ever
_PROOF_LIMIT_S = 3.0


def answers(url: str) -> bool:
    """Whether a completion succeeds now."""
    return _ask(url, 2, _PROOF_LIMIT_S)


def begin_asking(url: str) -> threading.Thread:
    """Begin one short request, which may wait for a whole restart; the thread ends with its answer, or without one."""
    thread = threading.Thread(target=_ask, args=(url, 2, _WAITING_LIMIT_S), daemon=True)
    thread.start()
    return thread


def keep_busy(url: str, requests: int = 2) -> bool:
    """Begin long requests, which end with the server at the latest; return whether they run."""
    for _ in range(requests):
        threading.Thread(target=_ask, args=(url, _BUSY_TOKENS, _BUSY_LIMIT_S), daemon=True).start()
    deadline_s = time.monotonic() + _BUSY_WITHIN_S
    while _running(url) < requests:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)  # a metrics page sends no event
    return True


def _ask(url: str, tokens: int, limit_s: float) -> bool:
    body = {"model": NAME, "prompt": "x" * 40, "max_tokens": tokens, "ignore_eos": True}
    try:
        return httpx.post(f"{url}/v1/completions", json=body, timeout=limit_s).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _running(url: str) -> float:
    try:
        page = httpx.get(f"{url}/metrics", timeout=_PROOF_LIMIT_S).text
    except httpx.HTTPError:
        return 0.0
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith("vllm:num_requests_running"))
