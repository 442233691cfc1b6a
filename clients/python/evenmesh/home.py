"""Find the folder of the mesh of this machine."""

import os
from pathlib import Path

import platformdirs

VARIABLE = "EVENMESH_HOME"
"""Environment variable that names another folder."""


def home() -> Path:
    """Return ``EVENMESH_HOME``, or the platform's user data folder; absolute, and it may not exist yet."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else Path(platformdirs.user_data_dir("evenmesh"))
