"""Model versions in a bucket, through fsspec: ``s3://bucket/folder``, or another address that it reads.

::

    versions/<version>/<file>    its files; manifest.json comes last and goes first
    unneeded/<version>           since when nothing needs the version

So a version is there if its manifest is. Nothing of it is read in place: what is used is fetched into a
folder of this process, compared with the manifest there, and renamed into place. Buckets replace no object by
comparison, at least not all of them: what is promoted is kept in the database.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from evenmesh_reranker.models.manifest import (
    FILE,
    FileEntry,
    Lineage,
    Manifest,
    ManifestError,
    StoreAwayError,
)
from evenmesh_reranker.models.store import VERSION, Draft

KEPT: Final = 3
"""Versions used last that stay in the local folder whatever its bound: they may be in use."""

_MANIFEST_BYTES: Final = 2**24
_PART: Final = 2**22
_ABANDONED_S: Final = 24 * 3600.0
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def is_address(place: str) -> bool:
    """Return whether a place is an address such as ``s3://bucket``, and not a folder."""
    return _URL.match(place) is not None


class BucketStore:
    """A :class:`evenmesh_reranker.models.ports.VersionStore`. Its methods wait for a network.

    Credentials and endpoint are those of the environment, as the file system's library reads them.

    Args:
        address: the bucket, and a folder in it.
        local: folder of this process for versions in use; the first use makes it.
        local_bytes: most bytes of the versions there; those used longest ago go first. A version that has
            more by itself is not fetched.
        clock: returns the time now, UTC.

    Raises:
        ImportError: what reads the address is not installed.
        ValueError: nothing reads such an address.
    """

    def __init__(
        self,
        address: str,
        local: Path,
        *,
        local_bytes: int,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._system, path = _opened(address)
        self._versions = f"{path.rstrip('/')}/versions"
        self._unneeded = f"{path.rstrip('/')}/unneeded"
        self._local = local
        self._incoming = local / "incoming"
        self._local_bytes = local_bytes
        self._clock = clock
        self._fetching = threading.Lock()

    @contextmanager
    def write(self, lineage: Lineage) -> Iterator[Draft]:
        """Make a version of the files that the block writes into the draft's folder; none if it raises.

        Raises:
            ManifestError: nothing was written, the lineage contradicts itself, or the bucket does not answer.
            OSError: the local disk.
        """
        draft = Draft(self._draft())
        try:
            yield draft
            manifest = Manifest.of(draft.folder, lineage, tuple(sorted(draft.tokens)), self._clock())
            manifest.write(draft.folder)
            self.unmark(manifest.version)
            if not self._whole(manifest):
                for name in (*manifest.files, FILE):
                    self._put(draft.folder / name, f"{self._versions}/{manifest.version}/{name}")
            draft.version = manifest.version
        finally:
            shutil.rmtree(draft.folder, ignore_errors=True)

    def manifests(self, known: Mapping[str, Manifest]) -> dict[str, Manifest]:
        """See the port."""
        found = {}
        for info in self._listed(self._versions):
            version = str(info["name"]).rstrip("/").rpartition("/")[2]
            if not VERSION.fullmatch(version):
                continue
            try:
                found[version] = known.get(version) or self.manifest(version)
            except StoreAwayError:
                raise
            except ManifestError:
                continue  # manifest() names the problem of a damaged version to whoever asks for it
        return found

    def has(self, version: str) -> bool:
        """See the port."""
        return bool(VERSION.fullmatch(version)) and self._info(self._manifest_of(version)) is not None

    def manifest(self, version: str) -> Manifest:
        """See the port."""
        content = self._read(self._manifest_of(version), _MANIFEST_BYTES)
        if content is None:
            raise ManifestError("its manifest cannot be read: it is not in the bucket")
        return _checked(Manifest.parse(content), version)

    def verified(self, version: str) -> tuple[Path, Manifest]:
        """See the port; the folder is the local one, which the version is fetched to.

        A version that is there serves also while the bucket does not answer.
        """
        folder = self._local / version
        try:
            self.unmark(version)
            manifest = self.manifest(version)
        except StoreAwayError:
            if not folder.is_dir():
                raise
            manifest = _checked(Manifest.read(folder), version)
        with self._fetching:
            if not self._is_local(folder, manifest):
                self._fetch(manifest, folder)
            # What is used last stays longest.
            os.utime(folder)
        return folder, manifest

    def state(self, version: str) -> tuple[object, ...] | None:
        """See the port: size and time of the manifest, without which there is no version."""
        try:
            info = self._info(self._manifest_of(version))
        except StoreAwayError:
            return None
        if info is None:
            return ()
        changed = next(
            (info[key] for key in ("ETag", "etag", "mtime", "LastModified", "created") if info.get(key)), ""
        )
        return (info.get("size"), str(changed))

    def marks(self) -> dict[str, datetime]:
        """See the port."""
        found = {}
        for info in self._listed(self._unneeded):
            version = str(info["name"]).rpartition("/")[2]
            if VERSION.fullmatch(version) and (since := self._since(version)) is not None:
                found[version] = since
        return found

    def mark(self, version: str) -> timedelta:
        """See the port."""
        now = self._clock()
        since = self._since(version)
        if since is None:
            with self._away(), self._system.open(f"{self._unneeded}/{version}", "wb") as stream:
                stream.write(now.isoformat().encode())
            return timedelta(0)
        return now - since

    def unmark(self, version: str) -> None:
        """See the port."""
        self._delete(f"{self._unneeded}/{version}")

    def remove(self, version: str) -> bool:
        """See the port; :meth:`tidy` removes what a process leaves that dies here."""
        there = self._delete(self._manifest_of(version))
        for info in self._listed(f"{self._versions}/{version}"):
            self._delete(str(info["name"]))
        self.unmark(version)
        return there

    def tidy(self) -> None:
        """See the port."""
        for path in self._incoming.iterdir() if self._incoming.is_dir() else ():
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(path, ignore_errors=True)
        for folder in self._listed(self._versions):
            files = self._listed(str(folder["name"]))
            if any(str(info["name"]).rpartition("/")[2] == FILE for info in files):
                continue
            times = [_time(info) for info in files]
            if all(at is not None and self._clock() - at > timedelta(seconds=_ABANDONED_S) for at in times):
                for info in files:
                    self._delete(str(info["name"]))

    def _draft(self) -> Path:
        self._incoming.mkdir(parents=True, exist_ok=True)
        draft = self._incoming / secrets.token_hex(8)
        draft.mkdir()
        return draft

    def _whole(self, manifest: Manifest) -> bool:
        """Return whether the bucket has a version with all its files: who removed one may have left some."""
        there = {str(info["name"]).rpartition("/")[2]: info.get("size") for info in self._listed_of(manifest)}
        return FILE in there and all(there.get(name) == one.size for name, one in manifest.files.items())

    def _listed_of(self, manifest: Manifest) -> list[dict[str, Any]]:
        return self._listed(f"{self._versions}/{manifest.version}")

    def _is_local(self, folder: Path, manifest: Manifest) -> bool:
        try:
            manifest.verify(folder)
        except ManifestError:
            shutil.rmtree(folder, ignore_errors=True)
            return False
        return True

    def _fetch(self, manifest: Manifest, folder: Path) -> None:
        """Fetch a version, verify it, and put it in place as a whole."""
        if manifest.size > self._local_bytes:
            raise ManifestError(f"it has {manifest.size:,} bytes; at most {self._local_bytes:,} are fetched")
        if bad := sorted(name for name in manifest.files if not _is_plain(name)):
            raise ManifestError(f"{bad[0]!r} is no name of a file")
        self._make_room(manifest.size)
        draft = self._draft()
        try:
            for name, entry in manifest.files.items():
                self._get(f"{self._versions}/{manifest.version}/{name}", draft / name, entry)
            manifest.write(draft)
            manifest.verify(draft)
            try:
                draft.rename(folder)
            except OSError:
                # Another process of this home may have fetched it meanwhile.
                if not self._is_local(folder, manifest):
                    raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _make_room(self, size: int) -> None:
        held = []
        for path in self._local.iterdir() if self._local.is_dir() else ():
            # Another process of this home may be removing it.
            with contextlib.suppress(FileNotFoundError):
                if VERSION.fullmatch(path.name):
                    sizes = [file.stat().st_size for file in path.iterdir() if file.name != FILE]
                    held.append((path.stat().st_mtime_ns, path, sum(sizes)))
        held.sort(reverse=True)
        room = self._local_bytes - size
        for at, (_, path, taken) in enumerate(held, start=1):
            room -= taken
            # With what is fetched now, as many stay as may be in use.
            if room < 0 and at >= KEPT:
                shutil.rmtree(path, ignore_errors=True)

    def _get(self, source: str, target: Path, entry: FileEntry) -> None:
        """Fetch a file; never more than its manifest says, which is verified afterwards."""
        left = entry.size + 1
        try:
            with self._away(), self._system.open(source, "rb") as stream, target.open("wb") as file:
                while left > 0 and (part := stream.read(min(left, _PART))):
                    file.write(part)
                    left -= len(part)
        except FileNotFoundError:
            raise ManifestError(f"{target.name} is missing") from None

    def _put(self, source: Path, target: str) -> None:
        with self._away(), source.open("rb") as file, self._system.open(target, "wb") as stream:
            shutil.copyfileobj(file, stream, _PART)

    def _read(self, path: str, most: int) -> bytes | None:
        try:
            with self._away(), self._system.open(path, "rb") as stream:
                content: bytes = stream.read(most + 1)
        except FileNotFoundError:
            return None
        if len(content) > most:
            raise ManifestError(f"its manifest has more than {most:,} bytes")
        return content

    def _since(self, version: str) -> datetime | None:
        content = self._read(f"{self._unneeded}/{version}", 64)
        with contextlib.suppress(ValueError):
            return None if content is None else datetime.fromisoformat(content.decode())
        return None

    def _info(self, path: str) -> dict[str, Any] | None:
        try:
            with self._away():
                self._system.invalidate_cache()
                info: dict[str, Any] = self._system.info(path)
        except FileNotFoundError:
            return None
        return info

    def _listed(self, path: str) -> list[dict[str, Any]]:
        try:
            with self._away():
                # What was listed before may have changed.
                self._system.invalidate_cache()
                found: list[dict[str, Any]] = self._system.ls(path, detail=True)
        except FileNotFoundError:
            return []
        return [info for info in found if str(info["name"]).rstrip("/") != path.rstrip("/")]

    def _delete(self, path: str) -> bool:
        """Delete an object; return whether it was there."""
        if self._info(path) is None:
            return False
        with contextlib.suppress(FileNotFoundError), self._away():
            self._system.rm_file(path)
            return True
        return False

    def _manifest_of(self, version: str) -> str:
        return f"{self._versions}/{version}/{FILE}"

    @contextmanager
    def _away(self) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, ManifestError):
            raise
        except Exception as error:  # each file system has errors of its own
            # Its message may have keys and addresses, which callers must not see.
            raise StoreAwayError(f"the bucket cannot be used now ({type(error).__name__})") from error


def _opened(address: str) -> tuple[Any, str]:
    """Return the file system of an address and its path there; S3 by s3fs if it is there, else by pyarrow."""
    from fsspec.core import split_protocol, url_to_fs

    try:
        system, path = url_to_fs(address)
    except ImportError:
        if not address.lower().startswith("s3://"):
            raise
        from fsspec.implementations.arrow import ArrowFSWrapper
        from pyarrow.fs import S3FileSystem

        # Small files go in one request each, which servers take that know no upload in parts.
        options: dict[str, Any] = {
            "connect_timeout": 5.0,
            "request_timeout": 30.0,
            "allow_delayed_open": True,
        }
        if endpoint := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
            scheme, _, host = endpoint.rpartition("://")
            options |= {"endpoint_override": host.rstrip("/"), "scheme": scheme or "https"}
        return ArrowFSWrapper(S3FileSystem(**options)), str(split_protocol(address)[1])
    return system, path


def _checked(manifest: Manifest, version: str) -> Manifest:
    if manifest.version != version:
        raise ManifestError(f"its manifest is of version {manifest.version}")
    return manifest


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..", FILE) and not {"/", "\\", "\0"} & set(name)


def _time(info: Mapping[str, Any]) -> datetime | None:
    at = next((info[key] for key in ("LastModified", "mtime", "created") if info.get(key)), None)
    if isinstance(at, (int, float)):
        return datetime.fromtimestamp(at, UTC)
    return at.astimezone(UTC) if isinstance(at, datetime) else None
