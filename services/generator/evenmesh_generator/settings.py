"""Settings of the generator, from ``EVENMESH_GENERATOR_…``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from evenmesh_kit.remote.options import RemoteOptionError, check_url
from evenmesh_kit.remote.settings import RemoteSettings
from evenmesh_kit.security.triton_tls import TritonTls

_TARGET = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")

_MOST_TARGETS: Final = 64

BUNDLED = "evenmesh-pointer"
"""Name of the bundled model."""

OUR_FIELDS: Final = frozenset(
    {
        "model",
        "prompt",
        "messages",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "seed",
        "n",
        "best_of",
        "echo",
        "logprobs",
        "top_logprobs",
    }
)
"""Fields of requests to OpenAI-compatible servers that no setting may change."""

_OF_OPENAI: Final = ("api", "urls")
"""Fields of :class:`ModelSource` for the engine ``openai``."""

OF_SERVERS: Final = ("context_tokens", "bytes_per_token", "top_logprobs", "request")
"""Those for it, and for models of Triton's vLLM backend."""


class ModelSource(BaseModel):
    """A model to serve.

    ``name`` is what requests call it; ``path`` a local folder or a hub repository; ``template`` its in-prompt
    template where a request names none; ``instruction`` whether it follows instructions, and so can write its
    own background documents (default: if its tokenizer has a chat template); ``engine`` ``ctranslate2`` runs
    models of T5's and Llama's shape with eight-bit weights. A generator in front of Triton
    needs the name alone: the server's model repository holds the rest, but for models of its vLLM backend.

    For the engine ``openai``: ``path`` is the model's name at its servers, where that differs; ``urls`` their
    base URLs, where they differ from EVENMESH_GENERATOR_REMOTE_URLS; ``api`` is ``chat`` for
    ``/chat/completions`` or ``completions`` for ``/completions``.

    For it, and for models of Triton's vLLM backend: ``context_tokens`` what prompt and answer may have
    together, where the servers do not say (tokens, [16, 2^31 - 1]); ``bytes_per_token`` how many bytes of
    UTF-8 are estimated to make a token, [0.5, 16]; ``top_logprobs`` how many tokens a judgement looks at, [2,
    1,000]; ``request`` further fields of each request to the servers, of vLLM its sampling parameters.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    path: str = ""
    template: str = ""
    instruction: bool | None = None
    engine: Literal["auto", "ctranslate2"] = "auto"
    api: Literal["chat", "completions"] = "chat"
    urls: tuple[str, ...] = ()
    context_tokens: int | None = Field(default=None, ge=16, le=2**31 - 1)
    bytes_per_token: float = Field(default=3.0, ge=0.5, le=16)
    top_logprobs: int = Field(default=20, ge=2, le=1000)
    request: dict[str, Any] = Field(default_factory=dict)

    @field_validator("urls")
    @classmethod
    def _base_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            for url in value:
                check_url(url)
        except RemoteOptionError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("request")
    @classmethod
    def _further_fields(cls, value: dict[str, Any]) -> dict[str, Any]:
        ours = sorted(OUR_FIELDS & value.keys())
        if ours:
            raise ValueError(f"must not set {', '.join(ours)}, which the generator sets")
        return value


class GeneratorSettings(TritonTls, RemoteSettings):
    """What the generator serves, and how."""

    model_config = SettingsConfigDict(env_prefix="EVENMESH_GENERATOR_")

    port: int = Field(default=7073, ge=0, le=65535)
    max_work: int = Field(default=400_000, ge=1)
    """Admission capacity: tokens to read and to write, beams counted. Tokens, [1, inf)."""
    max_call_tokens: int = Field(default=28_000, ge=1)
    """Most tokens that one call may make a model read, written ones counted by their time (see
    :mod:`evenmesh_generator.call_cost`); one answer alone may have sixteen times as many. The bundled model
    reads the default, a hundred passages of 1,200 characters, in less than five seconds of one processor;
    raise it for a GPU. Tokens, [1, inf)."""
    engine: Literal["in-process", "triton", "openai"] = "in-process"
    """What runs the models: this process, a Triton server, or OpenAI-compatible servers
    (docs/guides/openai-servers.md)."""
    bundled: bool | None = Field(default=None, validate_default=True)
    """Whether the bundled model is served; default: true, and false with the engine ``openai``, whose servers
    do not have it."""
    models: Annotated[tuple[ModelSource, ...], NoDecode] = ()
    """Models besides the bundled one: ``name=path,…`` or a JSON list of :class:`ModelSource` objects; with
    Triton or OpenAI-compatible servers ``name`` alone will do."""
    default_model: str = Field(default="", validate_default=True)
    """Model of requests that name none; empty: the bundled one, or the first."""
    templates: Path | None = None
    """Folder of prompt templates besides the papers', ``NAME.vVERSION.txt``."""
    allow_download: bool = False
    """Whether models that are not here may be fetched from the hub."""
    device: str = Field(default="auto", min_length=1)
    """``auto``, ``cpu``, ``cuda`` or ``cuda:<n>``; auto is the first GPU, or else the CPU."""
    require_gpu: bool = False
    """Whether the service refuses to start where its models would run on the CPU. With Triton it computes
    nothing, and this is refused."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number type of weights and arithmetic; auto is bfloat16 where the device has fast arithmetic for it."""
    max_input_tokens: int | None = Field(default=None, ge=16, le=2**31 - 1)
    """Longest input of transformers models; unset: what their configuration says. Tokens, [16, 2^31 - 1]."""
    batch_tokens: int = Field(default=8192, ge=1)
    """Most padded tokens in a batch. Tokens, [1, inf)."""
    max_rows: int = Field(default=64, ge=1, le=4096)
    """Most rows, beams counted, of a model's running batch. Rows, [1, 4096]."""
    cache_bytes: int = Field(default=256 * 2**20, ge=0)
    """Room, per model, for encodings of passages and prompts; 0 keeps none. Bytes, [0, inf)."""
    ctranslate2_home: Path | None = None
    """Folder of models converted for CTranslate2, each as large as its weights; unset: the user's cache."""
    state_bytes: int | None = Field(default=None, ge=1)
    """Room, per model, for the keys and values of running answers, as allocated; unset: 1 GiB on the CPU, a
    third of what is free on a GPU when the model is loaded. Bytes, [1, inf)."""
    chunk_tokens: int = Field(default=1024, ge=1)
    """Most prompt tokens that are read between two steps of running answers. Tokens, [1, inf)."""
    workers: int = Field(default=2, ge=1, le=256)
    """Threads that make prompts, for each model. Threads, [1, 256]."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """Threads of one matrix product; unset: the processor's cores divided among the workers. [1, 1024]."""
    cpu_engine: Literal["auto", "torch", "openvino"] = "auto"
    """What encodes for the bundled model on a CPU: ``openvino``, ``torch``, or ``auto``, which is OpenVINO
    where it is installed and can."""
    parallel: int | None = Field(default=None, ge=1, le=1024)
    """Pairs that OpenVINO encodes at a time, and parts of the bundled model's batch that are written at a
    time, each on one core; unset: one for each core that this process may use. [1, 1024]."""
    delta_interval_ms: float = Field(default=20.0, ge=0, le=1000)
    """Least time between two deltas of a stream. Milliseconds, [0, 1000]."""
    remote_start_s: float = Field(default=120.0, gt=0, le=3600)
    """How long the OpenAI-compatible servers and their models are waited for at the start. Seconds, (0,
    3600]."""
    remote_probe_interval_s: float = Field(default=5.0, gt=0, le=3600)
    """Time between two checks of such a server. Seconds, (0, 3600]."""
    remote_probe_s: float = Field(default=10.0, gt=0, le=3600)
    """Longest that such a server may take to list its models. Seconds, (0, 3600]."""
    triton_target: str = Field(default="", validate_default=True)
    """``host:port`` of the Triton servers' gRPC endpoint; several are separated by commas, at most 64. A name
    stands for every address that it resolves to, such as the pods of a headless Service, and is looked up
    again while the generator runs. Requests go to the server with the least to do."""
    triton_resolve_interval_s: float = Field(default=5.0, gt=0, le=3600)
    """Time between two looks at the names of the Triton servers. Seconds, (0, 3600]."""
    triton_in_flight: int = Field(default=64, ge=1, le=65536)
    """Most requests at each Triton server at a time; more wait within their deadlines, tenants in turns.
    [1, 65536]."""
    triton_start_s: float = Field(default=120.0, gt=0, le=3600)
    """How long the server and its models are waited for at the start. Seconds, (0, 3600]."""
    triton_probe_interval_s: float = Field(default=5.0, gt=0, le=3600)
    """Time between two checks of a model. Seconds, (0, 3600]."""
    triton_probe_s: float = Field(default=10.0, gt=0, le=3600)
    """Longest that a model may take for one token when asked whether it is there. Seconds, (0, 3600]."""
    triton_stuck_s: float = Field(default=120.0, gt=0, le=86_400)
    """A model that answers nothing for this long is reloaded. Seconds, (0, 86400]."""

    @field_validator("bundled")
    @classmethod
    def _served_here(cls, value: bool | None, info: ValidationInfo) -> bool:
        elsewhere = info.data.get("engine") == "openai"
        if value and elsewhere:
            raise ValueError(
                "the servers of EVENMESH_GENERATOR_ENGINE=openai do not have the bundled model: leave it out"
            )
        return not elsewhere if value is None else value

    @field_validator("models", mode="before")
    @classmethod
    def _parse_models(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, str):
            return value
        text = value.strip()
        if text.startswith(("[", "{")):
            try:
                return json.loads(text)
            except json.JSONDecodeError as error:
                raise ValueError(f"not valid JSON: {error}") from None
        sources = []
        for entry in filter(None, (part.strip() for part in text.split(","))):
            name, equals, path = entry.partition("=")
            if not equals and info.data.get("engine") == "in-process":
                raise ValueError(f"{entry!r} is not name=path")
            sources.append({"name": name.strip(), "path": path.strip()})
        return sources

    @field_validator("models")
    @classmethod
    def _names_and_paths(
        cls, value: tuple[ModelSource, ...], info: ValidationInfo
    ) -> tuple[ModelSource, ...]:
        for source in value:
            if not source.path and info.data.get("engine") == "in-process":
                raise ValueError(
                    f"the model {source.name!r} has no path; only models of servers can do without"
                )
            if info.data.get("engine") == "openai" and not (
                source.urls or info.data.get("remote_urls", True)
            ):
                raise ValueError(
                    f"the model {source.name!r} has no server: name its base URL in "
                    "EVENMESH_GENERATOR_REMOTE_URLS, such as http://127.0.0.1:8000/v1"
                )
            here = info.data.get("engine") == "in-process"
            elsewhere = (*_OF_OPENAI, *OF_SERVERS) if here else _OF_OPENAI
            unused = [one for one in elsewhere if one in source.model_fields_set]
            if unused and info.data.get("engine") in ("in-process", "triton"):
                raise ValueError(
                    f"the model {source.name!r} has {', '.join(unused)}, which only the engine openai uses"
                )
        names = [source.name for source in value]
        for name in names:
            if name == BUNDLED or names.count(name) > 1:
                raise ValueError(f"the name {name!r} is taken twice")
        return value

    @field_validator("require_gpu")
    @classmethod
    def _computes_itself(cls, value: bool, info: ValidationInfo) -> bool:
        if value and _by_triton(info):
            raise ValueError("must be false with EVENMESH_GENERATOR_ENGINE=triton: the server has the GPU")
        return value

    @field_validator("default_model")
    @classmethod
    def _known_default(cls, value: str, info: ValidationInfo) -> str:
        if "models" not in info.data:
            return value  # they have an error of their own
        names = _names(info.data.get("bundled", True), info.data["models"])
        if not names:
            raise ValueError("without the bundled model, EVENMESH_GENERATOR_MODELS must name one")
        if value and value not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return value

    @field_validator("triton_target")
    @classmethod
    def _target_of_triton(cls, value: str, info: ValidationInfo) -> str:
        if _by_triton(info) and not value:
            raise ValueError("must be host:port of the Triton server that EVENMESH_GENERATOR_ENGINE asks for")
        targets = _targets(value)
        if any(not _TARGET.fullmatch(one) for one in targets) or (value and not targets):
            raise ValueError("must be host:port, or several separated by commas")
        if len(targets) > _MOST_TARGETS:
            raise ValueError(f"must name at most {_MOST_TARGETS} servers")
        return value

    @property
    def triton_targets(self) -> tuple[str, ...]:
        """Return each ``host:port`` of :attr:`triton_target`."""
        return _targets(self.triton_target)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all models, the default first."""
        names = _names(bool(self.bundled), self.models)
        first = self.default_model or names[0]
        return (first, *(name for name in names if name != first))


def _targets(value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, (one.strip() for one in value.split(",")))))


def _by_triton(info: ValidationInfo) -> bool:
    return info.data.get("engine") == "triton"


def _names(bundled: bool, models: tuple[ModelSource, ...]) -> tuple[str, ...]:
    return ((BUNDLED,) if bundled else ()) + tuple(source.name for source in models)
