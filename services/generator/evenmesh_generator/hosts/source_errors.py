"""Name the setting of a model that cannot be had, and find such models before PyTorch is imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evenmesh.wire.errors import InvalidField, NotFound
from evenmesh_generator.settings import GeneratorSettings, ModelSource
from evenmesh_kit.compute import model_files
from evenmesh_kit.compute.model_files import DownloadsOffError, ModelError
from evenmesh_kit.settings import SettingsError, variable


@contextmanager
def naming(settings: GeneratorSettings, source: ModelSource) -> Iterator[None]:
    """Turn errors of one model into one line that names the setting.

    Raises:
        SettingsError: the model cannot be had.
    """
    where = f"{variable(settings, 'models')}: model {source.name!r}"
    try:
        yield
    except DownloadsOffError as error:
        allow = variable(settings, "allow_download")
        raise SettingsError(f"{where}: {error}; {allow}=true fetches it") from None
    except (ModelError, NotFound, InvalidField) as error:
        raise SettingsError(f"{where}: {error}") from None


def check_files(settings: GeneratorSettings) -> None:
    """Check that each model is on this machine and has a configuration; leave out what is to be downloaded.

    Raises:
        SettingsError: one is not, or has none.
    """
    for source in settings.models:
        if not source.path or (settings.allow_download and not Path(source.path).expanduser().is_dir()):
            continue
        with naming(settings, source):
            model_files.model_type(model_files.locate(source.path, allow_download=False))
