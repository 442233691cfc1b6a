"""Fetch the files of models from the hub or a bucket into folders of their names.

Several processes may fetch into one folder, such as the pods that share a volume: a model appears under its
name when all of its files are there, and whoever comes second leaves it as it is.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evenmesh_documents.origins.remote import opened, scheme_of

FETCHED: Final = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""Files that are fetched: weights as safetensors, configuration, tokenizer; no code, no pickles."""
MOST_MODELS: Final = 64
MOST_FILES: Final = 10_000
"""Most files of one model."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_REPOSITORY: Final = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?(@[\w./-]{1,128})?", re.ASCII)
_ADDRESS: Final = 1024
_SOURCE: Final = ".evenmesh-source"
_BLOCK: Final = 8 * 2**20
_STALE_S: Final = 86_400.0


class FetchError(Exception):
    """Raised when a model cannot be fetched; one line that says why and what to do."""


@dataclass(frozen=True)
class NamedModel:
    """A model and where it is.

    Attributes:
        name: of its folder.
        source: a repository of the hub, ``name@revision`` for one of its revisions, or an address such as
            ``s3://bucket/folder``.
    """

    name: str
    source: str

    @classmethod
    def parse(cls, text: str) -> NamedModel:
        """Return what ``name=source`` says.

        Raises:
            FetchError: it says something else.
        """
        name, _, source = text.partition("=")
        if not _NAME.fullmatch(name):
            raise FetchError("a model is NAME=SOURCE, its name 1 to 64 letters, digits, '.', '_' and '-'")
        if scheme_of(source):
            if len(source) > _ADDRESS or "::" in source:
                raise FetchError(f"{name}: an address has at most {_ADDRESS} characters, and no '::'")
        elif not _REPOSITORY.fullmatch(source) or ".." in source:
            raise FetchError(
                f"{name}: its source must be a repository of the hub, such as google/flan-t5-base or "
                "google/flan-t5-base@REVISION, or an address, such as s3://bucket/folder"
            )
        return cls(name, source)


def fetch(model: NamedModel, folder: Path) -> bool:
    """Bring a model to ``folder / model.name``; return whether anything was fetched.

    What is already there is left, and nobody is asked.

    Raises:
        FetchError: another model has the name, or the files cannot be had.
    """
    target = folder / model.name
    if _is_there(model, target):
        return False
    for left in folder.glob(f".fetching-{model.name}-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_S:  # of a process that was killed
                shutil.rmtree(left, ignore_errors=True)
    try:
        making = Path(tempfile.mkdtemp(prefix=f".fetching-{model.name}-", dir=folder))
    except OSError as error:
        raise FetchError(f"{folder} cannot be written: {error.strerror}") from None
    try:
        (_from_address if scheme_of(model.source) else _from_hub)(model, making)
        if not any(making.rglob("*.safetensors")):
            raise FetchError(f"{model.name}: its source has no weights as *.safetensors")
        (making / _SOURCE).write_text(model.source)
        making.chmod(0o755)
        os.sync()  # the name is not there before the files are
        try:
            making.rename(target)
        except OSError:
            if not _is_there(model, target):  # else somebody else was first
                raise FetchError(f"{target} cannot be written") from None
            return False
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return True


def _is_there(model: NamedModel, target: Path) -> bool:
    if not target.exists():
        return False
    try:
        source = (target / _SOURCE).read_text()
    except OSError:
        raise FetchError(
            f"{target} was not fetched by this command: name its folder in the settings, or remove it"
        ) from None
    if source != model.source:
        raise FetchError(f"{target} holds another model or revision: give this one another name")
    return True


def _from_hub(model: NamedModel, folder: Path) -> None:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
    except ImportError:
        raise FetchError("the hub needs the package huggingface_hub") from None
    name, _, revision = model.source.partition("@")
    try:
        snapshot_download(name, revision=revision or None, allow_patterns=list(FETCHED), local_dir=folder)
    except GatedRepoError:
        raise FetchError(f"{model.name}: the hub gives it to known users alone: set HF_TOKEN") from None
    except RevisionNotFoundError:
        raise FetchError(f"{model.name}: the hub has no such revision") from None
    except RepositoryNotFoundError:
        raise FetchError(
            f"{model.name}: the hub has no such repository, or HF_TOKEN may not read it"
        ) from None
    except Exception as error:  # of the hub's library, of its HTTP client and of the file system
        raise FetchError(f"{model.name}: cannot be fetched from the hub ({type(error).__name__})") from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)


def _from_address(model: NamedModel, folder: Path) -> None:
    try:
        system, path = opened(model.source)
        listed = system.find(path.rstrip("/"), detail=True)
    except ImportError as error:
        raise FetchError(
            f"{model.name}: its address needs a package that is not installed: {error}"
        ) from None
    except Exception as error:  # each file system has errors of its own
        raise FetchError(f"{model.name}: its address cannot be listed ({type(error).__name__})") from error
    if len(listed) > MOST_FILES:
        raise FetchError(
            f"{model.name}: its address has {len(listed):,} files, at most {MOST_FILES:,} are read"
        )
    for name in sorted(listed):
        inner = name.removeprefix(path.rstrip("/")).lstrip("/")
        if listed[name].get("type") != "file" or not _wanted(inner):
            continue
        at = folder / inner
        at.parent.mkdir(parents=True, exist_ok=True)
        try:
            with system.open(name, "rb") as stream, at.open("wb") as copy:
                shutil.copyfileobj(stream, copy, _BLOCK)
        except Exception as error:  # as above
            raise FetchError(f"{model.name}: {inner} cannot be fetched ({type(error).__name__})") from error


def _wanted(inner: str) -> bool:
    parts = inner.split("/")
    if {"", ".", ".."} & set(parts) or any(part.startswith(".") for part in parts):
        return False
    return any(fnmatch.fnmatch(inner, pattern) for pattern in FETCHED)


def fetch_all(texts: list[str], folder: Path, on_model: Callable[[NamedModel, bool], object]) -> None:
    """Bring each of ``name=source`` to a folder of its name.

    Args:
        texts: at most :data:`MOST_MODELS`; names differ.
        folder: made if it is not there.
        on_model: called with each model that is there, and whether it was fetched.

    Raises:
        FetchError: of the first that cannot be had; those before it are there.
    """
    if len(texts) > MOST_MODELS:
        raise FetchError(f"at most {MOST_MODELS} models are fetched at a time")
    models = [NamedModel.parse(text) for text in texts]
    names = [one.name for one in models]
    if len(set(names)) < len(names):
        raise FetchError("two models have the same name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FetchError(f"{folder} cannot be made: {error.strerror}") from None
    for model in models:
        on_model(model, fetch(model, folder))
