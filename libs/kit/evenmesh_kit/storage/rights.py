"""Who may read and write a file."""

from __future__ import annotations

import stat
from pathlib import Path


def keep_owners_rights(path: Path) -> None:
    """Take the rights of all but the owner to a file or a folder.

    The owner gets no right that was taken from it.

    Raises:
        OSError: the file is missing, or another user's.
    """
    path.chmod(path.stat().st_mode & stat.S_IRWXU)
