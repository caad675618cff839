"""What an earlier vllmd left: a server that can be taken over, one that cannot, or another's process.

no process of the record lives ─▶ nothing
pid, start time and boot are the record's, and so are user, control group and options ─▶ taken over
user, control group or options are not ─▶ another's: it is not taken over, and not touched
its main process is dead, or its end was asked for ─▶ ours, and ended before the next launch
"""

import os

from vllmd.act.server_file import ServerRecord, leftovers, options_mark
from vllmd.act.session import TITLE
from vllmd.errors import VllmdError
from vllmd.model.server import Left
from vllmd.observe.processes import alive, cgroup_of, command_of, owner_of


class ForeignError(VllmdError):
    """The process on record is another's by now."""


def what_was_left(record: ServerRecord | None) -> Left:
    """Return what lives of a recorded launch. ForeignError, in words, if its leader is not what was launched."""
    if record is None or not leftovers(record):
        return Left()
    if not alive(record.leader):
        return Left(problem="its main process has ended, and others of it live on")
    words = _proved(record)
    if record.ending:
        return Left(problem="its end had been asked for")
    return Left(record.generation, words=words)


def _proved(record: ServerRecord) -> tuple[str, ...] | None:
    """Check that the leader is where it was launched, and runs what was launched; return that, behind its program.

    None where it cannot be seen.
    """
    pid = record.leader.pid
    owner = owner_of(pid)
    if os.geteuid() not in (0, owner):
        raise ForeignError(f"pid {pid} belongs to user {owner}")
    cgroup, command = cgroup_of(pid), command_of(pid)
    if record.cgroup and cgroup is not None and cgroup != record.cgroup:
        raise ForeignError(f"pid {pid} is in the control group {cgroup}, and was launched in {record.cgroup}")
    if not record.options or not command or command[0].startswith(TITLE):
        return None
    # The program may have been found on PATH, or be a script behind its interpreter.
    count = int(record.options.partition(":")[0])
    words = command[len(command) - count :]
    if count >= len(command) or options_mark(words) != record.options:
        raise ForeignError(f"pid {pid} does not run the command that was launched")
    return words
