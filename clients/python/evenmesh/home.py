"""Find the folder of the mesh of this machine."""

import os
from pathlib import Path

import platformdirs

VARIABLE = "EVENMESH_HOME"
"""Environment variable that names another folder."""


def home() -> Path:
    """Return ``EVENMESH_HOME``, or the platform's user data folder; absolute, and it may not exist yet."""
    return named(os.environ.get(VARIABLE, ""))


def named(text: str) -> Path:
    """Return the folder that a text names, absolute; ``~`` is the user's, and no text the platform's."""
    return Path(text).expanduser().absolute() if text else Path(platformdirs.user_data_dir("evenmesh"))
