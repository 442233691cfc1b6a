"""The default model, which the settings name: it serves until a version of the model store is promoted.

Needs ``huggingface_hub``: import it only to load models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from evenmesh_kit.compute import model_files
from evenmesh_kit.compute.conversions import folder_of_user
from evenmesh_kit.settings import SettingsError, variable
from evenmesh_reranker import bundled
from evenmesh_reranker.settings import RerankerSettings

BUNDLED: Final = "bundled"
"""Value of the setting ``cross_encoder`` that names the bundled cross-encoder."""


def default_model(settings: RerankerSettings) -> tuple[Path, str]:
    """Return folder and version of the model that ``cross_encoder`` names.

    Raises:
        SettingsError: the model cannot be found; one line that names the setting.
    """
    setting = variable(settings, "cross_encoder")
    try:
        if settings.cross_encoder == BUNDLED:
            folder = bundled.assembled(folder_of_user("bundled", settings.home / "reranker"))
        else:
            folder = model_files.locate(settings.cross_encoder, allow_download=settings.allow_download)
            if not any(folder.glob("*.safetensors")):
                message = f"{folder} has no *.safetensors weights; other formats are not loaded"
                raise model_files.ModelError(message)
        return folder, model_files.version(folder)
    except model_files.DownloadsOffError as error:
        allow = variable(settings, "allow_download")
        raise SettingsError(f"{setting}: {error}; {allow}=true fetches it") from None
    except model_files.ModelError as error:
        raise SettingsError(f"{setting}: {error}") from None
