"""The past: what the loop remembers between ticks, and what earlier daemons left in the ledger."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from vllmd.decide.bans import bans_of, last_good
from vllmd.decide.recover import CrashRecord
from vllmd.model.decision import Change, Domain, Proposal, Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import UTILIZATION, Flags, FlagValue
from vllmd.model.masking import MASK
from vllmd.model.server import Launch, Left, Phase
from vllmd.model.settings import Mode, Modes
from vllmd.model.tried import Ban
from vllmd.report.journal import Journal

_DAY_S = 86400.0
_HANGS_COUNT_S = 3600.0  # a hang further back than an hour makes no second one
# Where a server answers: one that answers elsewhere than the configuration says cannot be watched.
_ADDRESS = ("host", "port", "uds", "ssl-certfile", "ssl-keyfile", "root-path")
_POOL_TOO_SMALL = frozenset({FailureClass.UTILIZATION_TOO_LOW, FailureClass.MAX_MODEL_LEN_TOO_LONG})


@dataclass(slots=True)
class Past:
    """What was tried and how it ended; times in unix seconds."""

    voluntary_s: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    crashes: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=100))
    hangs_s: deque[float] = field(default_factory=lambda: deque(maxlen=100))  # while serving, of this fingerprint
    in_a_row: int = 0  # failures since the last good run
    visited: set[Flags] = field(default_factory=set)  # flags that were run
    bans: list[Ban] = field(default_factory=list)
    harmful: set[tuple[str, FlagValue | None]] = field(default_factory=set)  # values that latency changes took back
    served: Flags | None = None  # the last flags that served
    too_low: float | None = None  # a utilization at which the KV pool was too small
    fingerprint: str | None = None  # that the bans are of
    baseline: Flags | None = None  # that `served` and `visited` are moved from
    failure_log: str | None = None  # of the launch that failed last, None if it had no process

    def recall(self, journal: Journal, fingerprint: str, baseline: Flags, now_s: float, window_s: float) -> None:
        """Take in what the ledger keeps for this fingerprint; flags get the secrets of the baseline back."""
        self.voluntary_s.extend(journal.voluntary_since(now_s - _DAY_S))
        self.crashes.extend(journal.crashes_between(now_s - window_s, now_s))
        self.harmful.update(journal.harmful())
        self.settle(journal, fingerprint, baseline)

    def settle(self, journal: Journal, fingerprint: str, baseline: Flags) -> bool:
        """Let what is known be of this fingerprint and of this command; return whether the command is another one.

        vLLM may have been upgraded under a running daemon, and the operator may have written another command.
        """
        another = self.baseline is not None and baseline != self.baseline
        self.baseline = baseline
        if another:
            self.served = None
            self.visited.clear()
        if fingerprint != self.fingerprint:
            self._learn_bans(journal, fingerprint, baseline)
        return another

    def _learn_bans(self, journal: Journal, fingerprint: str, baseline: Flags) -> None:
        self.fingerprint, self.too_low = fingerprint, None
        self.bans.clear()
        self.hangs_s.clear()
        shown = journal.masked(baseline)
        for ban in bans_of(journal.tried(fingerprint)):
            self.bans.append(replace(ban, flags=_unmasked(ban.flags, shown, baseline)))

    def forget(self) -> None:
        """Forget what is banned and what did harm; the budget is not given back."""
        self.visited.clear()
        self.bans.clear()
        self.harmful.clear()
        self.hangs_s.clear()
        self.too_low = None

    def failed(self, failure: Failure, flags: Flags, now_s: float) -> None:
        """Remember a failure of a launch with these flags."""
        self.crashes.append((now_s, failure.kind))
        self.in_a_row += 1
        if _is_hang(failure):
            self.hangs_s.append(now_s)
        if failure.forbids:
            self.bans.append(Ban(flags, failure))
        if failure.kind in _POOL_TOO_SMALL and "available_bytes" in failure.numbers:
            self.too_low = flags.number(UTILIZATION) or failure.numbers.get("utilization")

    def clock_was_set(self, by_s: float) -> None:
        """Keep what was remembered as long ago as it is, though somebody set the clock."""
        for times in (self.voluntary_s, self.hangs_s):
            moved = [at_s + by_s for at_s in times]
            times.clear()
            times.extend(moved)
        crashes = [(at_s + by_s, kind) for at_s, kind in self.crashes]
        self.crashes.clear()
        self.crashes.extend(crashes)

    def calmed(self) -> None:
        """Forget that launches failed in a row: a good run, or the operator's word, begins anew."""
        self.in_a_row = 0
        self.crashes.clear()

    def record(self) -> CrashRecord:
        """Return what the recovery looks at."""
        return CrashRecord(self.in_a_row, tuple(self.crashes))

    def repeats(self, failure: Failure) -> int:
        """Return how many failures of this class came before this one, which is the last; of hangs, in an hour.

        Hangs are counted across good runs: what hangs once in ten minutes serves well between.
        """
        if _is_hang(failure):
            return sum(at_s > self.hangs_s[-1] - _HANGS_COUNT_S for at_s in self.hangs_s) - 1
        return max(0, sum(known == failure.kind for _, known in self.crashes) - 1)


def good_before(
    journal: Journal, fingerprint: str, baseline: Flags, modes: Modes, free_bytes: float | None
) -> Proposal | None:
    """Return the wish to begin with the last good flags of this baseline; None if they are the baseline's.

    Only what vllmd may still move by itself: a flag moved for a latency target needs that mode to be active, too.
    """
    found = last_good(journal.tried(fingerprint), journal.masked(baseline), free_bytes)
    if found is None:
        return None
    tried, changes = found
    may = {Domain.LATENCY: modes.latency is Mode.ACTIVE, Domain.MEMORY: modes.memory is Mode.ACTIVE}
    kept = {name: value for name, value in changes.items() if may.get(_domain(journal.mover_of(name)), False)}
    reason = f"generation {tried.launch.generation} served with these flags"
    return Proposal("last_good", Domain.MEMORY, Wish.CHANGE_FLAGS, reason, kept, trigger="first") if kept else None


def left_launch(
    journal: Journal, left: Left, baseline: Flags, shown_by: Callable[[int, tuple[str, ...]], Launch]
) -> Launch | str | None:
    """Return the launch that an earlier vllmd left, its flags as they were launched; or why it cannot be gone on with.

    None where nothing was left. Where the ledger was lost, the launch is what the process shows (`shown_by`).
    """
    if left.generation is None:
        return left.problem
    launch = journal.launch_of(left.generation)
    if launch is None:
        if left.words is None:
            return f"generation {left.generation} is not in the ledger, so that its flags are not known"
        launch = shown_by(left.generation, left.words)
        journal.found(launch)
    moved = [name for name in _ADDRESS if launch.baseline.get(name) != journal.masked(baseline).get(name)]
    if moved:
        return f"it answers elsewhere than is configured now (--{', --'.join(moved)})"
    hidden = [name for name in launch.flags.differences(launch.baseline) if MASK in str(launch.flags.get(name))]
    if hidden:
        return f"what was moved is masked in the ledger (--{', --'.join(hidden)})"
    shown = journal.masked(baseline)
    return replace(
        launch,
        flags=_unmasked(launch.flags, shown, baseline),
        baseline=_unmasked(launch.baseline, shown, baseline),
    )


def moved_by_recoveries(journal: Journal, flags: Flags, baseline: Flags) -> dict[str, str]:
    """Return the flags that a recovery moved off the baseline, each with the class of failure that it answered."""
    movers = {name: journal.mover_of(name) for name in flags.differences(baseline)}
    return {
        name: mover.proposal.trigger if mover is not None else ""
        for name, mover in movers.items()
        if _domain(mover) is Domain.MEMORY
    }


def _is_hang(failure: Failure) -> bool:
    return failure.kind is FailureClass.HANG and failure.phase is Phase.SERVING


def _domain(mover: Change | None) -> Domain:
    """Return why a flag was moved; what is too long ago to be remembered counts as memory's."""
    return Domain.MEMORY if mover is None else mover.proposal.domain


def _unmasked(flags: Flags, shown: Flags, baseline: Flags) -> Flags:
    """Return flags with the operator's own values where they are shown as the baseline's are."""
    return flags.changed({name: baseline[name] for name in flags if flags[name] == shown.get(name)})
