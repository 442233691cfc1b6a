"""Settings of the Triton process, from ``EVENMESH_TRITON_…``; which models it serves is the generator's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from evenmesh_generator.triton.environment import VARIABLE
from evenmesh_kit.settings import ServiceSettings, is_loopback


class TritonSettings(ServiceSettings):
    """Where a Triton server listens, and which server it is."""

    model_config = SettingsConfigDict(env_prefix="EVENMESH_TRITON_")

    port: int = Field(default=8001, ge=0, le=65535)
    """Port of gRPC; 0 lets the system choose."""
    http_port: int | None = Field(default=None, ge=0, le=65535, validate_default=True)
    """Port of HTTP; unset: none."""
    id: str = Field(default="", pattern=r"^[A-Za-z0-9._-]{0,128}$")
    """What the server calls itself; empty: a name of its own."""
    runtime_home: Path | None = Field(default=None, validation_alias=VARIABLE)
    """Folder of the runtimes of our own; unset: in the user's cache."""
    server: Path | None = None
    """A ``tritonserver`` that is installed, instead of a runtime of our own."""
    backends: Path | None = None
    """Folder of the backends of ``server``; unset: the one beside it."""
    packages: str = ""
    """Folder of packages that holds evenmesh for the server's models; empty: this project's, or, for
    ``server``, those its Python has already."""
    repository: Path | None = None
    """A model repository to serve as it is; unset: one of the generator's models."""
    model_control: Literal["none", "poll", "explicit"] = "explicit"
    """Who decides what is loaded: callers, who may reload a model whose process has died (at first all
    are loaded), changes of the repository, or nobody after the start."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """Threads of one matrix product; unset: the generator's setting, or half of the cores. [1, 1024]."""
    trace_url: str | None = Field(default=None, pattern=r"^https?://\S+$")
    """Where the server's own spans go, by OTLP over HTTP, such as ``http://127.0.0.1:4318/v1/traces``: those
    of requests that belong to a recorded trace. Unset: it makes none."""
    embedders: Annotated[dict[str, str], NoDecode] = Field(default_factory=dict)
    """Encoders served besides: ``name=path,…``; an empty path is the bundled encoder."""
    exit_timeout_s: int = Field(default=5, ge=0, le=3600)
    """Time that running requests get when the server stops. Seconds, [0, 3600]."""
    check_s: float = Field(default=10.0, gt=0, le=3600)
    """Time between two looks at whether a model's process has died; when one is dead for three checks, and
    nobody has reloaded its model, the server ends. Seconds, (0, 3600]."""

    @field_validator("http_port")
    @classmethod
    def _guarded(cls, value: int | None, info: ValidationInfo) -> int | None:
        given = info.data
        if given.get("allow_insecure") or is_loopback(given.get("host", "127.0.0.1")):
            return value
        if given.get("tls_clients") != "required":
            raise ValueError(
                "others can reach the server, and Triton knows callers by their certificates alone: set "
                "EVENMESH_TLS_CLIENTS=required, or EVENMESH_ALLOW_INSECURE=true where something else "
                "guards it"
            )
        if value is not None:
            raise ValueError(
                "others can reach it, and Triton's HTTP has neither TLS nor a way to know who calls"
            )
        return value

    @field_validator("embedders", mode="before")
    @classmethod
    def _parse_embedders(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        embedders: dict[str, str] = {}
        for entry in filter(None, (part.strip() for part in value.split(","))):
            name, _, path = entry.partition("=")
            if not name or name in embedders:
                raise ValueError(f"{entry!r} is not name=path of another name")
            embedders[name.strip()] = path.strip()
        return embedders
