"""What a run says at its end: the times of each kind of fault, or everything about the first violation."""

from pathlib import Path
from statistics import median

from chaos.driver import Tally
from chaos.scene import Scene

_TAIL_LINES = 25


def table(tally: Tally) -> str:
    """Return a line for each kind: how often, and how long until the server served again, in seconds."""
    width = max((len(kind) for kind in tally.times_s), default=4)
    lines = [f"{'fault':{width}}  count  median s  longest s"]
    lines += [
        f"{kind:{width}}  {len(times):5}  {median(times):8.1f}  {max(times):9.1f}"
        for kind, times in sorted(tally.times_s.items())
    ]
    everything = [t for times in tally.times_s.values() for t in times]
    if everything:
        lines.append(f"{'all':{width}}  {len(everything):5}  {median(everything):8.1f}  {max(everything):9.1f}")
    lines += [f"operator: {what}: {count} times" for what, count in sorted(tally.operator.items())]
    lines += [f"left out, because it is not there: {need}" for need in tally.left_out]
    return "\n".join(lines)


def again(tally: Tally) -> str:
    """Return the command that draws the same faults, where the same kinds can be had."""
    kinds = f"KINDS={','.join(tally.kinds)} " if tally.kinds else ""
    return f"{kinds}SEED={tally.seed} BURST={tally.burst} FAULTS={tally.done + tally.burst} make chaos"


def story(tally: Tally, scene: Scene, violation: str, kept: Path) -> str:
    """Return the violation with what led to it, what runs, and where everything was kept."""
    lines = scene.log.read_text(encoding="utf-8", errors="replace").splitlines()
    tail = lines[-_TAIL_LINES:]
    return "\n".join(
        (
            f"VIOLATION at fault {tally.done + 1} or one of its burst, seed {tally.seed}: {violation}",
            "--- the last faults",
            *tally.history,
            "--- processes",
            *map(str, scene.processes()),
            "--- status",
            str(scene.service.instance()),
            f"--- the end of {scene.log}",
            *tail,
            f"state folder: {kept}",
            f"again: {again(tally)}",
        )
    )
