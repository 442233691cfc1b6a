"""The store of versions and the promotions that the settings name, for the reranker and for trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from evenmesh_kit.settings import SettingsError, variable
from evenmesh_reranker.backends.sql.database import Database
from evenmesh_reranker.backends.sql.promotions import SqlPromotions
from evenmesh_reranker.models.bucket import BucketStore, is_address
from evenmesh_reranker.models.file_promotions import FilePromotions
from evenmesh_reranker.models.ports import Promotions, VersionStore
from evenmesh_reranker.models.store import ModelStore
from evenmesh_reranker.settings import RerankerSettings

_MB: Final = 10**6


def version_store(settings: RerankerSettings, *, local: str = "model-cache") -> VersionStore:
    """Return the store of versions.

    Args:
        settings: settings of the reranker.
        local: name of the folder under home for versions of a bucket; each process of a home has its own.

    Raises:
        SettingsError: nothing here reads such an address; one line that names the setting.
    """
    if not is_address(settings.model_store):
        return ModelStore(_folder(settings))
    setting = variable(settings, "model_store")
    try:
        return BucketStore(
            settings.model_store,
            settings.home / "reranker" / local,
            local_bytes=settings.model_cache_mb * _MB,
        )
    except ImportError as error:
        message = f"{setting}: needs a package that is not installed ({error}): evenmesh-reranker[s3] for S3"
        raise SettingsError(message) from None
    except ValueError as error:
        raise SettingsError(f"{setting}: nothing reads such an address ({error})") from None


def promotions(settings: RerankerSettings, database: Database) -> Promotions:
    """Return the promotions: in PostgreSQL where feedback is there, else in files.

    Args:
        settings: settings of the reranker.
        database: the database of feedback; it is opened before they are used.
    """
    if _in_files(settings):
        return FilePromotions(ModelStore(_folder(settings)))
    return SqlPromotions(database)


async def adopt(settings: RerankerSettings, database: Database) -> None:
    """Take over into PostgreSQL what files of the store say, if nothing was ever promoted there.

    Args:
        settings: settings of the reranker.
        database: the database of feedback, open.

    Raises:
        Unavailable: the database cannot be reached.
    """
    if not _in_files(settings) and not is_address(settings.model_store):
        await SqlPromotions(database).adopt(ModelStore(_folder(settings)))


def _in_files(settings: RerankerSettings) -> bool:
    return settings.database().get_backend_name() == "sqlite"


def _folder(settings: RerankerSettings) -> Path:
    """Return the folder of versions, or that of promotions beside a bucket."""
    if settings.model_store and not is_address(settings.model_store):
        return Path(settings.model_store)
    return settings.home / "reranker" / "models"
