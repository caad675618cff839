"""What the exporter serves, judged by promtool."""

import shutil
import subprocess
from collections.abc import Iterator

import httpx
import pytest

from examples import example_status, held_status, starting_status
from vllmd.model.status import Status
from vllmd.report.exporter import Exporter
from vllmd.report.publication import Publication

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing (apt install prometheus)")


@pytest.fixture(params=[example_status(), starting_status(), held_status()], ids=["serving", "starting", "held"])
def page(request: pytest.FixtureRequest) -> Iterator[bytes]:
    """Give the page of one status as it comes over HTTP."""
    status: Status = request.param
    publication = Publication()
    publication.set(status)
    exporter = Exporter("127.0.0.1:0", publication)
    exporter.start()
    yield httpx.get(f"{exporter.url}/metrics", timeout=10).content
    exporter.close()


def test_metrics_are_clean(page: bytes) -> None:
    """Promtool finds nothing to criticise in names, units and texts."""
    judged = subprocess.run(["promtool", "check", "metrics"], check=False, input=page, capture_output=True, timeout=60)
    assert (judged.returncode, judged.stdout, judged.stderr) == (0, b"", b"")
