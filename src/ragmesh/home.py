"""Where everything of a mesh on this machine lives."""

import os
from pathlib import Path

import platformdirs

VARIABLE = "RAGMESH_HOME"
"""Environment variable that moves it."""


def home() -> Path:
    """``RAGMESH_HOME``, or else the platform's user data folder; absolute, and perhaps not there yet."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else Path(platformdirs.user_data_dir("ragmesh"))
