"""A mesh of stand-in services: real processes, no models."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evenmesh_mesh import SERVICES, MeshSettings

STAND_INS = Path(__file__).parent / "stand_ins"

MakeSettings = Callable[..., MeshSettings]


@pytest.fixture
def stand_in_settings(tmp_path: Path) -> MakeSettings:
    """Settings of a stand-in mesh of two services, with free ports, under the test's own home.

    ``behave`` says which service behaves how; ``names`` which services there are; further arguments replace
    what they name.
    """

    def make(
        behave: dict[str, str] | None = None,
        names: tuple[str, ...] = ("generator", "orchestrator"),
        **changes: Any,
    ) -> MeshSettings:
        path = os.pathsep.join([str(STAND_INS), *filter(None, [os.environ.get("PYTHONPATH")])])
        behaviours = {f"STAND_IN_{name.upper()}": value for name, value in (behave or {}).items()}
        settings = MeshSettings(
            home=tmp_path / "home",
            port=0,
            grace_s=2.0,
            backoff_s=0.05,
            environment={"PYTHONPATH": path, **behaviours},
            services=tuple(
                replace(service, module="stand_in", needs=tuple(set(service.needs) & set(names)))
                for service in SERVICES
                if service.name in names
            ),
        )
        return replace(settings, **changes)

    return make
