"""Settings of the gateway, from ``EVENMESH_GATEWAY_*``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from evenmesh_kit.settings import ServiceSettings, is_loopback

_THIS_MACHINE: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class GatewaySettings(ServiceSettings):
    """The settings of the gateway.

    Of the shared settings those of gRPC servers and of limits mean nothing here: every call counts against
    the limits of the service that answers it. ``EVENMESH_API_KEY`` and ``EVENMESH_TOKEN_FILE`` are not used,
    as the gateway calls with its caller's credential alone.
    """

    model_config = SettingsConfigDict(env_prefix="EVENMESH_GATEWAY_")

    port: int = Field(default=7080, ge=0, le=65535)
    """Port to listen on, [0, 65535]; 0 lets the system choose."""

    orchestrator_target: str = Field(default="dns:///127.0.0.1:7070", min_length=1)
    """gRPC target of the orchestrator."""
    retriever_target: str = Field(default="dns:///127.0.0.1:7071", min_length=1)
    """gRPC target of the retriever."""
    reranker_target: str = Field(default="dns:///127.0.0.1:7072", min_length=1)
    """gRPC target of the reranker."""
    generator_target: str = Field(default="dns:///127.0.0.1:7073", min_length=1)
    """gRPC target of the generator."""
    evaluator_target: str = Field(default="dns:///127.0.0.1:7074", min_length=1)
    """gRPC target of the evaluator."""

    console: bool = True
    """Whether to serve the console at ``/console/``."""
    oidc_issuer: str = ""
    """Issuer of OpenID Connect with which the console signs people in, such as
    ``https://id.example.com/realms/us``; its tokens are verified by ``EVENMESH_JWKS``. Empty: keys and tokens
    are pasted."""
    oidc_client_id: str = Field(default="", max_length=256)
    """Id under which the issuer knows the console: a public client (PKCE, no secret) whose redirect address
    is the console's, ``https://…/console/``."""
    oidc_scopes: str = Field(
        default="openid", pattern=r"^openid( [\x21\x23-\x5B\x5D-\x7E]+)*$", max_length=1024
    )
    """Scopes that the console asks for, separated by blanks; ``openid`` first."""
    oidc_audience: str = Field(default="", max_length=1024)
    """Audience that the console asks for, where the issuer wants it said (``audience``). Empty: none."""
    prometheus: str = ""
    """Address of the Prometheus that scrapes this mesh, such as ``http://prometheus:9090``: callers with the
    role ``admin`` see queues and alerts in the console. Empty: none."""
    traces: str = Field(default="", max_length=2048)
    """Address of a trace, such as ``https://jaeger.example.com/trace/{trace_id}``, to which the console links
    an ask. Empty: no links."""
    cors_origins: Annotated[tuple[str, ...], NoDecode] = ()
    """Origins whose pages may call from a browser, such as ``https://app.example.com``, separated by commas;
    ``*`` for any. Empty: none."""
    hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Names by which clients may call (header ``Host`` without the port), separated by commas. Empty: any;
    but on an address of this machine, without keys or tokens, only ``localhost`` and its addresses, so that
    no page in a browser gets in under a name of its own."""
    max_header_bytes: int = Field(default=16_384, ge=1024, le=2**20)
    """Largest head of a request: its line and headers. Bytes, [1024, 1048576]."""
    max_body_bytes: int = Field(default=32 * 2**20, ge=1024, le=2**30)
    """Largest body of a request, and of a stream of requests the largest single one; a method may take less.
    Bytes, [1024, 2^30]."""
    max_upload_bytes: int = Field(default=2**30, ge=1024, le=2**40)
    """Largest body of an ingest, whose passages are sent on as they come. Bytes, [1024, 2^40]."""
    head_s: float = Field(default=10.0, gt=0, le=300)
    """Longest time for a handshake of TLS, for the head of a request to arrive on a connection, and for the
    rest of a body whose request has been answered. Seconds, (0, 300]."""
    compute_threads: int = Field(default=1, ge=1, le=64)
    """Threads that convert large messages from and to JSON. Threads, [1, 64]."""

    documents: bool = True
    """Whether documents may be uploaded; ``evenmesh-gateway[documents]`` brings what reads them."""
    documents_bytes: int = Field(default=64 * 2**20, ge=1024, le=2**34)
    """Largest upload of documents: its files together. Bytes, [1024, 2^34]."""
    documents_files: int = Field(default=1000, ge=1, le=10_000)
    """Most files of an upload; archives count as one. [1, 10000]."""
    documents_text_bytes: int = Field(default=64 * 2**20, ge=1024, le=2**34)
    """Largest text of all passages of an upload. Bytes, [1024, 2^34]."""
    documents_uploads: int = Field(default=4, ge=1, le=256)
    """Uploads of documents at a time, each with two processes; a tenant has at most ``tenant_share`` of them.
    [1, 256]."""
    documents_disk_bytes: int = Field(default=2**30, ge=2**12, le=2**40)
    """Disk that uploads take together until they are answered: each its files and twice the largest text; a
    tenant has at most ``tenant_share`` of it. Bytes, [2^12, 2^40]."""
    documents_memory_bytes: int = Field(default=2**31, ge=2**29, le=2**40)
    """Address space of each process that reads an upload (Linux). Bytes, [2^29, 2^40]."""
    documents_read_s: float = Field(default=600.0, gt=0, le=86_400)
    """Longest time to read and split the files of an upload. Seconds, (0, 86400]."""
    documents_folder: Path | None = None
    """Folder of uploads until they are answered. Default: the system's for temporary files."""
    documents_tokenizer: str = ""
    """What passages are counted by: ``bundled``, ``words``, or a ``tokenizer.json``. Empty: bundled where the
    bundled models are installed, else words."""

    @field_validator("prometheus")
    @classmethod
    def _web_address(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in ("http", "https") or not parts.netloc):
            raise ValueError("must be an address such as http://prometheus:9090")
        return value

    @field_validator("traces")
    @classmethod
    def _template(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (
            parts.scheme not in ("http", "https") or not parts.netloc or value.count("{trace_id}") != 1
        ):
            raise ValueError("must be an address with {trace_id} in it once")
        return value

    @field_validator("oidc_issuer")
    @classmethod
    def _issuer(cls, value: str) -> str:
        parts = urlsplit(value)
        here = parts.scheme == "http" and f"{parts.hostname}" in ("localhost", "127.0.0.1", "::1")
        plain = bool(parts.netloc) and not parts.query and not parts.fragment and "@" not in parts.netloc
        if value and not (plain and (parts.scheme == "https" or here)):
            raise ValueError(
                "must be an address such as https://id.example.com (http:// for this machine only)"
            )
        return value

    @model_validator(mode="after")
    def _signs_in(self) -> Self:
        if self.oidc_issuer and not (self.oidc_client_id and self.jwks):
            raise ValueError(
                "EVENMESH_GATEWAY_OIDC_ISSUER needs EVENMESH_GATEWAY_OIDC_CLIENT_ID, and EVENMESH_JWKS, by "
                "which its tokens are verified"
            )
        return self

    @field_validator("documents_disk_bytes")
    @classmethod
    def _fits_an_upload(cls, value: int, info: ValidationInfo) -> int:
        given = info.data
        if {"documents_bytes", "documents_text_bytes", "tenant_share"} <= given.keys():
            least = given["documents_bytes"] + 2 * given["documents_text_bytes"]
            if value * given["tenant_share"] < least:
                raise ValueError(
                    f"the largest upload takes {least:,} bytes (EVENMESH_GATEWAY_DOCUMENTS_BYTES and twice "
                    "EVENMESH_GATEWAY_DOCUMENTS_TEXT_BYTES), which a tenant's share must hold "
                    "(EVENMESH_GATEWAY_TENANT_SHARE)"
                )
        return value

    @field_validator("documents_tokenizer")
    @classmethod
    def _known_tokenizer(cls, value: str) -> str:
        if value not in ("", "bundled", "words") and not Path(value).is_file():
            raise ValueError("must be bundled, words, or the path of a tokenizer.json that is there")
        return value

    @field_validator("tls_services")
    @classmethod
    def _no_service(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value:
            raise ValueError(
                "must be empty for the gateway: with the certificate of a service, every caller of it would "
                "be one; give it a certificate that no service lists, or leave it out: "
                "evenmesh up --no-gateway"
            )
        return value

    @property
    def known_hosts(self) -> frozenset[str]:
        """Return the names by which clients may call; empty for any."""
        if self.hosts:
            return frozenset(one.lower() for one in self.hosts)
        return _THIS_MACHINE if is_loopback(self.host) and not self.knows_callers else frozenset()

    @field_validator("cors_origins", "hosts", mode="before")
    @classmethod
    def _listed_names(cls, value: Any) -> Any:
        return [one.strip() for one in value.split(",") if one.strip()] if isinstance(value, str) else value

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            parts = urlsplit(one)
            whole = f"{parts.scheme}://{parts.netloc}"
            if one != "*" and (parts.scheme not in ("http", "https") or not parts.netloc or one != whole):
                raise ValueError(f"must be origins such as https://app.example.com, or *; {one!r} is none")
        return value
