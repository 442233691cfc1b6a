"""Find the files of a model, in a local folder or a snapshot of the hub, and their version.

Models that are not in a folder need ``huggingface_hub``. It is imported for them alone: that takes longer
than to load a bundled model.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final

FETCHED: Final = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""Files to fetch from a hub repository: safetensors, configuration, tokenizer; no code, no pickles."""

_DESCRIBING: Final = frozenset({".json", ".model", ".txt", ".jinja"})
_HASHED_BYTES: Final = 2**30
_BLOCK: Final = 2**16
_BLOCKS: Final = 1024


class ModelError(Exception):
    """Raised when a model cannot be found or loaded; one line that says why."""


class DownloadsOffError(ModelError):
    """Raised for a model that is not on this machine when downloads are off."""


def locate(path: str, *, allow_download: bool) -> Path:
    """Return a model's folder: ``path`` itself if it is a folder, else the hub's snapshot of that repository.

    Raises:
        DownloadsOffError: there is neither folder nor snapshot here, and downloads are off.
        ModelError: the hub does not have it either, or cannot be reached.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError:
        raise ModelError(
            f"there is no folder {path}, and models of the hub need huggingface_hub: in a checkout, "
            "pip install './libs/kit[models]'"
        ) from None
    try:
        return Path(
            snapshot_download(path, local_files_only=not allow_download, allow_patterns=list(FETCHED))
        )
    except HFValidationError:
        raise ModelError(f"there is no folder {path}") from None
    except LocalEntryNotFoundError:
        if allow_download:
            raise ModelError(f"{path} is not a folder, and the hub cannot be reached") from None
        raise DownloadsOffError(f"{path} is neither a folder nor downloaded before") from None
    except (HfHubHTTPError, OSError) as error:
        raise ModelError(f"{path} cannot be downloaded: {one_line(error)}") from None


def model_type(folder: Path) -> str:
    """Return the ``model_type`` in the configuration in ``folder``.

    Raises:
        ModelError: there is no configuration.
    """
    try:
        return str(json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder} has no usable config.json: {one_line(error)}") from None


def version(folder: Path) -> str:
    """Return a model's version: the hub's revision if the folder is a snapshot, else a hash of its files.

    The hash is the first 16 hexadecimal digits of the SHA-256 of configuration, tokenizer and weights. Of
    weights over 1 GiB it covers sizes, headers and 1,024 evenly spaced blocks of 64 KiB.
    """
    resolved = folder.resolve()
    if resolved.parent.name == "snapshots":
        return resolved.name
    digest = hashlib.sha256()
    for path in sorted(p for p in resolved.iterdir() if p.suffix in _DESCRIBING):
        digest.update(path.name.encode() + path.read_bytes())
    weights = sorted(resolved.glob("*.safetensors"))
    whole = sum(path.stat().st_size for path in weights) <= _HASHED_BYTES
    for path in weights:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}".encode())
        with path.open("rb") as stream:
            if whole:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
                continue
            for at in range(0, size, max(_BLOCK, size // _BLOCKS)):
                stream.seek(at)
                digest.update(stream.read(_BLOCK))
    return digest.hexdigest()[:16]


def one_line(error: BaseException) -> str:
    """Return an error's message in one line of at most 300 characters."""
    return " ".join(str(error).split())[:300]
