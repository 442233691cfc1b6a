"""Finding and loading models: a folder or a snapshot of the hub, safetensors only, no code of theirs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""What is fetched of a hub repository: weights as safetensors, configuration, tokenizer."""

_HASHED_BYTES = 2**30
"""Weights up to this size are hashed whole; of larger ones, the headers and evenly spaced blocks."""

_BLOCK = 2**16
_BLOCKS = 1024


class ModelError(Exception):
    """A model that cannot be had; one line that says why."""


class DownloadsOffError(ModelError):
    """A model that may be on the hub, which may not be asked."""


class DeviceError(ModelError):
    """No such device."""


@dataclass(frozen=True)
class Placement:
    """Where a model computes and in which number type."""

    device: torch.device
    dtype: torch.dtype

    @staticmethod
    def choose(device: str, dtype: str) -> Placement:
        """``auto`` device: the first CUDA device, else the CPU; ``auto`` dtype: bfloat16 where it is faster.

        That is on GPUs that have it and on CPUs with bfloat16 dot products (AMX or AVX-512 BF16; twice the
        float32 matrix speed), float32 elsewhere.

        Raises:
            DeviceError: there is no such device.
        """
        name = ("cuda:0" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        try:
            place = torch.device("cuda:0" if name == "cuda" else name)
            torch.empty(1, device=place)
        except (RuntimeError, AssertionError):
            raise DeviceError(f"no device {name!r} on this machine") from None
        if dtype != "auto":
            return Placement(place, getattr(torch, dtype))
        if place.type == "cuda":
            fast = torch.cuda.is_bf16_supported(including_emulation=False)
        else:
            capabilities = torch.cpu.get_capabilities()
            fast = place.type == "cpu" and bool(
                capabilities.get("amx_bf16") or capabilities.get("avx512_bf16")
            )
        return Placement(place, torch.bfloat16 if fast else torch.float32)


def locate(path: str, *, allow_download: bool) -> Path:
    """Folder of a model: ``path`` itself if it is a folder, else the hub's snapshot of that repository.

    Raises:
        DownloadsOffError: there is neither folder nor snapshot here, and the hub may not be asked.
        ModelError: the hub has none either, or cannot be reached.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    try:
        return Path(snapshot_download(path, local_files_only=not allow_download, allow_patterns=list(_FILES)))
    except HFValidationError:
        raise ModelError(f"there is no folder {path}") from None
    except LocalEntryNotFoundError:
        if allow_download:
            raise ModelError(f"{path} is not a folder, and the hub cannot be reached") from None
        raise DownloadsOffError(f"{path} is neither a folder nor downloaded before") from None
    except (HfHubHTTPError, OSError) as error:
        raise ModelError(f"{path} cannot be downloaded: {_one_line(error)}") from None


def model_type(folder: Path) -> str:
    """The kind of model in ``folder``, ``model_type`` of its configuration.

    Raises:
        ModelError: there is no configuration.
    """
    try:
        return str(json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder} has no usable config.json: {_one_line(error)}") from None


def load(folder: Path, placement: Placement) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model, ready to compute, and its tokenizer.

    Raises:
        ModelError: weights or tokenizer are missing or do not fit the configuration, or the architecture
            would need code of its own.
    """
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{folder} has no *.safetensors weights; other formats are not loaded")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        auto: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        model = auto.from_pretrained(
            folder,
            config=config,
            dtype=placement.dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelError(f"{folder} cannot be loaded: {_one_line(error)}") from None
    return model.to(placement.device).eval(), tokenizer


def version(folder: Path) -> str:
    """Version of a model: the hub's revision if the folder is a snapshot, else a hash of its files.

    The hash is the first 16 hexadecimal digits of the SHA-256 of configuration, tokenizer and weights; of
    weights over 1 GiB, of their sizes, headers and 1,024 evenly spaced blocks of 64 KiB.
    """
    resolved = folder.resolve()
    if resolved.parent.name == "snapshots":
        return resolved.name
    digest = hashlib.sha256()
    for path in sorted(p for p in resolved.iterdir() if p.suffix in {".json", ".model", ".txt", ".jinja"}):
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


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
