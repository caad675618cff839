"""Whether a server that still runs has stopped getting on, by what its log says and does not say.

Two signs: vLLM complains every minute that nobody takes its messages (shm_broadcast.py, 0.8 to 0.33: also during a
long compilation, so that it counts only when nothing follows), and its statistics show requests but no tokens.
"""

import re
from dataclasses import dataclass

from vllmd.decide.failure_texts import NCCL_STARTS
from vllmd.decide.log_lines import Line
from vllmd.decide.numbers import NUMBER

_UNHEARD = "shared memory broadcast block"
_STATISTICS = re.compile(
    rf"Avg prompt throughput: (?P<prompt>{NUMBER}) tokens/s, "
    rf"Avg generation throughput: (?P<generation>{NUMBER}) tokens/s"
)
_REQUESTS = re.compile(r"(?:Running|Waiting|Pending|Deferred): (\d{1,12}) reqs")
_DAY_S = 86_400
_UNHEARD_SERVING = 2  # minutes in a row
_UNHEARD_STARTING = 5
_UNHEARD_JOINING = 2  # while the ranks find each other, which takes seconds
_IDLE = 3  # statistics in a row: half a minute at vLLM's default
_IDLE_S = 60  # likewise by their times, where a log holds only some of them
_TIME = re.compile(r"\b\d\d-\d\d (\d\d):(\d\d):(\d\d)\b")
_PROGRESS = (
    "Starting to load model",
    "Model loading took",
    "KV cache",
    "Completed |",
    "Capturing CUDA graph",
    "it/s]",
    "s/it]",
    "torch.compile",
    "Application startup complete",
)


@dataclass(slots=True)
class Standstill:
    """Counts the signs in a row, and forgets them at any progress."""

    unheard: int = 0  # complaints since the last progress
    idle: int = 0  # statistics with requests and without tokens, since the last with tokens
    idle_from_s: int | None = None  # the time of day of the first of them
    idle_s: int = 0  # from the first to the last of them
    first: Line | None = None  # that began it
    joining: bool = False  # the ranks were about to find each other

    def hear(self, line: Line, text: str) -> None:
        """Take in one line."""
        if _UNHEARD in text:
            self.unheard += 1
            self.first = self.first or line
        elif NCCL_STARTS in text:
            self.joining = True
        elif found := _STATISTICS.search(text):
            self._count(found, line, text)
        elif any(mark in text for mark in _PROGRESS):
            self._reset()

    def _count(self, found: re.Match[str], line: Line, text: str) -> None:
        """Count a statistics line if it shows requests but no tokens; tokens are progress."""
        if float(found["prompt"]) + float(found["generation"]) > 0:
            self._reset()
        elif any(int(count) for count in _REQUESTS.findall(text)):
            self.idle += 1
            self.first = self.first or line
            if (now_s := _time_of_day_s(line.text)) is not None:
                self.idle_from_s = now_s if self.idle_from_s is None else self.idle_from_s
                self.idle_s = (now_s - self.idle_from_s) % _DAY_S

    def _reset(self) -> None:
        self.unheard = self.idle = self.idle_s = 0
        self.idle_from_s = None
        self.first = None
        self.joining = False

    def stands(self, *, serving: bool) -> bool:
        """Whether it has gone on long enough to be no pause."""
        if not serving:
            return self.unheard >= (_UNHEARD_JOINING if self.joining else _UNHEARD_STARTING)
        return self.unheard >= _UNHEARD_SERVING or self.idle >= _IDLE or self.idle_s >= _IDLE_S


def _time_of_day_s(text: str) -> int | None:
    """Return when vLLM's logger wrote a line, in seconds since midnight; None where it does not say."""
    found = _TIME.search(text)
    return None if found is None else int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3])
