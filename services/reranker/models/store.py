"""Model versions on disk, and which of them is served.

::

    versions/<version>/          a folder that never changes: manifest.json and what it lists
    serving/all.json             what serves all agents, and what did before
    serving/<digest>.json        the same for one agent's own, and for all agents of another tenant
    incoming/<random>/           being written, or being removed
    unneeded/<version>           since when nothing needs that version, see services.reranker.models.retention

A version is written into ``incoming`` and renamed into ``versions`` when all of it is on the disk; a pointer
file is replaced by rename. So whoever dies at any point leaves what was served before, or what was to be, and
never half of it. Any process may write versions: a trainer does, and asks the reranker to promote them.
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

from services.reranker.domain import DEFAULT_TENANT, Agent, Audience, Everyone
from services.reranker.models import durable
from services.reranker.models.manifest import Lineage, Manifest, ManifestError

_VERSION: Final = re.compile(r"[0-9a-f]{16}")
_HISTORY: Final = 100
_ABANDONED_S: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Pointer:
    """What is served to all agents of a tenant or to one.

    Attributes:
        serving: the version. None: for all agents of a tenant, the model of the settings; for one, what all
            get.
        history: what was served before it, the latest first.
    """

    serving: str | None = None
    history: tuple[str | None, ...] = ()

    def promoted(self, version: str | None) -> Pointer:
        """With another version served; the same is no change."""
        if version == self.serving:
            return self
        return Pointer(version, (self.serving, *self.history)[:_HISTORY])

    def rolled_back(self) -> Pointer | None:
        """With the version before served; None if there was none."""
        return Pointer(self.history[0], self.history[1:]) if self.history else None


class Draft:
    """A version that is being written.

    Attributes:
        folder: where its files go.
        tokens: tokens of agents that its tokenizer has; to be set by who writes it.
        version: its name, once it is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokens: tuple[str, ...] = ()
        self.version = ""


class ModelStore:
    """Versions under a folder. Its methods read and write files: call them in a thread.

    Args:
        folder: where; made when first written.
        clock: what time it is.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._folder = folder
        self._versions = folder / "versions"
        self._serving = folder / "serving"
        self._incoming = folder / "incoming"
        self._unneeded = folder / "unneeded"
        self._clock = clock

    @contextmanager
    def write(self, lineage: Lineage) -> Iterator[Draft]:
        """Makes a new version of what the block writes into the draft's folder; nothing if it raises.

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
            durable.sync_files(draft.folder)
            target = self._versions / manifest.version
            self.unmark(manifest.version)
            if not target.exists():
                draft.folder.rename(target)
                durable.sync_folder(self._versions)
            draft.version = manifest.version
        finally:
            shutil.rmtree(draft.folder, ignore_errors=True)

    def manifests(self, known: Mapping[str, Manifest]) -> dict[str, Manifest]:
        """All versions whose manifest can be read; those known before are not read again."""
        found = {}
        for name in self._names():
            try:
                found[name] = known[name] if name in known else self.manifest(name)
            except ManifestError:  # said by name to who wants it
                continue
        return found

    def has(self, version: str) -> bool:
        """Whether there is a version of that name, whole or not."""
        return bool(_VERSION.fullmatch(version)) and (self._versions / version).is_dir()

    def manifest(self, version: str) -> Manifest:
        """What a version says of itself.

        Raises:
            ManifestError: it cannot be read, or is of another version.
        """
        found = Manifest.read(self._versions / version)
        if found.version != version:
            raise ManifestError(f"its manifest is of version {found.version}")
        return found

    def verified(self, version: str) -> tuple[Path, Manifest]:
        """A version's folder, each file of which was compared with the manifest.

        It is not removed for a while then, so that it can be loaded.

        Raises:
            ManifestError: it is not whole.
        """
        self.unmark(version)
        folder = self._versions / version
        manifest = self.manifest(version)
        manifest.verify(folder)
        return folder, manifest

    def pointer(self, whose: Audience) -> Pointer:
        """What is served to all agents of a tenant, or to one.

        Raises:
            ManifestError: the pointer file cannot be understood.
        """
        try:
            return _pointed(self._pointer_path(whose))[1]
        except FileNotFoundError:
            return Pointer()

    def set_pointer(self, whose: Audience, pointer: Pointer) -> None:
        """Makes a pointer what is served; durable when it returns.

        Raises:
            OSError: the disk.
        """
        self._serving.mkdir(parents=True, exist_ok=True)
        told = {
            "tenant": whose.tenant,
            "agent": {"task_id": whose.task_id, "model_id": whose.model_id}
            if isinstance(whose, Agent)
            else None,
            "serving": pointer.serving,
            "history": pointer.history,
        }
        durable.replace(self._pointer_path(whose), json.dumps(told).encode())

    def pointers(self) -> tuple[dict[Audience, Pointer], list[ManifestError]]:
        """What is served to whom: all agents of a tenant, or one, that has, or had, a version of its own.

        Also what is wrong with pointer files that cannot be understood.
        """
        found: dict[Audience, Pointer] = {}
        problems = []
        for path in sorted(self._serving.glob("*.json")) if self._serving.is_dir() else ():
            try:
                whose, pointer = _pointed(path)
            except FileNotFoundError:
                continue
            except ManifestError as error:
                problems.append(error)
                continue
            if path == self._pointer_path(whose):
                found[whose] = pointer
            else:
                problems.append(ManifestError(f"{path.name} is not named after whom it is for"))
        return found, problems

    def mark(self, version: str) -> timedelta:
        """Notes that nothing needs a version, and tells for how long that has been noted.

        Raises:
            OSError: the disk.
        """
        now = self._clock()
        path = self._unneeded / version
        try:
            since = datetime.fromisoformat(path.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            self._unneeded.mkdir(parents=True, exist_ok=True)
            durable.replace(path, now.isoformat().encode())
            return timedelta(0)
        return now - since

    def unmark(self, version: str) -> None:
        """Notes that something needs a version; what is only read from stays as it is."""
        with contextlib.suppress(OSError):
            (self._unneeded / version).unlink(missing_ok=True)

    def remove(self, version: str) -> bool:
        """Removes a version, all of it at once; False if another process was faster.

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
        durable.sync_folder(self._versions)
        # Who dies here leaves it to tidy().
        shutil.rmtree(gone, ignore_errors=True)
        return True

    def pointed_at(self, whose: Audience) -> datetime | None:
        """When what is served to an audience was last changed (UTC); None if it never was."""
        try:
            return datetime.fromtimestamp(self._pointer_path(whose).stat().st_mtime, UTC)
        except FileNotFoundError:
            return None

    def pointers_changed_ns(self) -> int:
        """When a pointer was last replaced. Nanoseconds since 1970; 0 if none ever was."""
        return self._serving.stat().st_mtime_ns if self._serving.is_dir() else 0

    def tidy(self) -> None:
        """Removes what was being written, or removed, when who did it died: what is a day old."""
        for path in self._incoming.iterdir() if self._incoming.is_dir() else ():
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(path, ignore_errors=True)

    def _names(self) -> list[str]:
        if not self._versions.is_dir():
            return []
        return [path.name for path in self._versions.iterdir() if _VERSION.fullmatch(path.name)]

    def _pointer_path(self, whose: Audience) -> Path:
        if whose == Everyone():
            return self._serving / "all.json"
        # The tenant that there was before there were others has the files it had then.
        tenant = [] if whose.tenant == DEFAULT_TENANT else [whose.tenant]
        ids = [whose.task_id, whose.model_id] if isinstance(whose, Agent) else []
        name = hashlib.sha256(json.dumps([*ids, *tenant]).encode()).hexdigest()[:32]
        return self._serving / f"{name}.json"


def _pointed(path: Path) -> tuple[Audience, Pointer]:
    """Whom a pointer file is for, and what it says; FileNotFoundError where there is none."""
    try:
        told = json.loads(path.read_bytes())
        tenant, agent = str(told.get("tenant", DEFAULT_TENANT)), told["agent"]
        history = tuple(None if one is None else str(one) for one in told["history"])
        pointer = Pointer(None if told["serving"] is None else str(told["serving"]), history)
        if agent is None:
            return Everyone(tenant), pointer
        return Agent(str(agent["task_id"]), str(agent["model_id"]), tenant), pointer
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ManifestError(f"{path.name} cannot be understood: {type(error).__name__}") from None
