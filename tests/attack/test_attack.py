"""A tenant that attacks with everything at once takes nothing from another: whole processes, a short time.

``make attack`` is the long one, which measures times too.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.attack.__main__ import report
from tests.attack.attacker import ROWS
from tests.attack.standing import endure, mesh_with_tenants

SECONDS = float(os.environ.get("EVENMESH_ATTACK_S", "10"))

pytestmark = [pytest.mark.mesh, pytest.mark.faults, pytest.mark.timeout(SECONDS + 600)]


async def test_a_tenant_under_attack_is_served(tmp_path: Path) -> None:
    with mesh_with_tenants(tmp_path) as mesh:
        seen = await endure(mesh, SECONDS, 1)
    sys.stderr.write(f"\n{report(seen)}\n")
    assert not seen.restarts
    assert not seen.lost
    assert not seen.dropped
    assert not seen.failed
    assert not seen.failed_quiet
    assert not seen.internal
    assert not seen.guessed
    assert not +seen.failed_uploads
    assert not seen.left
    assert seen.uploaded, "nothing was uploaded under attack: the run shows nothing"
    assert seen.attacked_s, "nothing was asked under attack: the run shows nothing"
    rows = {re.split("[:,]", one)[0] for one in seen.outcomes}
    assert rows == {f"row {number}" for number in ROWS}
    by_http = {re.split("[:,]", one)[0] for one in seen.outcomes if ", HTTP: " in one}
    assert by_http == rows
