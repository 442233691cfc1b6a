"""Tables of a load test: what each says, and no more digits than a load test knows."""

from __future__ import annotations

import math

import pytest

from evenmesh_lab.reports import as_markdown
from evenmesh_lab.studies.tables import Table
from evenmesh_studies.load.reporting.tables import loads_table, processors_table, run_tables
from evenmesh_studies.load.resource_monitor import ResourceUsage
from evenmesh_studies.load.run import LoadRun, evaluate_run
from evenmesh_studies.load.settings import CallSettings
from evenmesh_studies.load.step import StepResult

from .conftest import Make


def _run(*steps: StepResult) -> LoadRun:
    return evaluate_run("load", CallSettings(), steps, None, {}, local=True, seed=0)


def _row(table: Table) -> dict[str, object]:
    return dict(zip((column.name for column in table.columns), table.rows[0], strict=True))


@pytest.mark.parametrize(
    ("latency", "written"),
    [(1234.4, "1,234"), (99.96, "100"), (45.678, "45.7"), (1.2345, "1.23"), (0.0018, "0.00")],
)
def test_a_time_has_three_digits_at_most(make: Make, latency: float, written: str) -> None:
    assert _row(loads_table(_run(make([latency] * 5, callers=1))))["most"] == written


def test_what_is_not_known_is_no_number(make: Make) -> None:
    due = _row(loads_table(_run(make([10.0] * 5, callers=1))))["offered"]  # callers are due when they have it
    assert isinstance(due, float)
    assert math.isnan(due)


def test_shares_of_services_are_of_all_cores(make: Make) -> None:
    usage = ResourceUsage(elapsed_s=10.0, cores=2, machine_cpu_s=15.0, services_cpu_s={"reranker": 12.0})
    row = _row(processors_table(_run(make([10.0] * 5, callers=1, usage=usage))))
    assert (row["machine"], row["reranker"], row["client"]) == ("75.0", "60.0", "1.00")


def test_a_table_of_a_run_has_a_line_of_a_screen(make: Make) -> None:
    services = dict.fromkeys(("generator", "retriever", "reranker", "evaluator", "orchestrator"), 2.0)
    usage = ResourceUsage(elapsed_s=10.0, cores=2, machine_cpu_s=15.0, services_cpu_s=services)
    page = as_markdown(list(run_tables(_run(make([1234.4] * 5, callers=16, usage=usage)))))
    assert max(len(line) for line in page.splitlines() if line.startswith("|")) <= 160
