"""The work of `vllmd reap`, apart from its command line."""

import asyncio
import os
from pathlib import Path

from vllmd.act.adoption import ForeignError, what_was_left
from vllmd.act.ending import reap
from vllmd.act.server_process import LOG_FOLDER, RECORD_NAME
from vllmd.act.session import Session, named
from vllmd.clock import SystemClock
from vllmd.daemon import lock_instance


def reap_instance(state_dir: Path, grace_s: float, *, keep_left: bool) -> tuple[str, bool]:
    """End what the last vllmd of a state folder left; return what was done, in words, and whether something lives on.

    With `keep_left`, a server that is to outlive its vllmd is kept. InstanceBusyError while a vllmd runs the instance.
    """
    if not state_dir.is_dir():
        return "nothing is left", False
    lock = lock_instance(state_dir)
    try:
        session = Session(state_dir / RECORD_NAME, state_dir / LOG_FOLDER, SystemClock())
        try:
            what_was_left(session.record)
        except ForeignError as error:
            return f"not ours, and left alone: {error}", False
        before = session.living()
        if not before:
            return "nothing is left", False
        if keep_left and session.record is not None and session.record.left:
            return f"left to the next vllmd: {named(before)}", False
        words = named(before)
        left = asyncio.run(reap(session, grace_s))
    finally:
        os.close(lock)
    return (f"cannot be ended: {named(left)}", True) if left else (f"ended: {words}", False)
