"""Settings every service shares: frozen, from the environment, checked before anything starts."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import platformdirs
from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from pydantic_settings import SettingsError as _SourceError


class SettingsError(Exception):
    """Settings that cannot be used: a line per problem with variable, value and what is allowed."""


class ServiceSettings(BaseSettings):
    """Settings of one service process; a subclass sets ``model_config`` with its ``env_prefix`` and defaults.

    Each field is read from ``<env_prefix><FIELD>``, except ``home`` from ``RAGMESH_HOME``. Variables that no
    field knows are ignored.
    """

    model_config = SettingsConfigDict(
        env_prefix="RAGMESH_", frozen=True, extra="ignore", populate_by_name=True, allow_inf_nan=False
    )

    tls_cert: Path | None = Field(default=None, validation_alias="RAGMESH_TLS_CERT")
    """PEM file of this service's certificate, and those up to an authority; without it, no TLS."""
    tls_key: Path | None = Field(default=None, validation_alias="RAGMESH_TLS_KEY", validate_default=True)
    """PEM file of its key."""
    tls_ca: Path | None = Field(default=None, validation_alias="RAGMESH_TLS_CA")
    """PEM file of the authorities that are trusted; ``system``: those that this machine trusts."""
    tls_clients: Literal["open", "required"] = Field(default="open", validation_alias="RAGMESH_TLS_CLIENTS")
    """Whether callers must show a certificate of those authorities (mutual TLS)."""
    tls_services: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), validation_alias="RAGMESH_TLS_SERVICES"
    )
    """Names in certificates, separated by commas, whose holders are services of this mesh; needs
    ``tls_clients=required``, since nobody is asked for a certificate otherwise."""
    api_keys: Path | None = Field(default=None, validation_alias="RAGMESH_API_KEYS")
    """TOML file of the API keys that are taken (``ragmesh keys new``)."""
    jwks: str = Field(default="", validation_alias="RAGMESH_JWKS")
    """File or https address of the public keys (JWKS) that tokens are checked with."""
    jwt_audience: str = Field(default="", validation_alias="RAGMESH_JWT_AUDIENCE", validate_default=True)
    """Audience that tokens must be for."""
    jwt_issuer: str = Field(default="", validation_alias="RAGMESH_JWT_ISSUER")
    """Issuer that tokens must be of; empty for any."""
    allow_insecure: bool = Field(default=False, validation_alias="RAGMESH_ALLOW_INSECURE")
    """Whether to listen beyond this machine without TLS or without asking who calls."""
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen on, [0, 65535]; 0 lets the system choose."""
    share_port: bool = False
    """Whether the next process of this service may listen on the port too, to take over without a gap: each
    listens only once it can answer. Not with ``port`` 0."""
    port_file: Path | None = None
    """File that gets ``host:port`` once bound."""
    home: Path = Field(
        default_factory=lambda: platformdirs.user_data_path("ragmesh"), validation_alias="RAGMESH_HOME"
    )
    """Directory everything of ragmesh lives under."""
    grace_s: float = Field(default=10.0, ge=0, le=3600)
    """Time that running calls get after SIGTERM. Seconds, [0, 3600]."""
    max_connection_age_s: float = Field(default=2_147_483, ge=1, le=2_147_483)
    """Time after which callers are asked to connect anew, about a tenth more or less, by which they find
    servers that are new. By default not before 24 days. Seconds, [1, 2147483]."""
    max_connection_age_grace_s: float = Field(default=2_147_483, ge=1, le=2_147_483)
    """Time that calls on such a connection get to end; more than the longest stream takes. Seconds,
    [1, 2147483]."""
    max_message_bytes: int = Field(default=32 * 2**20, ge=1024, le=2**31 - 1)
    """Largest message taken or sent. Bytes, [1024, 2^31 - 1]."""
    default_deadline_s: float = Field(default=60.0, gt=0, le=86_400)
    """Deadline of calls that bring none. Seconds, (0, 86400]."""
    max_stream_s: float = Field(default=14_400.0, gt=0, le=86_400)
    """Longest life of a stream, whatever its deadline. Seconds, (0, 86400]."""
    queue_s: float = Field(default=0.5, ge=0, le=60)
    """Longest wait at the door for work that does not fit; 0 refuses it at once. Seconds, [0, 60]."""
    limits: Path | None = Field(default=None, validation_alias="RAGMESH_LIMITS")
    """TOML file of what each tenant may take (docs/limits.md); without it, what there is."""
    max_work: int = Field(default=1024, ge=1)
    """Admission capacity in the service's unit of work, [1, inf)."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe level that is logged."""
    log_text: bool = False
    """Whether text of users may appear in logs."""
    otlp_endpoint: str | None = None
    """OTLP/gRPC collector that traces and metrics go to, such as ``http://127.0.0.1:4317``."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port on which Prometheus may scrape metrics, [0, 65535]."""
    trace_sample_ratio: float = Field(default=0.1, ge=0, le=1)
    """Share of traces begun here that are recorded, [0, 1]."""
    trace_text: bool = False
    """Whether text of users (questions, passages, answers) may appear in traces."""
    metrics_series: int = Field(default=20, ge=1, le=1000)
    """Most series of a metric that is told by tenant, collection or provider; of what is beyond, the smallest
    or least seen, there is a sum or nothing (docs/telemetry.md). [1, 1000]."""
    exit_with_parent: bool = False
    """Whether to stop when the process that started this one is gone. Who sets it should set ``parent_pid``
    too: a parent that ends while this process is still importing is not seen without."""
    parent_pid: int | None = Field(default=None, ge=1)
    """Parent to watch for ``exit_with_parent``; by default the one there is when serving begins."""

    @property
    def connection_age(self) -> tuple[tuple[str, int], ...]:
        """The age of connections as options of a gRPC server. Milliseconds."""
        ages = (("", self.max_connection_age_s), ("_grace", self.max_connection_age_grace_s))
        return tuple((f"grpc.max_connection_age{part}_ms", int(1000 * age)) for part, age in ages)

    @field_validator("tls_key")
    @classmethod
    def _with_its_certificate(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if (value is None) != (info.data.get("tls_cert") is None):
            raise ValueError("a key needs its certificate, and a certificate its key: set both or none")
        return value

    @field_validator("tls_clients")
    @classmethod
    def _checked_by_someone(cls, value: str, info: ValidationInfo) -> str:
        if value == "required" and (info.data.get("tls_cert") is None or info.data.get("tls_ca") is None):
            raise ValueError("needs TLS and authorities: set RAGMESH_TLS_CERT, _KEY and _CA")
        return value

    @field_validator("tls_services", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return [one.strip() for one in value.split(",") if one.strip()] if isinstance(value, str) else value

    @field_validator("tls_services")
    @classmethod
    def _asked_for(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if value and info.data.get("tls_clients") == "open":
            raise ValueError("callers are not asked for certificates: set RAGMESH_TLS_CLIENTS=required")
        return value

    @field_validator("jwt_audience")
    @classmethod
    def _for_tokens(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("jwks") and not value:
            raise ValueError("must be set with RAGMESH_JWKS: tokens for others are none for this one")
        return value

    @field_validator("host")
    @classmethod
    def _safe(cls, value: str, info: ValidationInfo) -> str:
        given = info.data
        if given.get("allow_insecure") or is_loopback(value):
            return value
        missing = []
        if given.get("tls_cert") is None:
            missing.append("TLS (RAGMESH_TLS_CERT and RAGMESH_TLS_KEY)")
        by_certificate = given.get("tls_clients") == "required"
        if not (given.get("api_keys") or given.get("jwks") or by_certificate):
            ways = "RAGMESH_API_KEYS, RAGMESH_JWKS or RAGMESH_TLS_CLIENTS=required"
            missing.append(f"a way to know who calls ({ways})")
        if missing:
            raise ValueError(
                f"others can reach it, and it has not {' nor '.join(missing)}; "
                "RAGMESH_ALLOW_INSECURE=true where something else guards it"
            )
        return value


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


S = TypeVar("S", bound=ServiceSettings)


def variable(settings: ServiceSettings | type[ServiceSettings], field: str) -> str:
    """Name of the environment variable that sets ``field``."""
    cls = settings if isinstance(settings, type) else type(settings)
    info = cls.model_fields.get(field)
    if info is not None and isinstance(info.validation_alias, str):
        return info.validation_alias
    return f"{cls.model_config.get('env_prefix', '')}{field}".upper()


def load(cls: type[S]) -> S:
    """Reads the settings of a service from the environment.

    Raises:
        SettingsError: with one line per wrong variable.
    """
    try:
        return cls()
    except ValidationError as error:
        lines = []
        for problem in error.errors(include_url=False):
            field = str(problem["loc"][0]) if problem["loc"] else ""
            name = field if field.startswith("RAGMESH_") else variable(cls, field)
            name += "".join(f"[{part}]" for part in problem["loc"][1:])
            what = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{name}={problem['input']}: {what[:1].lower()}{what[1:]}{_allowed(cls, field)}")
        raise SettingsError("\n".join(lines)) from None
    except _SourceError as error:
        # A list or mapping that is not JSON; only the message of the source names the field.
        named = re.search(r'field "(\w+)"', str(error))
        name = variable(cls, named[1]) if named is not None else str(error)
        raise SettingsError(f"{name}={os.environ.get(name, '')}: must be valid JSON") from None


def _allowed(cls: type[ServiceSettings], field: str) -> str:
    """The bounds of a field, for a message; empty where it has none."""
    info = cls.model_fields.get(field)
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    bounds = [
        f"{sign} {getattr(bound, name):g}"
        for bound in (info.metadata if info is not None else ())
        for name, sign in signs.items()
        if hasattr(bound, name)
    ]
    return f"; allowed: {', '.join(bounds)}" if bounds else ""
