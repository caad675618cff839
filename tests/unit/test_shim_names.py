"""The table of names that vllmd_shim wraps: how a name is found in a version's source, and how the table is written."""

from pathlib import Path
from zipfile import ZipFile

import pytest

from shim_names.__main__ import README, VERSIONS, table, with_table
from shim_names.names import NAMES
from shim_names.source import Source

SCHEDULER = """
class Scheduler(SchedulerInterface):
    def __init__(self, vllm_config):
        self.vllm_config = vllm_config
        self.scheduler_config = vllm_config.scheduler_config
        self.max_num_scheduled_tokens = self.scheduler_config.max_num_batched_tokens
        self.max_num_running_reqs = self.scheduler_config.max_num_seqs

    def schedule(self, throttle: bool = False):
        token_budget = self.max_num_scheduled_tokens
"""
SOCKET = """
def create_server_socket(addr, *, reuse_port):
    sock = socket.socket()
    if reuse_port:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(addr)
"""
FILES = {
    "v1/core/sched/scheduler.py": SCHEDULER,
    "config/__init__.py": "from vllm.config.scheduler import SchedulerConfig\n",
    "config/scheduler.py": "class SchedulerConfig:\n    enable_chunked_prefill: bool = True\n",
    "engine/arg_utils.py": "class AsyncEngineArgs:\n    def add_cli_args(parser):\n        load_general_plugins()\n",
    "entrypoints/launcher.py": SOCKET,
    "entrypoints/openai/cli_args.py": "class FrontendArgs:\n    middleware: list[str]\n",
    "worker/worker_base.py": "class WorkerWrapperBase:\n    def init_device(self):\n        pass\n",
}


def answers(folder: Path, **changes: str) -> dict[str, str]:
    """Return what is found in a wheel of these few files; a change replaces the text of each file with that word."""
    wheel = folder / "vllm-1-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        for path, text in FILES.items():
            archive.writestr(f"vllm/{path}", text)
            for before, after in changes.items():
                if before in text:
                    archive.writestr(f"vllm/{path}", text.replace(before, after))
    source = Source(wheel)
    return {[*name.name.split("`"), name.name][1]: name.found(source) for name in NAMES}


def test_names_are_found_where_they_are(tmp_path: Path) -> None:
    """What is there is told, with its form; what no file has is missing."""
    found = answers(tmp_path)
    assert found["Scheduler.schedule"] == "yes, (throttle)"
    assert found["max_num_scheduled_tokens"] == "yes"
    assert found["AsyncEngineArgs.add_cli_args"] == "yes"
    assert found["create_server_socket"] == "yes"
    assert found["WorkerWrapperBase.init_device"] == "yes, in worker"
    assert found["--middleware"] == "yes"
    assert found["vllm.config.SchedulerConfig.get_scheduler_cls"] == "no"
    assert found["ModelConfig.is_hybrid"] == "no"


def test_an_attribute_that_no_step_reads_is_not_there(tmp_path: Path) -> None:
    """A scheduler that has a cap and reads it once only could be told another one in vain."""
    assert answers(tmp_path)["max_num_running_reqs"] == "no"


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ("def schedule", "def schedule_all", "Scheduler.schedule"),
        ("load_general_plugins", "load_plugins", "AsyncEngineArgs.add_cli_args"),
        ("sock.bind", "sock.listen", "create_server_socket"),
        ("init_device", "start_device", "WorkerWrapperBase.init_device"),
        ("middleware", "middlewares", "--middleware"),
    ],
)
def test_a_renamed_name_is_missing(tmp_path: Path, before: str, after: str, name: str) -> None:
    """Each check looks at the name itself."""
    assert answers(tmp_path, **{before: after})[name] == "no"


def test_the_readme_has_the_table_with_every_name_and_version() -> None:
    """Without a download: each row and each column stands there, and nothing else."""
    text = README.read_text(encoding="utf-8")
    rows = [
        line.split(" | ") for line in text.split("\n") if line.startswith("| ") and line.count(" | ") > len(VERSIONS)
    ]
    assert rows[0][1:-1] == list(VERSIONS)
    assert [row[0].removeprefix("| ") for row in rows[2:]] == [name.name for name in NAMES]


def test_a_table_replaces_the_one_before() -> None:
    """What stands around it stays."""
    made = table(NAMES[:1], {"1.0": ["yes"]})
    assert with_table("before\n| name |\n| old |\n\nafter", made) == f"before\n{made}\n\nafter"
    assert made.split("\n")[2] == f"| {NAMES[0].name} | yes | {NAMES[0].off} |"
