"""Find the files of an address such as ``s3://bucket/folder``, by fsspec; they are fetched one by one."""

import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from evenmesh_documents.document import MissingError, UnreadableError
from evenmesh_documents.origins.found import Found, PathError, addressed

MAX_FILES: Final = 1_000_000
"""Most files of one address."""

_URL: Final = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_MAGIC: Final = re.compile(r"[*?\[]")
_STATED: Final = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "updated", "mtime", "created")
"""What file systems state that changes with a file."""


def scheme_of(path: str) -> str:
    """Return the scheme of an address such as ``s3://bucket/folder``, in small letters; empty for a path."""
    found = _URL.match(path)
    return found[1].lower() if found is not None else ""


def find_remote(url: str) -> Iterator[Found]:
    """Yield the files below an address, by their address relative to it; none is fetched yet.

    The address may be a folder, a file, or a pattern with ``*``, ``**``, ``?`` and ``[…]``. Files and folders
    whose name begins with a dot are left out. Credentials and endpoints are those of the environment, as
    fsspec and the file system's own library read them.

    Args:
        url: the address; what reads its scheme must be installed, such as s3fs for ``s3``.

    Raises:
        PathError: it cannot be listed, has too many files, or names none.
    """
    if "::" in url:
        raise PathError(f"{url}: addresses of one file system within another are not read")
    try:
        system, path = opened(url)
        # What was listed before may have changed.
        system.invalidate_cache()
        fixed = path.rstrip("/")
        if _MAGIC.search(fixed):
            parts = fixed.split("/")
            at = next(at for at, part in enumerate(parts) if _MAGIC.search(part))
            listed = system.glob(fixed, detail=True)
            fixed = "/".join(parts[:at])
        else:
            listed = system.find(fixed, detail=True)
    except ImportError as exc:
        raise PathError(f"{url}: needs a package that is not installed ({exc})") from exc
    except Exception as exc:  # each file system has errors of its own, and none of them means "empty"
        raise PathError(f"{url}: cannot be listed ({type(exc).__name__}: {exc})") from exc
    entries = {name: info for name, info in listed.items() if info.get("type") == "file"}
    if not entries:
        raise PathError(f"{url}: names no file")
    if len(entries) > MAX_FILES:
        raise PathError(f"{url}: has {len(entries):,} files, at most {MAX_FILES:,} are read")
    for name in sorted(entries):
        inner = name.removeprefix(fixed).lstrip("/") or name.rpartition("/")[2]
        segments = inner.split("/")
        path_of = Path(f"{scheme_of(url)}:{name}")
        if {"", ".", ".."} & set(segments):
            yield Found(path_of, addressed(inner), "has a name that leads elsewhere")
        elif not any(one.startswith(".") for one in segments):
            fetch = partial(_fetched, system, name, entries[name].get("size"))
            yield Found(path_of, addressed(inner), fetch=fetch, stamp=_stamp(entries[name]))


def opened(url: str) -> tuple[Any, str]:
    """Return the file system of an address and its path there.

    Buckets of S3 are read by s3fs where it is installed, else by pyarrow.

    Raises:
        ImportError: what reads its scheme is not installed.
    """
    from fsspec.core import split_protocol, url_to_fs

    try:
        system, path = url_to_fs(url)
    except ImportError:
        if scheme_of(url) != "s3":
            raise
        from fsspec.implementations.arrow import ArrowFSWrapper
        from pyarrow.fs import S3FileSystem

        return ArrowFSWrapper(S3FileSystem(**_s3_options())), str(split_protocol(url)[1])
    return system, path


def _s3_options() -> dict[str, Any]:
    """Return the endpoint of the environment, as the tools of AWS name it; pyarrow reads the credentials."""
    address = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not address:
        return {}
    scheme, _, host = address.rpartition("://")
    return {"endpoint_override": host.rstrip("/"), "scheme": scheme or "https"}


def _fetched(system: Any, name: str, size: object, most: int) -> bytes:
    """Return the bytes of a file.

    Raises:
        MissingError: it is not there any more.
        UnreadableError: it cannot be fetched, or has more than ``most`` bytes.
    """
    if isinstance(size, int) and size > most:
        raise UnreadableError(f"has {size:,} bytes, at most {most:,} are read")
    try:
        with system.open(name, "rb") as stream:
            data: bytes = stream.read(most + 1)
    except FileNotFoundError as exc:
        raise MissingError("is not there any more") from exc
    except Exception as exc:  # as above: only this file is lost
        raise UnreadableError(f"cannot be fetched ({type(exc).__name__})") from exc
    if len(data) > most:
        raise UnreadableError(f"has more than {most:,} bytes")
    return data


def _stamp(info: Mapping[str, Any]) -> str:
    stated = [f"{key}={info[key]}" for key in _STATED if info.get(key)]
    return f"{info.get('size')} {' '.join(stated)}" if stated else ""
