"""Settings that every service shares: frozen, from the environment, validated before anything starts."""

from __future__ import annotations

import ipaddress
import os
import re
import resource
from collections.abc import Iterable, Set
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

import platformdirs
from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from pydantic_settings import SettingsError as _SourceError

from evenmesh import home

_HANDSHAKE_S: Final = 10.0
_IDLE_S: Final = 300.0
_UNREAD_BYTES: Final = 256 * 1024


OF_CLIENTS: Final = frozenset({"EVENMESH_API_KEY", "EVENMESH_TOKEN_FILE"})
"""Variables of the client that look like one of a service."""
LIKENESS: Final = 0.85
"""How alike two names are, in [0, 1], for one to be taken for the other misspelt."""


class SettingsError(Exception):
    """Raised for invalid settings; one line for each, with variable, value and allowed values."""


class ServiceSettings(BaseSettings):
    """Settings of one service process; a subclass sets ``model_config`` with its ``env_prefix`` and defaults.

    Each field is read from ``<env_prefix><FIELD>``, or from its ``validation_alias``. Other variables are
    ignored; :func:`unread_variables` finds those that look misspelt.
    """

    model_config = SettingsConfigDict(
        env_prefix="EVENMESH_",
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    tls_cert: Path | None = Field(default=None, validation_alias="EVENMESH_TLS_CERT")
    """PEM file of this service's certificate and its intermediates; without it, no TLS."""
    tls_key: Path | None = Field(default=None, validation_alias="EVENMESH_TLS_KEY", validate_default=True)
    """PEM file of its key."""
    tls_ca: Path | None = Field(default=None, validation_alias="EVENMESH_TLS_CA")
    """PEM file of the trusted authorities; ``system``: those that this machine trusts."""
    tls_clients: Literal["open", "required"] = Field(default="open", validation_alias="EVENMESH_TLS_CLIENTS")
    """Whether callers must present a certificate of those authorities (mutual TLS)."""
    tls_services: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), validation_alias="EVENMESH_TLS_SERVICES"
    )
    """Names in certificates, separated by commas, whose holders are services of this mesh; needs
    ``tls_clients=required``, as otherwise nobody presents a certificate."""
    api_keys: Path | None = Field(default=None, validation_alias="EVENMESH_API_KEYS")
    """TOML file of the accepted API keys (``evenmesh keys new``)."""
    api_keys_default_tenant: str = Field(
        default="",
        pattern=r"^([a-z0-9][a-z0-9_-]{0,63})?$",
        validation_alias="EVENMESH_API_KEYS_DEFAULT_TENANT",
    )
    """Tenant of keys whose entry names none; empty to refuse such a file."""
    jwks: str = Field(default="", validation_alias="EVENMESH_JWKS")
    """File or https address of the public keys (JWKS) that verify tokens."""
    jwt_audience: str = Field(default="", validation_alias="EVENMESH_JWT_AUDIENCE", validate_default=True)
    """Audience that tokens must name."""
    jwt_issuer: str = Field(default="", validation_alias="EVENMESH_JWT_ISSUER")
    """Issuer that tokens must have; empty for any."""
    jwt_default_tenant: str = Field(
        default="", pattern=r"^([a-z0-9][a-z0-9_-]{0,63})?$", validation_alias="EVENMESH_JWT_DEFAULT_TENANT"
    )
    """Tenant of tokens without the claim ``evenmesh_tenant``; empty to refuse them."""
    allow_insecure: bool = Field(default=False, validation_alias="EVENMESH_ALLOW_INSECURE")
    """Whether to listen beyond this machine without TLS or without authentication."""
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen on, [0, 65535]; 0 lets the system choose."""
    share_port: bool = False
    """Whether the next process of this service may share the port, to take over without a gap: each listens
    only once it is ready. Not with ``port`` 0."""
    health_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the same address for health alone, [1, 65535], so that probes get an answer however many
    callers the service has. It asks for neither TLS nor keys: let only probes reach it."""
    port_file: Path | None = None
    """File to write ``host:port`` to once bound."""
    home: Path = Field(
        default_factory=lambda: platformdirs.user_data_path("evenmesh"), validation_alias="EVENMESH_HOME"
    )
    """Directory of all files of evenmesh."""
    grace_s: float = Field(default=10.0, ge=0, le=3600)
    """Time for running calls to end after SIGTERM. Seconds, [0, 3600]."""
    max_connection_age_s: float = Field(default=2_147_483, ge=1, le=2_147_483)
    """Time, give or take a tenth, after which callers are asked to connect anew, so that they find new
    servers. Default: 24 days. Seconds, [1, 2147483]."""
    max_connection_age_grace_s: float = Field(default=2_147_483, ge=1, le=2_147_483)
    """Time for calls on such a connection to end; set it above the longest stream. Seconds, [1, 2147483]."""
    max_connections: int = Field(default=1024, ge=16, le=1_000_000)
    """Most connections at a time, at most half of the file descriptors that the process may open. Others are
    closed at once, and those without a handshake after ten seconds. [16, 1000000]."""
    max_connection_streams: int = Field(default=1024, ge=1, le=1_000_000)
    """Most calls at a time on one connection. Further ones wait in a channel that knows the bound, or are
    UNAVAILABLE. [1, 1000000]."""
    max_message_bytes: int = Field(default=32 * 2**20, ge=1024, le=2**31 - 1)
    """Largest message either way. Bytes, [1024, 2^31 - 1]."""
    max_decoded_bytes: int = Field(default=256 * 2**20, ge=2**24)
    """Most memory of the decoded requests of running calls, estimated; a tenant may have ``tenant_share`` of
    it. Keep it below what the process may take. Bytes, [2^24, inf)."""
    max_reply_bytes: int = Field(default=256 * 2**20, ge=2**24)
    """Most memory of replies that callers have not read yet; a tenant may have ``tenant_share`` of it. Keep
    it above the largest reply, and twice of it below what the process may take. Bytes, [2^24, inf)."""
    default_deadline_s: float = Field(default=60.0, gt=0, le=86_400)
    """Deadline of calls without one. Seconds, (0, 86400]."""
    max_call_s: float = Field(default=600.0, gt=0, le=86_400)
    """Longest life of a call with one request and one reply, whatever its deadline. Seconds, (0, 86400]."""
    max_stream_s: float = Field(default=14_400.0, gt=0, le=86_400)
    """Longest life of a stream, whatever its deadline. Seconds, (0, 86400]."""
    queue_s: float = Field(default=0.5, ge=0, le=60)
    """Longest wait in the admission queue; 0 rejects at once what does not fit. Seconds, [0, 60]."""
    limits: Path | None = Field(default=None, validation_alias="EVENMESH_LIMITS")
    """TOML file of the limits of tenants (docs/operate/limits.md); without it, the built-in ones hold."""
    limits_store: str = Field(default="", repr=False, validation_alias="EVENMESH_LIMITS_STORE")
    """Redis or Valkey that holds rates for all replicas, such as ``redis://:PASSWORD@redis:6379/0``; without
    it, n replicas admit n times as much."""
    limits_fail: Literal["open", "closed"] = Field(default="open", validation_alias="EVENMESH_LIMITS_FAIL")
    """While the store does not answer: ``open`` admits calls by the limits of each process, ``closed``
    refuses them."""
    max_work: int = Field(default=1024, ge=1)
    """Admission capacity in the service's unit of work, [1, inf)."""
    tenant_share: float = Field(default=0.75, gt=0, le=1)
    """Largest part of ``max_work``, ``max_decoded_bytes``, ``max_reply_bytes`` and of the places at model
    servers that one tenant may use, so that the others find room; without authentication, all of it is
    everybody's. (0, 1]."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest level to log."""
    log_text: bool = False
    """Whether text of users may appear in logs."""
    otlp_endpoint: str | None = Field(default=None, max_length=500)
    """OTLP/gRPC collector of traces and metrics, such as ``http://127.0.0.1:4317``; ``https://`` for TLS."""
    otlp_ca: Path | None = Field(default=None, validation_alias="EVENMESH_OTLP_CA")
    """PEM file of the authorities trusted for a collector with TLS, read at the start; default: the
    public ones. Means nothing without TLS."""
    otlp_headers: Path | None = Field(default=None, validation_alias="EVENMESH_OTLP_HEADERS")
    """File of the headers that the collector is sent, a line ``name: value`` each, such as a vendor's key;
    read again when it changes. Needs TLS."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port for Prometheus to scrape metrics from, [0, 65535]."""
    metrics_host: str = Field(default="127.0.0.1", min_length=1)
    """Address to show metrics on. They name tenants: beyond this machine, let only the scraper reach it."""
    trace_sample_ratio: float = Field(default=0.1, ge=0, le=1)
    """Share of the traces begun here to record, [0, 1]."""
    trace_text: bool = False
    """Whether text of users (questions, passages, answers) may appear in traces."""
    metrics_series: int = Field(default=20, ge=1, le=1000)
    """Most series of a metric with a label for tenant, collection or provider; the rest, the smallest or
    rarest, is summed or left out (docs/operate/telemetry.md). [1, 1000]."""
    exit_with_parent: bool = False
    """Whether to stop when the process that started this one ends. Set ``parent_pid`` too, to notice a parent
    that ends while this process still imports."""
    parent_pid: int | None = Field(default=None, ge=1)
    """Parent to watch for ``exit_with_parent``; default: the parent when serving begins."""

    @property
    def knows_callers(self) -> bool:
        """Whether callers have to say who they are; otherwise one user has the service."""
        return self.api_keys is not None or bool(self.jwks) or self.tls_clients == "required"

    @property
    def connection_bounds(self) -> tuple[tuple[str, int], ...]:
        """Return the bounds of connections, and of calls on each, as options of a gRPC server."""
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if descriptors == resource.RLIM_INFINITY:
            descriptors = 2 * self.max_connections
        return (
            ("grpc.max_allowed_incoming_connections", max(1, min(self.max_connections, descriptors // 2))),
            ("grpc.max_concurrent_streams", self.max_connection_streams),
            # Without a complete handshake: TLS, and the first frame of the caller.
            ("grpc.server_handshake_timeout_ms", int(1000 * _HANDSHAKE_S)),
            # Without a call.
            ("grpc.max_connection_idle_ms", int(1000 * _IDLE_S)),
            # What gRPC keeps of a call that is not read yet. It would grow with the speed of the network.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", _UNREAD_BYTES),
        )

    @property
    def connection_age(self) -> tuple[tuple[str, int], ...]:
        """Return the age limits of connections as options of a gRPC server. Milliseconds."""
        ages = (("", self.max_connection_age_s), ("_grace", self.max_connection_age_grace_s))
        return tuple((f"grpc.max_connection_age{part}_ms", int(1000 * age)) for part, age in ages)

    @field_validator("home", mode="before")
    @classmethod
    def _as_the_command_line_reads_it(cls, value: Any) -> Any:
        return home.named(value) if isinstance(value, str) else value

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
            raise ValueError("needs TLS and authorities: set EVENMESH_TLS_CERT, _KEY and _CA")
        return value

    @field_validator("tls_services", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return [one.strip() for one in value.split(",") if one.strip()] if isinstance(value, str) else value

    @field_validator("tls_services")
    @classmethod
    def _asked_for(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if value and info.data.get("tls_clients") == "open":
            raise ValueError("callers are not asked for certificates: set EVENMESH_TLS_CLIENTS=required")
        return value

    @field_validator("jwt_audience")
    @classmethod
    def _for_tokens(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("jwks") and not value:
            raise ValueError("must be set with EVENMESH_JWKS, to reject tokens for other audiences")
        return value

    @field_validator("otlp_endpoint")
    @classmethod
    def _of_a_collector(cls, value: str | None) -> str | None:
        if value is None:
            return value
        try:
            parts = urlsplit(value)
            port = parts.port
        except ValueError:
            port = None
        if (
            port is None
            or parts.scheme not in ("http", "https")
            or not parts.hostname
            or "@" in parts.netloc
            or value.rstrip("/") != f"{parts.scheme}://{parts.netloc}"
        ):
            raise ValueError("must be http://host:port, or https://host:port for TLS, without a path")
        return value

    @field_validator("otlp_headers")
    @classmethod
    def _not_in_plain_text(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        endpoint = info.data.get("otlp_endpoint")
        if value is not None and endpoint is not None and not endpoint.startswith("https://"):
            name = variable(cls, "otlp_endpoint")
            raise ValueError(f"headers are secrets and need TLS: use https:// in {name}")
        return value

    @field_validator("host", "metrics_host")
    @classmethod
    def _without_brackets(cls, value: str) -> str:
        """Return an IPv6 address without the brackets that it has before a port."""
        return value[1:-1] if value.startswith("[") and value.endswith("]") and ":" in value else value

    @field_validator("host")
    @classmethod
    def _safe(cls, value: str, info: ValidationInfo) -> str:
        given = info.data
        if given.get("allow_insecure") or is_loopback(value):
            return value
        missing = []
        if given.get("tls_cert") is None:
            missing.append("TLS (EVENMESH_TLS_CERT and EVENMESH_TLS_KEY)")
        by_certificate = given.get("tls_clients") == "required"
        if not (given.get("api_keys") or given.get("jwks") or by_certificate):
            ways = "EVENMESH_API_KEYS, EVENMESH_JWKS or EVENMESH_TLS_CLIENTS=required"
            missing.append(f"a way to know who calls ({ways})")
        if missing:
            raise ValueError(
                f"other machines can reach this address, which needs {' and '.join(missing)}; "
                "set EVENMESH_ALLOW_INSECURE=true if something else guards it"
            )
        return value


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address to listen on."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


S = TypeVar("S", bound=ServiceSettings)


def variable(settings: ServiceSettings | type[ServiceSettings], field: str) -> str:
    """Return the name of the environment variable that sets ``field``."""
    cls = settings if isinstance(settings, type) else type(settings)
    info = cls.model_fields.get(field)
    if info is not None and isinstance(info.validation_alias, str):
        return info.validation_alias
    return f"{cls.model_config.get('env_prefix', '')}{field}".upper()


def names_of(cls: type[ServiceSettings]) -> set[str]:
    """Return the names of all variables that set a field; one with an alias has two."""
    prefix = cls.model_config.get("env_prefix", "")
    return {name for field in cls.model_fields for name in (variable(cls, field), f"{prefix}{field}".upper())}


def unread_variables(settings: ServiceSettings) -> list[str]:
    """Return the variables that look like one of these settings and set none, with the name that is near."""
    cls = type(settings)
    prefix = cls.model_config.get("env_prefix", "")
    if prefix == ServiceSettings.model_config.get("env_prefix"):
        return []
    return misspelt(os.environ, names_of(cls), (prefix,), others=True)


def misspelt(
    given: Iterable[str], known: Set[str], prefixes: tuple[str, ...], *, others: bool = False
) -> list[str]:
    """Return the variables that look like a setting and set none, each with the name that is near.

    Args:
        given: names of variables.
        known: names of all settings.
        prefixes: of the settings of one service. A variable that begins with one of them sets something or is
            misspelt; any other is compared with the settings that all services share.
        others: whether there are services with other prefixes, whose variables end as those that all share.
    """
    shared = sorted(name for name in known if not name.startswith(prefixes))
    found = []
    for name in sorted(given):
        upper = name.upper()
        if not upper.startswith("EVENMESH_") or upper in known or upper in OF_CLIENTS:
            continue
        of_service = upper.startswith(prefixes)
        near = get_close_matches(upper, sorted(known) if of_service else shared, 1, LIKENESS)
        of_another = others and near and upper.endswith(near[0].removeprefix("EVENMESH"))
        if of_service or (near and not of_another):
            found.append(f"{name} (is it {near[0]}?)" if near else name)
    return found


def load(cls: type[S]) -> S:
    """Read the settings of a service from the environment.

    Raises:
        SettingsError: with one line per wrong variable.
    """
    try:
        return cls()
    except ValidationError as error:
        lines = []
        for problem in error.errors(include_url=False):
            field = str(problem["loc"][0]) if problem["loc"] else ""
            name = field if field.startswith("EVENMESH_") else variable(cls, field)
            name += "".join(f"[{part}]" for part in problem["loc"][1:])
            what = problem["msg"].removeprefix("Value error, ")
            shown = _shown(cls, field, str(problem["input"]))
            lines.append(f"{name}={shown}: {what[:1].lower()}{what[1:]}{_allowed(cls, field)}")
        raise SettingsError("\n".join(lines)) from None
    except _SourceError as error:
        # A list or mapping is not JSON; only the error's message names the field.
        named = re.search(r'field "(\w+)"', str(error))
        name = variable(cls, named[1]) if named is not None else str(error)
        shown = _shown(cls, named[1] if named is not None else "", os.environ.get(name, ""))
        raise SettingsError(f"{name}={shown}: must be valid JSON") from None


def _shown(cls: type[ServiceSettings], field: str, value: str) -> str:
    """Return a value for a message: nothing of a secret, and nothing before an @, which may be a password."""
    fields = cls.model_fields.items()
    if any(not info.repr for name, info in fields if field in (name, info.validation_alias)):
        return "…"
    return re.sub(r"^.*@", "…@", value, flags=re.DOTALL)


def _allowed(cls: type[ServiceSettings], field: str) -> str:
    """Return the bounds of a field for a message; empty if it has none."""
    info = cls.model_fields.get(field)
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    bounds = [
        f"{sign} {getattr(bound, name):g}"
        for bound in (info.metadata if info is not None else ())
        for name, sign in signs.items()
        if hasattr(bound, name)
    ]
    return f"; allowed: {', '.join(bounds)}" if bounds else ""
