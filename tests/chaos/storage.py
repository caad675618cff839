"""The state folder: on a small file system of its own where that is allowed, so that it can be full or read-only."""

import errno
import subprocess
from pathlib import Path

_SIZE = "48m"  # twenty logs of the server, and a ledger of thousands of launches with its write-ahead log
_BLOCK = 65536
_MOUNT_LIMIT_S = 10.0


class Storage:
    """The folder above the instance's state folder. `mounted`: it is a tmpfs of our own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "default"
        self._ballast = root / "ballast"
        self._read_only = False
        root.mkdir()
        self.mounted = _mount("-t", "tmpfs", "-o", f"size={_SIZE},mode=0750", "vllmd-chaos", str(root))

    def fill(self) -> None:
        """Leave no free block."""
        with self._ballast.open("wb", buffering=0) as ballast:
            try:
                while ballast.write(bytes(_BLOCK)):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def free(self) -> None:
        """Give the blocks back."""
        self._ballast.unlink(missing_ok=True)

    def lock(self) -> None:
        """Make the folder read-only for what is opened from now on; what is open stays writable.

        A read-only mount of the folder lies over it: the kernel refuses to make a file system read-only in use.
        """
        if _mount("--bind", str(self.root), str(self.root)):
            self._read_only = True
            _mount("-o", "remount,bind,ro", str(self.root))

    def unlock(self) -> None:
        """Make the folder writable again."""
        if self._read_only:
            self._read_only = False
            _unmount(self.root)

    def close(self) -> None:
        """Take the file system away."""
        self.unlock()
        if self.mounted:
            _unmount(self.root)


def _mount(*options: str) -> bool:
    command = ("mount", *options)
    return subprocess.run(command, capture_output=True, timeout=_MOUNT_LIMIT_S, check=False).returncode == 0


def _unmount(path: Path) -> None:
    """Unmount now, and let the kernel clean up when the last file is closed."""
    subprocess.run(("umount", "--lazy", str(path)), timeout=_MOUNT_LIMIT_S, check=True)
