"""`vllmd install-service`: put the unit and its companions under /etc, and keep what somebody changed there."""

import difflib
import shlex
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from vllmd.cli.exits import Exit
from vllmd.cli.ordering import fail
from vllmd.cli.places import checked_name
from vllmd.errors import VllmdError
from vllmd.model.plain import plain

_UNIT = "vllmd@.service"
# Where each file goes below the root; the first name is the file's own below the folder of the sources.
_TARGETS = {
    _UNIT: f"etc/systemd/system/{_UNIT}",
    "vllmd-gpu.service": "etc/systemd/system/vllmd-gpu.service",
    "sysusers.d/vllmd.conf": "etc/sysusers.d/vllmd.conf",
    "tmpfiles.d/vllmd.conf": "etc/tmpfiles.d/vllmd.conf",
    "sysctl.d/20-vllmd.conf": "etc/sysctl.d/20-vllmd.conf",
    "modules-load.d/vllmd.conf": "etc/modules-load.d/vllmd.conf",
}
_COMMAND = "usr/bin/vllmd"  # what the unit starts


@dataclass(frozen=True, slots=True)
class Piece:
    """One file: what it shall hold, where, and what is there now (None: nothing)."""

    target: Path
    wanted: str
    present: str | None

    @property
    def changed(self) -> bool:
        """Whether another text is there."""
        return self.present is not None and self.present != self.wanted


@click.command("install-service")
@click.argument("name", default="default", envvar="VLLMD_INSTANCE")
@click.option(
    "--root", type=click.Path(path_type=Path, file_okay=False), default=Path("/"), help="Write below this folder."
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--replace", is_flag=True, help="Replace files that differ, too.")
def install_service(name: str, root: Path, *, dry_run: bool, replace: bool) -> None:
    """Write the systemd unit and its companions, and say what to type next. Nothing is started.

    A file that is there and differs is shown as a diff and kept, unless --replace is given. Drop-ins are never touched.

    Exit code 0: every file is as it shall be, or would be. 5: one was kept. 1, 77: one could not be written.
    """
    try:
        checked_name(name)
        pieces = _pieces(_sources(), root)
    except VllmdError as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        _fail(error, name)
    for piece in pieces:
        print("\n".join(_told(piece, dry_run=dry_run, replace=replace)))
        if not dry_run and piece.present != piece.wanted and (replace or not piece.changed):
            try:
                _write(piece)
            except OSError as error:
                _fail(error, name)
    for drop_in in _drop_ins(root, name):
        print(f"in force, not touched: {drop_in}")
    if not dry_run:
        print("\n".join(_next(name, root)))
    kept = any(piece.changed for piece in pieces) and not replace
    sys.exit(Exit.REFUSED if kept else Exit.OK)


def _sources() -> Path:
    """Return the folder of the files: a checkout's, or where the distribution puts them. VllmdError without one."""
    checkout = Path(__file__).parents[3] / "systemd"
    installed = Path(sysconfig.get_path("data")) / "share" / "vllmd" / "systemd"
    for folder in (checkout, installed):
        if (folder / _UNIT).is_file():
            return folder
    raise VllmdError(f"this installation of vllmd has no units: neither in {checkout} nor in {installed}")


def _pieces(sources: Path, root: Path) -> Sequence[Piece]:
    return [
        Piece(root / target, (sources / source).read_text(encoding="utf-8"), _present(root / target))
        for source, target in _TARGETS.items()
    ]


def _present(path: Path) -> str | None:
    """Return what a file holds. A link that leads nowhere counts as another text: it was put there by somebody."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return "" if path.is_symlink() else None


def _told(piece: Piece, *, dry_run: bool, replace: bool) -> Iterator[str]:
    """Yield what is done with one file, and how it differs from ours."""
    if piece.present == piece.wanted:
        yield f"unchanged: {piece.target}"
    elif piece.present is None:
        yield f"{'would write' if dry_run else 'written'}: {piece.target}"
    else:
        done = "would replace" if dry_run else "replaced"
        yield f"{done if replace else 'kept, it differs (--replace takes ours)'}: {piece.target}"
        before, after = piece.present.splitlines(), piece.wanted.splitlines()
        lines = difflib.unified_diff(before, after, "there", "ours", lineterm="")
        yield from (f"    {plain(line)}" for line in lines)


def _write(piece: Piece) -> None:
    """Write a file as a whole or not at all, to be read by everybody."""
    piece.target.parent.mkdir(parents=True, exist_ok=True)
    new = piece.target.with_name(f".{piece.target.name}.new")  # systemd reads no hidden files
    new.write_text(piece.wanted, encoding="utf-8")
    new.chmod(0o644)
    new.replace(piece.target)


def _drop_ins(root: Path, name: str) -> Sequence[Path]:
    """Return what an operator has added to the unit."""
    units = root / "etc/systemd/system"
    folders = (units / f"{_UNIT}.d", units / f"vllmd@{name}.service.d", units / "vllmd-gpu.service.d")
    return [file for folder in folders for file in sorted(folder.glob("*.conf"))]


def _next(name: str, root: Path) -> Iterator[str]:
    """Yield the commands that bring the files into force."""
    yield "next, as root:"
    if not (root / _COMMAND).exists():
        yield f"    ln -s {shlex.quote(str(Path(sys.argv[0]).absolute()))} /{_COMMAND}"
    yield "    systemd-sysusers && systemd-tmpfiles --create /etc/tmpfiles.d/vllmd.conf"
    yield "    systemctl restart systemd-modules-load systemd-sysctl && systemctl daemon-reload"
    yield f"    vllmd check {name} && systemctl enable --now vllmd@{name}"


def _fail(error: OSError, name: str) -> NoReturn:
    """Say which file could not be read or written, and end."""
    code = Exit.NO_PERMISSION if isinstance(error, PermissionError) else Exit.FAILURE
    fail(f"{error.filename}: {error.strerror}", f"sudo vllmd install-service {name} --dry-run", code)
