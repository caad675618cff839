"""The supervisor: carries out what the loop decided, one server at a time, and knows what that costs.

It holds the life of the server and the launch that comes next. It decides nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from vllmd.decide.start_log import phase_reached, read_start
from vllmd.model.decision import Change, Outcome
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import Flags
from vllmd.model.handover import Handover
from vllmd.model.instance import Instance
from vllmd.model.life import ALIVE, Life
from vllmd.model.server import Launch, Phase, ProcessId, ServerState
from vllmd.model.snapshot import Gpu, Snapshot
from vllmd.model.status import StartFacts
from vllmd.model.tried import fingerprint_of
from vllmd.past import left_launch
from vllmd.ports import Clock, LiveValues, Server
from vllmd.report.journal import Journal
from vllmd.start_watch import StartWatch
from vllmd.upcoming import Beside, Logs, Next

__all__ = ["ADOPTED", "Beside", "Logs", "Next", "Refresh", "Supervisor", "as_it_is"]

ADOPTED = "adopted"

Refresh = Callable[[Instance], Instance]  # from a configured instance to what the installation makes of it now


def as_it_is(instance: Instance) -> Instance:
    """Return the instance: nothing is installed anew."""
    return instance


class Supervisor:
    """Launches, restarts and stops the server through `ports.Server`.

    `refresh` returns the instance as the installation is at a launch.
    """

    def __init__(
        self,
        instance: Instance,
        server: Server,
        clock: Clock,
        journal: Journal,
        logs: Logs,
        refresh: Refresh = as_it_is,
    ) -> None:
        self.instance = instance  # as it was launched, once it was
        self._configured = instance  # as the next launch will have it
        self._refresh = refresh
        self._server = server
        self._clock = clock
        self._journal = journal
        self._logs = logs
        self.life = Life(since_s=clock.now_s())
        self.facts = StartFacts()
        self.start = StartWatch(journal, clock)
        self._ready_s = 0.0
        self._current = Next(instance.baseline, "first")
        self._coming: Next | None = None
        self.candidate: Beside | None = None  # what is prepared beside the server that serves
        self._gpus: tuple[Gpu, ...] | None = None
        self._host_bytes: int | None = None

    def configure(self, instance: Instance, refresh: Refresh = as_it_is) -> None:
        """Take another configuration: its limits and targets count at once, its command with the next launch."""
        self._configured, self._refresh = instance, refresh
        self.instance = replace(self.instance, settings=instance.settings, thresholds=instance.thresholds)

    def note(self, snapshot: Snapshot) -> None:
        """Take note of the hardware; what does not answer now is what it was."""
        self._gpus = snapshot.gpus or self._gpus
        self._host_bytes = snapshot.host_total_bytes or self._host_bytes

    @property
    def live(self) -> LiveValues:
        """What can be changed in the running server at once."""
        return self._server.live

    @property
    def plain_restart(self) -> str | None:
        """Why a restart of the running server would refuse connections; None where they would wait."""
        return self._server.plain_restart(self.flags)

    @property
    def fingerprint(self) -> str:
        """What the fate of a launch depends on besides its flags."""
        return self._fingerprint_of(self.instance)

    def _fingerprint_of(self, instance: Instance) -> str:
        version, model = instance.catalogue.version, instance.command.model
        found = fingerprint_of(self._gpus, self._host_bytes, version, model, instance.baseline)
        return instance.masker.mask(str(found))

    @property
    def served_s(self) -> float:
        """How long the server serves, by the monotonic clock: one that is set makes no quiet day. 0 if it does not."""
        return self._clock.monotonic_s() - self._ready_s if self.life.state is ServerState.SERVING else 0.0

    @property
    def flags(self) -> Flags:
        """The flags in force, or those of the launch that comes."""
        return (self._coming or self._current).flags

    @property
    def due_s(self) -> float | None:
        """When a waiting launch is due (monotonic seconds); None if none waits for its time."""
        return self._coming.due_s if self._coming and self.life.state is ServerState.BACKOFF else None

    def launch(self, following: Next) -> None:
        """Launch now, by the configuration and the installation of now. LifeError while a server lives."""
        self._begin(self._made(following))

    def _made(self, following: Next, message: str = "") -> Beside:
        """Make a launch by the configuration and the installation of now, and record it."""
        before, instance = self.instance.baseline, self._refresh(self._configured)
        self._configured = instance
        following = replace(following, flags=following.flags.rebased(before, instance.baseline))
        generation = self._journal.generation()
        launch = Launch(
            generation=generation,
            argv=instance.argv(following.flags),
            flags=following.flags,
            started_at_s=self._clock.now_s(),
            log_path=str(self._logs.path(generation)),
            baseline=instance.baseline,
            fingerprint=self._fingerprint_of(instance),
            model=instance.command.model,
            vllm=instance.catalogue.version,
        )
        self._journal.launch(launch, following.cause)
        return Beside(following, instance.as_launched(launch), launch, message, self._clock.monotonic_s())

    def _begin(self, made: Beside, *, prepared: bool = False) -> None:
        """Let the server be this launch from now on; how long one that was prepared takes is no measure for others."""
        cause = made.following.cause
        message = f"starting ({cause})"
        self.life = self.life.moved(ServerState.STARTING, self._clock.now_s(), message, made.launch)
        configured = self._configured  # maybe since it was made: limits and targets count at once
        self.instance = replace(made.instance, settings=configured.settings, thresholds=configured.thresholds)
        self._current, self._coming, self.candidate = made.following, None, None
        self.facts = StartFacts()
        self.start.begin(made.launch, seen=not prepared)
        self._server.launch(made.launch)

    def take_over(self) -> bool:
        """Go on with the server that an earlier vllmd left; return whether there is one that can be."""
        left, baseline = self._server.left(), self.instance.baseline
        launch = left_launch(self._journal, left, baseline, self._launch_shown)
        if not isinstance(launch, Launch):
            if launch is not None:
                self._journal.not_adopted(launch)
            return False
        self.instance = self.instance.as_launched(launch)
        message = f"taking over generation {launch.generation}"
        self.life = self.life.moved(ServerState.STARTING, self._clock.now_s(), message, launch)
        record = self._journal.unfinished(launch.flags)
        # One that was decided after the launch was to restart it, and did not.
        ours = record is not None and record.outcome is None and record.change.at_s <= launch.started_at_s
        change = record.change if record is not None and ours else None
        self._current, self._coming = Next(launch.flags, ADOPTED, change), None
        self.facts = StartFacts()
        self.start.begin(launch, seen=False)
        self._journal.adopted(launch, self._configured.catalogue.version, self.pending)
        self._server.adopt(launch)
        return True

    def _launch_shown(self, generation: int, words: tuple[str, ...]) -> Launch:
        """Return the launch of a command line that a process shows; its log says nothing of when it began."""
        flags, baseline, model = self.instance.shown(words)
        return Launch(
            generation=generation,
            argv=(self.instance.command.program[0], *words),
            flags=flags,
            started_at_s=self._clock.now_s(),
            log_path=str(self._logs.path(generation)),
            baseline=baseline,
            fingerprint=self.fingerprint,
            model=model,
        )

    @property
    def pending(self) -> tuple[str, ...]:
        """What the next launch will have otherwise than the server that runs, for the operator; empty: nothing."""
        launch, configured = self.life.launch, self._configured
        if launch is None or self.life.state not in ALIVE:
            return ()
        names = configured.baseline.differences(self.instance.baseline)
        found = [f"--{name}" for name in names] + ["the model"] * (
            configured.command.model != self.instance.command.model
        )
        version = configured.catalogue.version
        if launch.vllm is not None and version is not None and launch.vllm != version:
            found.append(f"vLLM {version}, which is installed now (it runs {launch.vllm})")
        return tuple(found)

    def launch_when_due(self) -> None:
        """Launch what waits, if its time has come."""
        if self._coming is not None and self.due_s is not None and self._clock.monotonic_s() >= self.due_s:
            self.launch(self._coming)

    def restart(self, following: Next, message: str) -> None:
        """Restart: the next server is prepared beside this one where that can be, which is drained and stopped then."""
        self.give_up()
        if self.life.state is ServerState.SERVING:
            reason = self._no_gate(following)
            if reason is None:
                self.candidate = self._made(following, message)
                self._say_candidate()
                self._server.prepare(self.candidate.launch)
                return
            self._journal.no_gate(reason)
            message = f"{message}; it is not prepared beside the server: {reason}"
        self._drain(following, message)

    def _no_gate(self, following: Next) -> str | None:
        """Return why the next server cannot be prepared beside this one; None where it can."""
        installed, launch = self._refresh(self._configured), self.life.launch
        if launch is not None and launch.vllm != installed.catalogue.version:
            return f"vLLM {installed.catalogue.version} is installed now, whose gate is not known"
        return self._server.no_gate(following.flags.rebased(self.instance.baseline, installed.baseline))

    def _drain(self, following: Next, message: str) -> None:
        self._coming = following
        self._move(ServerState.DRAINING, message)
        self._server.restart()

    def at_gate(self) -> None:
        """Drain and stop the server: the next one waits at its gate, and is launched from there."""
        if self.candidate is not None:
            self._drain(self.candidate.following, self.candidate.message)

    def gate_missed(self, reason: str) -> None:
        """Restart without a server that waits: the one beside this one did not come to its gate, and was ended."""
        if self.candidate is not None:
            candidate, self.candidate = self.candidate, None
            self._journal.no_gate(reason)
            self._drain(candidate.following, f"{candidate.message}; {reason}")

    def own_port(self, failure: Failure) -> Failure:
        """Return what a server's failure to bind the port is where we park it ourselves: it does not share it.

        It is parked no longer then, and the start is worth another try. One that was not begun has no log: its port is
        taken by somebody else.
        """
        if failure.kind is not FailureClass.PORT_IN_USE or failure.evidence is None or not self._server.parked:
            return failure
        if (handover := self._server.release()) is not None:
            self._journal.handover(handover, self._clock.now_s())
        text = "the server could not share the port that was parked for it; it is no longer parked"
        return replace(failure, kind=FailureClass.INFRA_FAULT, cause="port-parked", summary=text)

    def candidate_failed(self, failure: str) -> None:
        """Serve on: the launch beside this server ended by itself. Its outcome is told."""
        if self.candidate is not None:
            candidate, self.candidate = self.candidate, None
            self._tell_outcome(candidate.following.change, candidate.launch, served=False, outage_s=None)
            self.life = self.life.saying(f"serving; {candidate.name} failed beside it: {failure}")

    def give_up(self) -> Beside | None:
        """End what is prepared beside the server; return what it was, None if nothing is."""
        candidate, self.candidate = self.candidate, None
        if candidate is not None:
            self._server.give_up()
            if self.life.state is ServerState.SERVING:
                self.life = self.life.saying("serving")
        return candidate

    def _say_candidate(self) -> None:
        """Say how long the next server has been prepared."""
        if self.candidate is not None and self.life.state is ServerState.SERVING:
            waited_s = self._clock.monotonic_s() - self.candidate.since_s
            name = self.candidate.name
            text = f"serving; the next start is prepared beside it ({name}), {waited_s:.0f} s"
            self.life = self.life.saying(text)

    def wait(self, following: Next, message: str) -> None:
        """Launch when it is due: at once if that is now."""
        self._coming = following
        self._move(ServerState.BACKOFF, message)
        self.launch_when_due()

    def hold(self, message: str) -> None:
        """Keep the server down until somebody acts."""
        self._coming = None
        if (handover := self._server.release()) is not None:
            self._journal.handover(handover, self._clock.now_s())
        self._move(ServerState.HELD, message)

    def stop(self) -> None:
        """Stop the server for good, and what is prepared beside it."""
        self._coming = self.candidate = None
        if self.life.state in ALIVE:
            if self.life.state is not ServerState.DRAINING:
                self._move(ServerState.DRAINING, "stopping")
            self._server.stop()
        elif self.life.state is not ServerState.STOPPED:
            self._server.release()
            self._move(ServerState.STOPPED, "stopped")

    def end(self, silent_s: float, reason: str) -> None:
        """End a serving server that stands still: the drain of a stop would never come to its end."""
        if self.life.state is ServerState.SERVING:
            self.life = self.life.saying(f"{reason}: it is being ended")
            self._server.end(silent_s, reason)

    def kill(self) -> None:
        """End a server that drains at once."""
        self._server.kill()

    def spawned(self, leader: ProcessId) -> None:
        """Take note of the server's process."""
        if self.life.launch is not None:
            self.life = replace(self.life, launch=replace(self.life.launch, leader=leader))

    def ready(self, handover: Handover | None = None) -> Outcome | None:
        """Take note that the server serves, and how connections came over the restart that this ends.

        Return the outcome of the change behind the launch, if there is one.
        """
        now_s, launch, down_s = self._clock.now_s(), self.life.launch, self.life.down_since_s
        if launch is None or self.life.state is not ServerState.STARTING:
            return None
        self._ready_s = self._clock.monotonic_s()
        start_s = self.start.served(launch.generation)
        outage_s = now_s - down_s if down_s is not None else None
        self._move(ServerState.SERVING, "serving")
        self._journal.serving(launch, self._current.cause, outage_s, start_s)
        return self._outcome(served=True, outage_s=outage_s, handover=handover)

    def stopped(self) -> None:
        """Take note of an end that was asked for: launch what comes next, or stay down."""
        if self.candidate is not None:
            self._begin(self.candidate, prepared=True)
        elif self._coming is not None:
            self.launch(self._coming)
        else:
            self._move(ServerState.STOPPED, "stopped")

    def failed(self) -> Outcome | None:
        """Return the outcome of the change behind a launch that ended before it served."""
        return self._outcome(served=False, outage_s=None) if self.life.state is ServerState.STARTING else None

    def read_new_lines(self) -> None:
        """Take in what the server printed since the last look."""
        launch = self.life.launch
        if launch is not None:
            self.facts = read_start(self.facts, self._logs.new_lines(launch))
            if self.life.state is ServerState.STARTING:
                doing = self.start.look(phase_reached(self.facts))
                self.life = self.life.saying(f"starting ({self._current.cause}): {doing}")
        self._say_candidate()

    def whole_log(self) -> Sequence[str]:
        """Return the log of the last launch, for a diagnosis."""
        return self._logs.whole(self.life.launch) if self.life.launch else ()

    def candidate_log(self) -> Sequence[str]:
        """Return the log of the launch that is prepared beside the server, for a diagnosis."""
        return self._logs.whole(self.candidate.launch) if self.candidate else ()

    @property
    def phase(self) -> Phase:
        """How far the launch came."""
        match self.life.state:
            case ServerState.SERVING:
                return Phase.SERVING
            case ServerState.DRAINING:
                return Phase.SHUTDOWN
            case _:
                return phase_reached(self.facts)

    def _outcome(self, *, served: bool, outage_s: float | None, handover: Handover | None = None) -> Outcome | None:
        change, self._current = self._current.change, replace(self._current, change=None)  # it is told once
        return self._tell_outcome(change, self.life.launch, served=served, outage_s=outage_s, handover=handover)

    def _tell_outcome(
        self,
        change: Change | None,
        launch: Launch | None,
        *,
        served: bool,
        outage_s: float | None,
        handover: Handover | None = None,
    ) -> Outcome | None:
        if change is None or launch is None:
            return None
        took_s = self.start.took_s if launch is self.life.launch else {}
        outcome = Outcome(change, launch.generation, served, outage_s, handover, took_s)
        self._journal.outcome(outcome, self._clock.now_s())
        return outcome

    def _move(self, state: ServerState, message: str) -> None:
        self.life = self.life.moved(state, self._clock.now_s(), message)
