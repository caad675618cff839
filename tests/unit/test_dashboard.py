"""The dashboard: made by its generator, its queries are PromQL and name what is exported."""

import subprocess
import sys

import promql_parser
import pytest

from dashboard_queries import DASHBOARD, Query, load, queries
from examples import NOW_S, example_status
from vllmd.report.publication import Publication
from vllmd.report.series import families

# Names that vLLM 0.26.0 (on an H200) and 0.32.0 (on a CPU) were both seen to export.
OF_VLLM = {
    "vllm:generation_tokens_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:prompt_tokens_total",
}
ALL = list(queries())


def names_in(expr: str) -> set[str]:
    """Return the metric names of a query."""
    found: set[str] = set()

    def visit(node: promql_parser.Expr) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            found.add(node.name or "")
        return True

    promql_parser.walk(promql_parser.parse(expr), visit)
    return found


def exported() -> set[str]:
    """Return the names of every series that a full status has."""
    publication = Publication()
    publication.set(example_status())
    published = publication.latest()
    assert published is not None
    return {sample.name for family in families(published, NOW_S) for sample in family.samples}


def test_file_is_what_the_generator_makes() -> None:
    """The committed dashboard is the generator's output: nobody edited it by hand."""
    generator = DASHBOARD.with_name("generate.py")
    made = subprocess.run(
        [sys.executable, "-B", str(generator), "--check"], check=False, capture_output=True, text=True, timeout=60
    )
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("query", ALL, ids=[q.title for q in ALL])
def test_query_names_only_what_is_exported(query: Query) -> None:
    """Every query parses, and names only what the exporter exports for an instance that serves, or vLLM does."""
    unknown = names_in(query.expr) - exported() - OF_VLLM
    assert not unknown


def test_no_variable_is_left_in_a_query() -> None:
    """Every variable that a query uses is one that the dashboard or Grafana has."""
    assert not [query for query in ALL if "$" in query.expr]


def test_panels_do_not_overlap_and_fit() -> None:
    """Panels lie within 24 columns and never on each other."""
    taken: set[tuple[int, int]] = set()
    for panel in load()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells


def test_no_datasource_is_hard_coded() -> None:
    """Every query goes to the data source that the operator picks."""
    panels = load()["panels"]
    uids = {target["datasource"]["uid"] for panel in panels for target in panel["targets"]}
    assert uids == {"${datasource}"}


def test_decisions_are_annotations_with_their_reason() -> None:
    """A decision is drawn at its own time, in milliseconds, with its reason as the text."""
    (annotation,) = load()["annotations"]["list"]
    assert annotation["useValueForTime"] is True
    assert annotation["expr"].endswith("* 1000")
    assert annotation["textFormat"] == "{{reason}}"
