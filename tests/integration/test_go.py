"""Go, generated from the protos and compiled with Debian's packages, before the real mesh."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenmesh import Client
from tests.integration.conftest import DEMO, RunningMesh
from tests.support.go_tools import said_in_go

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(900)]

QUESTION = "How often should I oil my chain?"


def test_an_ask_streams_the_answer_and_the_shares_of_the_sdk(
    go_ask: Path, mesh: RunningMesh, client: Client
) -> None:
    shown, answered = said_in_go(go_ask, mesh.addresses, DEMO, QUESTION)
    asked = client.answer(QUESTION, alpha=2, samples=4, seed=11, collection=DEMO, observe=False)
    assert answered["text"] == asked.text
    assert answered["seen"][:3] == ["retrieved", "ranked", "delta"]
    assert answered["seen"][-1] == "done"
    assert asked.report is not None
    assert shown["disparity"] == asked.report.ee_d_norm
    assert shown["shares"] == {one.name: one.share for one in asked.report.providers}


def test_an_error_has_its_reason_and_its_field(go_ask: Path, mesh: RunningMesh) -> None:
    (error,) = said_in_go(go_ask, mesh.addresses, "nothing", QUESTION)
    assert (error["code"], error["reason"], error["field"]) == ("NotFound", "NOT_FOUND", "collection")
    assert error["retry_after_ms"] == -1
