"""Backups of a mesh that runs, and what brings them back: docs/backup.md."""

from ragmesh.backup.manifest import BackupError, Manifest, Part
from ragmesh.backup.restoring import restore, verified
from ragmesh.backup.stores import Stores
from ragmesh.backup.taking import take

__all__ = ["BackupError", "Manifest", "Part", "Stores", "restore", "take", "verified"]
