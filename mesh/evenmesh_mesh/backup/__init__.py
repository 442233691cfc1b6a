"""Back up a running mesh, and restore it: docs/operate/backup.md."""

from evenmesh_mesh.backup.manifest import BackupError, Manifest, Part
from evenmesh_mesh.backup.restoring import restore, verified
from evenmesh_mesh.backup.stores import Stores
from evenmesh_mesh.backup.taking import take

__all__ = ["BackupError", "Manifest", "Part", "Stores", "restore", "take", "verified"]
