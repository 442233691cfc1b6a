"""Models that compare answers, and where they are found."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any, Final, Generic, TypeVar

_OTHER_FRAMEWORKS: Final = ("*.h5", "*.msgpack", "*.onnx", "*.ot", "*.tflite", "onnx/*", "openvino/*")
_BROKEN: Final = (AttributeError, ImportError, KeyError, OSError, RuntimeError, TypeError, ValueError)
"""Errors of the libraries for folders without the expected files."""

LOCAL: Final = {"local_files_only": True, "trust_remote_code": False}
"""How libraries load a folder: nothing is downloaded, and no code of the model's own is run."""

T = TypeVar("T")


class MissingModel(Exception):  # noqa: N818 - the name is the port's contract
    """A model that is not configured, is not there, or cannot be loaded; one line that names the setting.

    Attributes:
        setting: how the caller calls the setting that names the model.
        why: what is wrong, without anything of this machine's insides.
    """

    def __init__(self, setting: str, why: str, detail: str = "") -> None:
        super().__init__(f"{setting}: {why}{detail and f' ({detail})'}")
        self.setting = setting
        self.why = why


@dataclass(frozen=True)
class Models:
    """Models by what they do: a folder, or a name on the Hugging Face hub that is in the local cache.

    None and the empty text mean that there is none. Nothing is downloaded unless ``download`` says so, and
    not even then with ``HF_HUB_OFFLINE`` set. No code of a model's own is run; where there
    are no safetensors, pickles are read as weights only.
    """

    embedding: str | None = None
    """Encoder of ``embedding_cosine``, of sentence-transformers; none means ``evenmesh_models.MINILM``."""
    bert_score: str | None = None
    """Encoder of ``bert_score``, of transformers, such as ``roberta-large``."""
    nli: str | None = None
    """Sequence classifier of ``nli`` and ``nli_question`` with a label for entailment, such as
    ``microsoft/deberta-xlarge-mnli`` (the paper's) or ``cross-encoder/nli-deberta-v3-base``."""
    answer_equivalence: str | None = None
    """Sequence classifier of ``answer_equivalence``, such as ``kortukov/answer-equivalence-bem``."""
    called: Mapping[str, str] = field(default_factory=dict)
    """The caller's names of the fields above, for errors: environment variables or options."""
    download: bool = False
    """Whether a model that is not here may be fetched from the hub."""
    threads: int | None = None
    """Threads of one matrix product, [1, inf), for the whole process; None leaves PyTorch's own choice."""

    def setting(self, kind: str) -> str:
        """Return the caller's name of the field ``kind``."""
        return self.called.get(kind, kind)

    def folder(self, kind: str) -> Path:
        """Return the folder of the model that the field ``kind`` names.

        Raises:
            MissingModel: none is named, or it is not here.
        """
        setting, model = self.setting(kind), getattr(self, kind) or ""
        if kind == "embedding":
            models: Any = required("evenmesh_models", setting, "the bundled model")
            if model in ("", models.MINILM):
                try:
                    return Path(models.minilm())
                except models.BaseModelError as error:
                    raise MissingModel(setting, "the bundled model cannot be used", str(error)) from None
        if not model:
            raise MissingModel(setting, "not set: name a model, or its folder")
        folder = Path(model).expanduser()
        if folder.is_dir():
            return folder
        hub = required("huggingface_hub", setting, "models by name")
        missing = f"{model!r} is neither a folder nor in the local Hugging Face cache"
        try:
            return Path(
                hub.snapshot_download(
                    model, local_files_only=not self.download, ignore_patterns=list(_OTHER_FRAMEWORKS)
                )
            )
        except hub.errors.HFValidationError:
            raise MissingModel(setting, f"there is no folder {model!r}") from None
        except (hub.errors.HfHubHTTPError, hub.errors.LocalEntryNotFoundError, OSError):
            remedy = "and it cannot be fetched" if self.download else f"fetch it with `hf download {model}`"
            raise MissingModel(setting, f"{missing}: {remedy}") from None

    @contextmanager
    def loading(self, kind: str, folder: Path) -> Iterator[None]:
        """Whatever goes wrong while the model of the field ``kind`` is loaded, as one error; without progress
        bars and notes on spare weights.

        Raises:
            MissingModel: the model is there and is of no use.
        """
        setting = self.setting(kind)
        torch: Any = required("torch", setting, "a model")
        logging: Any = required("transformers.utils.logging", setting, "a model")
        safetensors: Any = required("safetensors", setting, "a model")
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        except (*_BROKEN, safetensors.SafetensorError) as error:
            why = " ".join(str(error).split())[:300] or type(error).__name__
            named = getattr(self, kind) or "bundled"
            raise MissingModel(setting, f"the model {named!r} cannot be used", f"{folder}: {why}") from None
        finally:
            logging.set_verbosity(verbosity)


def required(module: str, setting: str, what: str) -> ModuleType:
    """Import a module of the extra ``similarities``.

    Raises:
        MissingModel: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingModel(
            setting,
            f"{what} needs the Python module {module}: "
            "in a checkout, pip install ./models './libs/lab[similarities]'",
        ) from None


class Once(Generic[T]):
    """Something that is made when it is first wanted, and once; if that fails, it is tried again next time.

    Args:
        make: makes it.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = Lock()
        self._made: tuple[T] | None = None

    def get(self) -> T:
        """Return the object, making it on first use. Raises what making it raises."""
        if self._made is None:
            with self._lock:
                if self._made is None:
                    self._made = (self._make(),)
        return self._made[0]
