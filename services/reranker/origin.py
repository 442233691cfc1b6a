"""The model that the settings name: it serves until a version of the model store is promoted.

Needs ``huggingface_hub``; only who loads models imports this.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from meshkit import models
from meshkit.settings import SettingsError, variable
from services.reranker.settings import RerankerSettings

BUNDLED: Final = "bundled"
"""Names the cross-encoder that ships."""


def origin_of(settings: RerankerSettings) -> tuple[Path, str]:
    """Folder and version of the model that ``cross_encoder`` names.

    Raises:
        SettingsError: it cannot be had; one line that names the setting.
    """
    setting = variable(settings, "cross_encoder")
    try:
        if settings.cross_encoder == BUNDLED:
            from services.reranker.bundled import artifact  # imports torch

            folder = artifact.put_together(settings.home / "reranker" / "bundled")
            return folder, models.version(folder)
        folder = models.locate(settings.cross_encoder, allow_download=settings.allow_download)
        if not any(folder.glob("*.safetensors")):
            raise models.ModelError(f"{folder} has no *.safetensors weights; other formats are not loaded")
        return folder, models.version(folder)
    except models.DownloadsOffError as error:
        allow = variable(settings, "allow_download")
        raise SettingsError(f"{setting}: {error}; {allow}=true fetches it") from None
    except models.ModelError as error:
        raise SettingsError(f"{setting}: {error}") from None
