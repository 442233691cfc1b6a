"""Read the ``config.pbtxt`` of a model of the repository, as its ``initialize`` receives it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from evenmesh_generator.domain import Decoding
from evenmesh_generator.triton.python_models.backend import Backend

if TYPE_CHECKING:
    from evenmesh_generator.runtime.options import EngineOptions

_SWITCH: Final[dict[str, bool | None]] = {"": None, "true": True, "false": False}
_DECODING_PREFIX: Final = "default_"


class ConfigurationError(Exception):
    """A parameter of ``config.pbtxt`` has a value that is not allowed; one line that names both."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A model's ``config.pbtxt``.

    Attributes:
        model: name of the Triton model.
        device: ``auto``, ``cpu`` or ``cuda:<n>``: where Triton placed this instance.
        parameters: string values by name; those that are empty are left out.
    """

    model: str
    device: str
    parameters: Mapping[str, str]

    @classmethod
    def read(cls, args: Mapping[str, str]) -> Self:
        """Return the configuration in what Triton hands to ``initialize``."""
        config = json.loads(args["model_config"])
        parameters = {name: one["string_value"] for name, one in config.get("parameters", {}).items()}
        on_gpu = args.get("model_instance_kind") == "GPU"
        return cls(
            config["name"],
            f"cuda:{args.get('model_instance_device_id', '0')}" if on_gpu else "cpu",
            {name: value for name, value in parameters.items() if value},
        )

    def text(self, name: str, default: str = "") -> str:
        """Return the parameter ``name``."""
        return self.parameters.get(name, default)

    def required(self, name: str) -> str:
        """Return the parameter ``name``.

        Raises:
            ConfigurationError: it is empty.
        """
        value = self.text(name)
        if not value:
            raise ConfigurationError(f"{self.model}: parameter {name} is empty")
        return value

    def integer(self, name: str, default: int) -> int:
        """Return the parameter ``name`` as an integer.

        Raises:
            ConfigurationError: it is none.
        """
        value = self.text(name, str(default))
        try:
            return int(value)
        except ValueError:
            raise ConfigurationError(f"{self.model}: parameter {name}={value!r} is no integer") from None

    def switch(self, name: str) -> bool | None:
        """Return the parameter ``name`` as true, false or (unset) None.

        Raises:
            ConfigurationError: it is neither.
        """
        value = self.text(name)
        if value not in _SWITCH:
            raise ConfigurationError(f"{self.model}: parameter {name}={value!r}; allowed: true, false")
        return _SWITCH[value]

    @property
    def served_name(self) -> str:
        """Return the model's name in answers."""
        return self.text("model_name", self.model)

    @property
    def place(self) -> str:
        """Return the device: the parameter's, or where Triton placed the instance if that is ``auto``."""
        chosen = self.text("device", "auto")
        return self.device if chosen == "auto" else chosen

    def engine_options(self) -> EngineOptions:
        """Return how the model is loaded and run; ``device`` auto means where Triton placed the instance.

        Raises:
            ConfigurationError: a parameter has a value that is not allowed.
        """
        from evenmesh_generator.runtime.options import EngineOptions  # models that load none import no torch

        longest = self.text("max_input_tokens")
        given = EngineOptions()
        return EngineOptions(
            path=self.text("model_path"),
            engine=self.text("engine", "auto"),
            template=self.text("template"),
            instruction=self.switch("instruction"),
            device=self.place,
            dtype=self.text("dtype", "auto"),
            max_input_tokens=self.integer("max_input_tokens", 0) if longest else None,
            batch_tokens=self.integer("batch_tokens", given.batch_tokens),
            max_rows=self.integer("max_rows", given.max_rows),
            cache_bytes=self.integer("cache_bytes", given.cache_bytes),
            workers=self.integer("workers", given.workers),
        )

    def decoding(self) -> Decoding:
        """Return the default decoding.

        Raises:
            ConfigurationError: a parameter has a value that is not allowed.
        """
        given = Decoding()
        values: dict[str, int | float] = {}
        for one in fields(Decoding):
            default = getattr(given, one.name)
            chosen = self.text(_DECODING_PREFIX + one.name)
            try:
                values[one.name] = type(default)(chosen) if chosen else default
            except ValueError:
                raise ConfigurationError(
                    f"{self.model}: parameter {_DECODING_PREFIX}{one.name}={chosen!r} is no number"
                ) from None
        return Decoding(**values)  # type: ignore[arg-type]


def check_numpy(backend: Backend) -> None:
    """Refuse a NumPy that the Python backend cannot read: it would answer zeros and report itself ready.

    Raises:
        ConfigurationError: arrays do not survive the way into a tensor and back, or NumPy is 2 or newer.
    """
    sent = np.arange(1, 6, dtype=np.float32)
    words = np.array([b"one", b"two"], dtype=object)
    for array in (sent, words):
        back = backend.Tensor("probe", array).as_numpy()
        if back.tolist() != array.tolist():
            raise ConfigurationError(f"numpy {np.__version__} does not fit Triton's Python backend")
    if int(np.__version__.partition(".")[0]) >= 2:
        raise ConfigurationError(
            f"numpy {np.__version__} does not fit Triton's Python backend; it needs numpy 1.26"
        )
