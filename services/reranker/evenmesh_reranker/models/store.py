"""Model versions on disk, and pointers to the served ones.

::

    versions/<version>/          an immutable folder: manifest.json and the files it lists
    serving/all.json             what serves all agents of the default tenant, and what did before
    serving/<digest>.json        the same for one agent, and for all agents of another tenant
    serving/lock                 held while a pointer changes
    incoming/<random>/           a version being written or removed
    unneeded/<version>           since when nothing needs the version, see evenmesh_reranker.models.retention

A version is written into ``incoming`` and renamed into ``versions`` once it is on the disk; a pointer file is
replaced by rename. A process that dies at any point leaves the state before or after, never a part. Any
process may write versions: a trainer does, and asks the reranker to promote them.

Rerankers on several machines share the folder of versions and keep the pointers in their database instead
(:class:`evenmesh_reranker.backends.sql.promotions.SqlPromotions`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_kit.storage import durable_files
from evenmesh_reranker.domain import Agent, AllAgents, Scope
from evenmesh_reranker.models.manifest import AWAY, Lineage, Manifest, ManifestError

VERSION: Final = re.compile(r"[0-9a-f]{16}")
"""Name of a version."""

_HISTORY: Final = 100
_ABANDONED_S: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Pointer:
    """The version promoted for a scope.

    Attributes:
        serving: the version. None stands for the default model (all agents of a tenant), or for the version
            that all agents get (one agent).
        history: what served before it, the latest first.
    """

    serving: str | None = None
    history: tuple[str | None, ...] = ()

    def promoted(self, version: str | None) -> Pointer:
        """Return the pointer with another version; the same version changes nothing."""
        if version == self.serving:
            return self
        return Pointer(version, (self.serving, *self.history)[:_HISTORY])

    def rolled_back(self) -> Pointer | None:
        """Return the pointer with the version before; None if there was none."""
        return Pointer(self.history[0], self.history[1:]) if self.history else None


class Draft:
    """A version that is being written.

    Attributes:
        folder: where its files go.
        tokens: agent tokens of its tokenizer; the writer sets them.
        version: its name, once it is in the store.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokens: tuple[str, ...] = ()
        self.version = ""


class ModelStore:
    """Versions under a folder. Its methods read and write files: call them in a thread.

    Args:
        folder: the folder; the first write makes it.
        clock: returns the time now, UTC.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._versions = folder / "versions"
        self._serving = folder / "serving"
        self._incoming = folder / "incoming"
        self._unneeded = folder / "unneeded"
        self._clock = clock

    @contextmanager
    def write(self, lineage: Lineage) -> Iterator[Draft]:
        """Make a version of the files that the block writes into the draft's folder; none if it raises.

        Args:
            lineage: where the version comes from.

        Raises:
            ManifestError: nothing was written, or the lineage contradicts itself.
            OSError: the disk.
        """
        for folder in (self._versions, self._serving, self._incoming):
            folder.mkdir(parents=True, exist_ok=True)
        draft = Draft(self._incoming / secrets.token_hex(8))
        draft.folder.mkdir()
        try:
            yield draft
            manifest = Manifest.of(draft.folder, lineage, tuple(sorted(draft.tokens)), self._clock())
            manifest.write(draft.folder)
            durable_files.sync_files(draft.folder)
            target = self._versions / manifest.version
            self.unmark(manifest.version)
            try:
                if not target.exists():
                    draft.folder.rename(target)
                    durable_files.sync_folder(self._versions)
            except OSError:
                # Another process may have written the same version meanwhile.
                if not target.exists():
                    raise
            draft.version = manifest.version
        finally:
            shutil.rmtree(draft.folder, ignore_errors=True)

    def manifests(self, known: Mapping[str, Manifest]) -> dict[str, Manifest]:
        """Return all versions with a readable manifest; those in ``known`` are not read again."""
        found = {}
        for path in self._versions.iterdir() if self._versions.is_dir() else ():
            # manifest() names the problem of a damaged version to whoever asks for it.
            with contextlib.suppress(ManifestError):
                if VERSION.fullmatch(path.name):
                    found[path.name] = known.get(path.name) or self.manifest(path.name)
        return found

    def has(self, version: str) -> bool:
        """Return whether there is a version of that name, whole or damaged."""
        return bool(VERSION.fullmatch(version)) and self.folder(version).is_dir()

    def folder(self, version: str) -> Path:
        """Return the folder of a version."""
        return self._versions / version

    def manifest(self, version: str) -> Manifest:
        """Read the manifest of a version.

        Raises:
            ManifestError: it cannot be read, or is of another version.
        """
        found = Manifest.read(self.folder(version))
        if found.version != version:
            raise ManifestError(f"its manifest is of version {found.version}")
        return found

    def verified(self, version: str) -> tuple[Path, Manifest]:
        """Return a version's folder and manifest after comparing each file with the manifest.

        The version is not removed for a while then, so that the caller can load it.

        Raises:
            ManifestError: it is damaged.
        """
        self.unmark(version)
        folder = self.folder(version)
        manifest = self.manifest(version)
        manifest.verify(folder)
        return folder, manifest

    def state(self, version: str) -> tuple[tuple[str, int, int], ...] | None:
        """Return names, sizes and times of a version's files, which tell that one was changed; cheap.

        () if there is no such version; None while it is not known, as its file system does not answer.
        """
        found = []
        try:
            for path in self.folder(version).iterdir():
                status = path.stat()
                found.append((path.name, status.st_size, status.st_mtime_ns))
        except OSError as error:
            return None if error.errno in AWAY else tuple(sorted(found))
        return tuple(sorted(found))

    def pointer(self, scope: Scope) -> Pointer:
        """Read the pointer of a scope; an empty one if nothing was promoted.

        Raises:
            ManifestError: the pointer file cannot be understood.
        """
        try:
            return _read_pointer(self._pointer_path(scope))[1]
        except FileNotFoundError:
            return Pointer()

    def set_pointer(self, scope: Scope, pointer: Pointer) -> None:
        """Replace the pointer of a scope; durable on return.

        Raises:
            OSError: the disk.
        """
        self._serving.mkdir(parents=True, exist_ok=True)
        agent = {"task_id": scope.task_id, "model_id": scope.model_id} if isinstance(scope, Agent) else None
        data = {
            "tenant": scope.tenant,
            "agent": agent,
            "serving": pointer.serving,
            "history": pointer.history,
        }
        durable_files.replace(self._pointer_path(scope), json.dumps(data).encode())

    def pointers(self) -> tuple[dict[Scope, Pointer], list[ManifestError]]:
        """Return all pointers by scope, and what is wrong with files that cannot be understood."""
        found: dict[Scope, Pointer] = {}
        problems = []
        for path in sorted(self._serving.glob("*.json")) if self._serving.is_dir() else ():
            try:
                scope, pointer = _read_pointer(path)
            except FileNotFoundError:
                continue
            except ManifestError as error:
                problems.append(error)
                continue
            if path == self._pointer_path(scope):
                found[scope] = pointer
            else:
                problems.append(ManifestError(f"{path.name} is not named after its scope"))
        return found, problems

    def marks(self) -> dict[str, datetime]:
        """Return since when each version that is marked as unneeded has been (UTC)."""
        found = {}
        for path in self._unneeded.iterdir() if self._unneeded.is_dir() else ():
            # One that is being written, or was by a process that died, is none.
            with contextlib.suppress(FileNotFoundError, ValueError):
                if VERSION.fullmatch(path.name):
                    found[path.name] = datetime.fromisoformat(path.read_text(encoding="ascii"))
        return found

    def mark(self, version: str) -> timedelta:
        """Mark a version as unneeded, and return for how long it has been marked.

        Raises:
            OSError: the disk.
        """
        now = self._clock()
        path = self._unneeded / version
        try:
            return now - datetime.fromisoformat(path.read_text(encoding="ascii"))
        except ValueError:
            path.unlink(missing_ok=True)  # half of it, from a process that died
        except FileNotFoundError:
            self._unneeded.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another process marks it in this moment
            durable_files.write(path, now.isoformat().encode())
            durable_files.sync_folder(self._unneeded)
        return timedelta(0)

    def unmark(self, version: str) -> None:
        """Take the mark of a version away; do nothing in a store that is only readable."""
        with contextlib.suppress(OSError):
            (self._unneeded / version).unlink(missing_ok=True)

    def remove(self, version: str) -> bool:
        """Remove a version at once; return False if another process already did.

        Raises:
            OSError: the disk.
        """
        self._incoming.mkdir(parents=True, exist_ok=True)
        gone = self._incoming / f"{version}-{secrets.token_hex(4)}"
        try:
            (self._versions / version).rename(gone)
        except FileNotFoundError:
            return False
        finally:
            self.unmark(version)
        durable_files.sync_folder(self._versions)
        # tidy() removes what a process leaves that dies here.
        shutil.rmtree(gone, ignore_errors=True)
        return True

    def pointed_at(self, scope: Scope) -> datetime | None:
        """Return when the pointer of a scope was last changed (UTC); None if it never was."""
        try:
            return datetime.fromtimestamp(self._pointer_path(scope).stat().st_mtime, UTC)
        except FileNotFoundError:
            return None

    def pointers_stamp(self) -> tuple[tuple[str, int, int], ...]:
        """Return what changes whenever a pointer file is replaced: a clock may tick too rarely to tell."""
        found = []
        for path in self._serving.glob("*.json") if self._serving.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                found.append((path.name, status.st_ino, status.st_mtime_ns))
        return tuple(sorted(found))

    def lock_file(self) -> Path:
        """Return the path of the file whose lock is held while a pointer changes; its folder is there."""
        self._serving.mkdir(parents=True, exist_ok=True)
        return self._serving / "lock"

    def tidy(self) -> None:
        """Remove what a dead process was writing or removing, once it is a day old."""
        for path in self._incoming.iterdir() if self._incoming.is_dir() else ():
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(path, ignore_errors=True)

    def _pointer_path(self, scope: Scope) -> Path:
        if scope == AllAgents():
            return self._serving / "all.json"
        # The default tenant is left out, so that files from before there were tenants keep their names.
        tenant = [] if scope.tenant == DEFAULT_TENANT else [scope.tenant]
        ids = [scope.task_id, scope.model_id] if isinstance(scope, Agent) else []
        name = hashlib.sha256(json.dumps([*ids, *tenant]).encode()).hexdigest()[:32]
        return self._serving / f"{name}.json"


def _read_pointer(path: Path) -> tuple[Scope, Pointer]:
    """Read a pointer file and its scope; raise FileNotFoundError if there is none."""
    try:
        data = json.loads(path.read_bytes())
        tenant, agent = str(data.get("tenant", DEFAULT_TENANT)), data["agent"]
        history = tuple(None if one is None else str(one) for one in data["history"])
        pointer = Pointer(None if data["serving"] is None else str(data["serving"]), history)
        if agent is None:
            return AllAgents(tenant), pointer
        return Agent(str(agent["task_id"]), str(agent["model_id"]), tenant), pointer
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ManifestError(f"{path.name} cannot be understood: {type(error).__name__}") from None
