"""The work of `vllmd reap`, apart from its command line."""

import asyncio
import os
from enum import StrEnum
from pathlib import Path

from vllmd.act.adoption import ForeignError, what_was_left
from vllmd.act.ending import reap
from vllmd.act.launcher import CANDIDATE_NAME, LOG_FOLDER, RECORD_NAME
from vllmd.act.live_block import remove_block
from vllmd.act.server_file import left_records
from vllmd.act.session import Session, named
from vllmd.clock import SystemClock
from vllmd.daemon import lock_instance


class Stop(StrEnum):
    """Whether a service was stopped for good."""

    REAL = "real"
    PERHAPS = "perhaps"  # vllmd ended as it does when it is told to: with its server, or leaving it
    NONE = "none"


def stop_of(result: str, job: Path | None) -> Stop:
    """Return whether a service that ended with this $SERVICE_RESULT was stopped for good.

    systemd's job for it says so: "stop" is a stop, "restart" and "start" bring another vllmd, and without one the
    service ended by itself. `job` is a file with a line of `systemctl list-jobs`: job, unit, type, state.
    """
    try:
        types = {line.split()[2] for line in job.read_text().splitlines() if len(line.split()) > 2} if job else set()  # noqa: PLR2004
    except OSError:
        types = set()
    if "stop" in types:
        return Stop.REAL
    return Stop.PERHAPS if not types and result == "success" else Stop.NONE


def reap_instance(state_dir: Path, grace_s: float, *, keep_left: bool) -> tuple[str, bool]:
    """End what the last vllmd of a state folder left; return what was done, in words, and whether something lives on.

    With `keep_left`, a server that is to outlive its vllmd is kept. InstanceBusyError while a vllmd runs the instance.
    """
    if not state_dir.is_dir():
        return "nothing is left", False
    lock = lock_instance(state_dir)
    try:
        paths = (state_dir / RECORD_NAME, state_dir / CANDIDATE_NAME)
        session, candidate = (
            Session(path, record, SystemClock())
            for path, record in zip(paths, left_records(*paths, state_dir / LOG_FOLDER), strict=True)
        )
        _end_candidate(candidate)
        try:
            what_was_left(session.record)
        except ForeignError as error:
            return f"not ours, and left alone: {error}", False
        before = session.living()
        if not before:
            _remove_block(session)
            return "nothing is left", False
        if keep_left and session.record is not None and session.record.left:
            return f"left to the next vllmd: {named(before)}", False
        words = named(before)
        left = asyncio.run(reap(session, grace_s))
        if not left:
            _remove_block(session)
    finally:
        os.close(lock)
    return (f"cannot be ended: {named(left)}", True) if left else (f"ended: {words}", False)


def _end_candidate(session: Session) -> None:
    """End what was prepared beside the server: it is of use to that vllmd alone."""
    if not asyncio.run(session.clear()):
        _remove_block(session)
        session.forget()


def _remove_block(session: Session) -> None:
    """Remove the control block of a server of which nothing lives any more."""
    if session.record is not None:
        remove_block(session.record.block)
