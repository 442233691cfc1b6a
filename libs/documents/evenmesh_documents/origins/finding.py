"""Find the files of everything that can be named: paths and patterns of this machine, and addresses."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from evenmesh_documents.data_sets.address import is_data_set
from evenmesh_documents.origins.found import Found, PathError, find
from evenmesh_documents.origins.remote import find_remote, scheme_of
from evenmesh_documents.origins.sites import SiteOptions, find_site

DEFAULT_SITES: Final = SiteOptions()


def find_all(
    paths: Sequence[str], root: Path | None = None, sites: SiteOptions = DEFAULT_SITES
) -> Iterator[Found]:
    """Yield the files of paths, patterns and addresses.

    Args:
        paths: what :func:`evenmesh_documents.origins.found.find` takes; ``file://`` of this machine, which
            is the same; ``ir_datasets:`` and ``hf:`` with the name of a data set; http and https, see
            :func:`evenmesh_documents.origins.sites.find_site`; and what
            :func:`evenmesh_documents.origins.remote.find_remote` takes.
        root: folder that the addresses of files of this machine are relative to.
        sites: how sites are read.

    Raises:
        PathError: one names nothing or cannot be listed; or two files would have the same address.
    """
    local = [_path(one) for one in paths if scheme_of(one) in ("", "file") and not is_data_set(one)]
    seen: dict[str, Path] = {}
    for one in _every(paths, local, root, sites):
        first = seen.setdefault(one.address, one.path)
        if first != one.path:
            raise PathError(f"{first} and {one.path} both have the address {one.address!r}")
        if first is one.path:
            yield one


def _every(
    paths: Sequence[str], local: Sequence[str], root: Path | None, sites: SiteOptions
) -> Iterator[Found]:
    yield from find(local, root)
    for one in paths:
        if is_data_set(one):
            from evenmesh_documents.data_sets.passages import find_data_set

            yield find_data_set(one)
        elif scheme_of(one) in ("http", "https"):
            yield from find_site(one, sites)
        elif scheme_of(one) not in ("", "file"):
            yield from find_remote(one)


def _path(given: str) -> str:
    return unquote(urlsplit(given).path) if scheme_of(given) else given
