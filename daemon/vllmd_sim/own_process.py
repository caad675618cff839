"""This process: the title it goes by, and how it ends on the spot."""

import ctypes
import os
import resource
import signal
from pathlib import Path
from typing import NoReturn


def set_title(title: str) -> None:
    """Name this process as vLLM names its own, in /proc/PID/comm and, over its own arguments, in cmdline.

    Fields 48 and 49 of proc_pid_stat(5) say where in memory the arguments lie.
    """
    Path("/proc/self/comm").write_text(title, encoding="ascii")  # the kernel keeps 15 characters
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    start_address, end_address = int(fields[45]), int(fields[46])
    length = end_address - start_address
    if length > 0:
        ctypes.memmove(start_address, title.encode()[: length - 1].ljust(length, b"\0"), length)


def end_process(code: int) -> NoReturn:
    """End this process at once, by a signal if the code is negative; nothing is cleaned up, no core is written."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if code < 0:
        if -code not in {signal.SIGKILL, signal.SIGSTOP}:  # these have no handler to take away
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
