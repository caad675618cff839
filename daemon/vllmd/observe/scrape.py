"""The server's /metrics page: fetched within a limit, reduced to what vllmd reads, parsed."""

import asyncio
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from vllmd.model.snapshot import Histogram, Metrics
from vllmd.observe import metric_names as names

# A page of an 8-engine server with LoRA labels is some 400 KB; far beyond that it is no metrics page.
PAGE_LIMIT_BYTES = 8 * 2**20
_ANSWER_LIMIT_BYTES = 1024  # of /is_paused, which answers some twenty
_PAUSED_TIMEOUT_S = 1.0  # of /is_paused: it is asked when a hang is near, whose finding must not wait for it

_FLAT = {
    spelling: own
    for table in (names.GAUGES, names.COUNTERS)
    for own, spellings in table.items()
    for spelling in spellings
}
_SERIES = {
    f"{spelling}{suffix}": (own, suffix)
    for own, spellings in names.HISTOGRAMS.items()
    for spelling in spellings
    for suffix in ("_bucket", "_sum", "_count")
}
_WANTED = frozenset((*_FLAT, *_SERIES, names.SLEEP_STATE, names.CACHE_CONFIG))


def parse_page(page: str) -> Metrics | None:
    """Return what a /metrics page says, summed over engines; None if it holds no series of vLLM.

    Lines that nothing here reads are dropped before the parser sees them: 2 ms instead of 18-27 for an 86 KB page.
    """
    kept = [line for line in page.splitlines() if line.split("{", 1)[0].split(" ", 1)[0] in _WANTED]
    if not kept:
        return None
    try:
        families = list(text_string_to_metric_families("\n".join(kept) + "\n"))
        return _collect(s for family in families for s in family.samples if math.isfinite(s.value))
    except (ValueError, KeyError):  # not the exposition format, or a bucket without its edge
        return None


def _collect(samples: Iterable[Sample]) -> Metrics:
    flat: defaultdict[str, list[float]] = defaultdict(list)
    buckets: defaultdict[str, defaultdict[float, float]] = defaultdict(lambda: defaultdict(float))
    sums: defaultdict[str, float] = defaultdict(float)
    info: Mapping[str, str] = {}
    awake: list[float] = []  # of each engine
    for sample in samples:
        if sample.name == names.CACHE_CONFIG:
            info = info or sample.labels
        elif sample.name == names.SLEEP_STATE:
            if sample.labels.get("sleep_state") == "awake":
                awake.append(sample.value)
        elif sample.name in _FLAT:
            flat[sample.name].append(sample.value)
        elif sample.name.endswith("_bucket"):
            buckets[sample.name[: -len("_bucket")]][float(sample.labels["le"])] += sample.value
        else:
            sums[sample.name] += sample.value
    gauges = _first_spelling(names.GAUGES, flat)
    counters = _first_spelling(names.COUNTERS, flat)
    histograms = {
        own: Histogram(tuple(sorted(buckets[s].items())), sums[f"{s}_count"], sums[f"{s}_sum"])
        for own, spellings in names.HISTOGRAMS.items()
        for s in [next((s for s in spellings if s in buckets), None)]
        if s is not None
    }
    wanted = (*names.GAUGES, *names.COUNTERS, *names.HISTOGRAMS)
    missing = tuple(n for n in wanted if n not in gauges and n not in counters and n not in histograms)
    if awake:
        gauges["awake"] = min(awake)
    return Metrics(gauges, counters, histograms, info, missing)


def _first_spelling(table: Mapping[str, tuple[str, ...]], flat: Mapping[str, list[float]]) -> dict[str, float]:
    """Return {own name: value} for each name of which the page has a spelling."""
    found: dict[str, float] = {}
    for own, spellings in table.items():
        values = next((flat[s] for s in spellings if s in flat), None)
        if values is not None:
            found[own] = max(values) if own in names.TIGHTEST else sum(values)
    return found


def _paused(answer: bytes) -> bool | None:
    """Return what the JSON of /is_paused says: {"is_paused": true} (entrypoints/serve/rlhf/api_router.py, 0.14)."""
    try:
        said = json.loads(answer)
    except ValueError:
        return None
    paused = said.get("is_paused") if isinstance(said, dict) else None
    return paused if isinstance(paused, bool) else None


class HttpScraper:
    """Scrapes one server over HTTP."""

    def __init__(self, url: str, timeout_s: float = 4.0) -> None:
        self._url = url
        self._timeout_s = timeout_s  # of a whole exchange: httpx's own limits are per read, and a page may trickle
        # No proxy and no .netrc of the environment: the server is on this host.
        # The certificate is the server's own affair: that the server is ours is proved by who owns its socket.
        self._client = httpx.AsyncClient(
            timeout=timeout_s,
            trust_env=False,
            verify=not url.startswith("https:"),
            headers={"Accept": "text/plain"},
            limits=httpx.Limits(max_keepalive_connections=0),  # a drain waits for connections that are kept
        )

    async def scrape(self) -> Metrics | None:
        """Return what /metrics says, None if it does not answer in time or is not vLLM's page."""
        try:
            async with asyncio.timeout(self._timeout_s), self._client.stream("GET", f"{self._url}/metrics") as response:
                if response.status_code != httpx.codes.OK:
                    return None
                page = bytearray()
                async for chunk in response.aiter_bytes():
                    page += chunk
                    if len(page) > PAGE_LIMIT_BYTES:
                        return None
        except (httpx.HTTPError, TimeoutError):
            return None
        return parse_page(page.decode("utf-8", errors="replace"))

    async def healthy(self) -> bool:
        """Return whether /health answers 200 in time. Its body is not read."""
        try:
            async with asyncio.timeout(self._timeout_s), self._client.stream("GET", f"{self._url}/health") as response:
                return response.status_code == httpx.codes.OK
        except (httpx.HTTPError, TimeoutError):
            return False

    async def answers(self) -> bool:
        """Return whether the server answers anything at all in time, be it a refusal of a connection or an error."""
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._client.stream("GET", f"{self._url}/health"),
            ):
                return True
        except (httpx.TimeoutException, TimeoutError):
            return False
        except httpx.HTTPError:
            return True

    async def paused(self) -> bool | None:
        """Return whether somebody paused the server by its own /pause (0.12 and later); None where it does not say.

        Where it has no such path, nobody can pause it. A deadlocked engine of a later version answers nothing.
        """
        url, answer = f"{self._url}/is_paused", bytearray()
        try:
            async with asyncio.timeout(_PAUSED_TIMEOUT_S), self._client.stream("GET", url) as response:
                async for chunk in response.aiter_bytes(_ANSWER_LIMIT_BYTES):
                    answer += chunk
                    if len(answer) > _ANSWER_LIMIT_BYTES:
                        return None
                return _paused(bytes(answer)) if response.status_code == httpx.codes.OK else None
        except (httpx.HTTPError, TimeoutError):
            return None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
