"""Which files of a vLLM package declare its command line, and a stamp that tells when they changed."""

import hashlib
from pathlib import Path

# Where vLLM 0.9.2 to 0.33 keeps what its command line is made of. The frontend's options moved from
# entrypoints/openai/ (to 0.26) to entrypoints/launchers/ (0.32) to entrypoints/common/ (0.33).
_DECLARING = ("engine/arg_utils.py", "entrypoints/cli/serve.py")
_PARSER = ("utils/argparse_utils.py", "utils/__init__.py", "utils.py")  # to 0.10 in utils/__init__.py
_CONFIG = ("config.py",)  # one module in 0.9.2, a folder later
_SIMULATED = "options.py"


def declaring_files(package_dir: Path) -> tuple[Path, ...]:
    """Return the files with add_argument calls or frontend dataclasses; the simulator keeps all in options.py."""
    vllm = [package_dir / name for name in _DECLARING]
    if not vllm[0].is_file():
        return _existing([package_dir / _SIMULATED])
    return _existing([*vllm, *sorted(package_dir.glob("entrypoints/*/cli_args.py"))])


def config_files(package_dir: Path) -> tuple[Path, ...]:
    """Return the files with the configuration dataclasses that the options' kinds come from."""
    return _existing([*(package_dir / name for name in _CONFIG), *sorted(package_dir.glob("config/*.py"))])


def parser_file(package_dir: Path) -> Path | None:
    """Return the file that holds vLLM's own argument parser class."""
    return next(iter(_existing([package_dir / name for name in _PARSER])), None)


def source_stamp(package_dir: Path, distribution: str) -> str:
    """Return a text that changes when a file above or the installed distribution does (sizes, mtimes in ns, names)."""
    parser = parser_file(package_dir)
    files = (*declaring_files(package_dir), *config_files(package_dir), *((parser,) if parser else ()))
    digest = hashlib.sha256(distribution.encode())
    for file in files:
        try:
            seen = file.stat()
        except FileNotFoundError:
            continue  # an installation is being replaced under us: the next stamp differs
        digest.update(f"{file.relative_to(package_dir)} {seen.st_mtime_ns} {seen.st_size}\n".encode())
    return digest.hexdigest()[:16]


def _existing(files: list[Path]) -> tuple[Path, ...]:
    return tuple(file for file in files if file.is_file())
