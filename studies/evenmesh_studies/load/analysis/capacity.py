"""Plan capacity from the measured times of a small mesh, a queueing model, and stated assumptions.

Every service is sized so that the mean wait does not exceed the service time: beyond that, the knee of one
replica, latency more than doubles. Replicas take calls in turn from many callers, so each is a queue of its
own with nearly Poisson arrivals (M/G/c over the processors of one pod).
"""

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from evenmesh_core.queueing import g_g_c_wait, rate_at
from evenmesh_lab.studies.tables import Column, Table, text

_MODELS = ("reranker", "generator")
"""Services that move to GPUs."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Values that the run does not measure. Each can be set in a TOML file.

    Attributes:
        pod_cores: cores of a pod without a GPU.
        spare_pods: pods of each service beyond the load, in case one is down.
        gpu_flops: dense bf16 operations per second of one GPU (H100 or H200 SXM, its data sheet).
        gpu_prefill_share: share of them that prefill reaches.
        gpu_bytes_per_s: memory bandwidth of one GPU (H200, its data sheet).
        gpu_decode_share: share of it that decoding reaches.
        gpu_batch: answers decoded together, which share one read of the weights.
        large_parameters: parameters of the larger model beside the bundled one.
        bundled_parameters: parameters of the bundled model.
        weight_bytes: bytes of a parameter.
        tokens_per_pair: tokens of a question with a passage, as the reranker reads it.
        index_passages: passages of the collection.
        search_ms_per_million: one core's time to search a million passages (docs/science/benchmarks.md,
            "BM25 by size", bm25-lucene, one thread).
        index_bytes_per_passage: memory of a passage in the index, resident (docs/science/benchmarks.md, "Live
            collections by size": 305 MiB after 200 queries of a million passages).
        shard_bytes: memory of one shard's pod for the index.
        shard_ms: longest search of one shard.
    """

    pod_cores: int = 4
    spare_pods: int = 1
    gpu_flops: float = 989e12
    gpu_prefill_share: float = 0.3
    gpu_bytes_per_s: float = 4.8e12
    gpu_decode_share: float = 0.5
    gpu_batch: int = 32
    large_parameters: float = 8e9
    bundled_parameters: float = 28e6
    weight_bytes: float = 2.0
    tokens_per_pair: float = 166.0
    index_passages: float = 21e6
    search_ms_per_million: float = 2.683
    index_bytes_per_passage: float = 320.0
    shard_bytes: float = 16e9
    shard_ms: float = 20.0

    @classmethod
    def read(cls, path: Path) -> tuple[Self, list[str]]:
        """Read assumptions from a TOML file; return them and all problems of the file."""
        try:
            given = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as exc:
            return cls(), [f"{path}: {exc.strerror}"]
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
            return cls(), [f"{path}: {exc}"]
        known = {one.name: one.type for one in fields(cls)}
        problems = []
        for name, value in given.items():
            if name not in known:
                problems.append(f"{path}: {name} is not an assumption; allowed: {', '.join(known)}")
            elif isinstance(value, bool) or not isinstance(value, int | float):
                problems.append(f"{path}: {name} is {value!r}; allowed: a number")
            elif value < 0 or (value == 0 and name != "spare_pods") or not math.isfinite(value):
                problems.append(f"{path}: {name} is {value!r}; allowed: above 0")
        return (cls(), problems) if problems else (cls(**given), [])


@dataclass(frozen=True, slots=True)
class Demand:
    """The resources of one ask, measured.

    Attributes:
        cpu_s: seconds of a core by service, under load.
        cores: of the machine.
        knee: asks per second at which latency doubled; None if not reached.
        predicted: knee of the model; None without one.
        saturation: most asks per second.
        service_s: seconds of an ask alone.
        service_scv: squared coefficient of variation of service times.
        pool: passages reranked.
        read_tokens: prompt tokens of an ask's answers.
        written_tokens: tokens written.
        measured_on: machine and date.
    """

    cpu_s: Mapping[str, float]
    cores: int
    knee: float | None
    predicted: float | None
    saturation: float
    service_s: float
    service_scv: float
    pool: int
    read_tokens: float
    written_tokens: float
    measured_on: str


@dataclass(frozen=True, slots=True)
class Need:
    """The resources for one rate.

    Attributes:
        rate: asks per second.
        cores: by service, on processors alone.
        pods: by service, on processors alone, spare ones counted.
        gpus_bundled: GPUs by service, with the bundled model.
        gpus_large: GPUs by service, with the larger one.
        shards: parts of the index, each in a pod.
        shard_replicas: pods of each part.
    """

    rate: float
    cores: Mapping[str, float]
    pods: Mapping[str, int]
    gpus_bundled: Mapping[str, int]
    gpus_large: Mapping[str, int]
    shards: int
    shard_replicas: int


def measured_demand(report: Mapping[str, Any]) -> Demand:
    """Return the resources of an ask from the JSON report of a ramp.

    Raises:
        ValueError: the report is of another kind of run, or lacks the services' processor times.
    """
    try:
        return _demand(report)
    except (AttributeError, KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"is not a report of evenmesh bench: {type(error).__name__} {error}") from None


def _demand(report: Mapping[str, Any]) -> Demand:
    if report.get("way") != "ramp" or report.get("settings", {}).get("operation") != "ask":
        raise ValueError("is not a ramp of asks")
    closed = [one for one in report["steps"] if one["kind"] == "closed" and one["completed_per_s"]]
    if not closed or report["service_times"] is None:
        raise ValueError("has no step with waiting callers")
    busiest = max(closed, key=lambda one: one["completed_per_s"])
    used = busiest["usage"]["services_cpu_s"]
    if not used:
        raise ValueError("has no processor times of services: they ran elsewhere, and no --pid was given")
    ended = busiest["completed_per_s"] * busiest["elapsed_s"]
    quantities, times, knee = busiest["quantities"], report["service_times"], report["knee"]

    def mean(name: str) -> float:
        return float(quantities.get(name, {}).get("mean") or 0.0)

    facts = report["facts"]
    return Demand(
        cpu_s={name: value / ended for name, value in sorted(used.items())},
        cores=busiest["usage"]["cores"],
        knee=knee["rate"] if knee is not None and knee["reached"] else None,
        predicted=report["predicted"][0]["knee"] if report["predicted"] else None,
        saturation=busiest["completed_per_s"],
        service_s=times["service_s"],
        service_scv=times["service_scv"],
        pool=report["settings"]["n"],
        read_tokens=mean("prompt_tokens"),
        written_tokens=mean("written_tokens"),
        measured_on=f"{facts.get('machine', 'unknown')}, {facts.get('date', 'unknown')}",
    )


def planned_share(servers: int, scv: float) -> float:
    """Return the share of busy servers at which calls wait as long as they are served.

    Args:
        servers: of one queue, from 1.
        scv: squared coefficient of variation of service times, from 0. One server: 2 / (3 + scv).

    Raises:
        InvalidInput: an argument out of range.
    """

    def response(rate: float) -> float:
        return 1.0 + g_g_c_wait(rate, 1.0, servers, arrival_scv=1.0, service_scv=scv)

    return rate_at(response, 2.0, float(servers)) / servers


def gpu_seconds(demand: Demand, given: Assumptions, parameters: float) -> dict[str, float]:
    """Return the seconds of a GPU that an ask takes, by service.

    Prefill is bound by operations, two for each parameter and token; decoding by memory, from which the
    weights are read once for each token of a batch (Pope et al. 2023, "Efficiently scaling transformer
    inference").
    """
    per_token = 2 * parameters / (given.gpu_flops * given.gpu_prefill_share)
    step = parameters * given.weight_bytes / (given.gpu_bytes_per_s * given.gpu_decode_share)
    return {
        "reranker": demand.pool * given.tokens_per_pair * per_token,
        "generator": demand.read_tokens * per_token + demand.written_tokens * step / given.gpu_batch,
    }


def needs(demand: Demand, given: Assumptions, rates: Sequence[float]) -> list[Need]:
    """Return the resources for each rate."""
    share = planned_share(given.pod_cores, demand.service_scv)
    alone = planned_share(1, demand.service_scv)
    search_s = given.search_ms_per_million * given.index_passages / 1e9
    shards = max(
        math.ceil(given.index_passages * given.index_bytes_per_passage / given.shard_bytes),
        math.ceil(1e3 * search_s / given.shard_ms),
    )
    found = []
    for rate in rates:
        cores = {name: rate * seconds / share for name, seconds in demand.cpu_s.items()}
        gpus = [
            {
                name: math.ceil(rate * seconds / alone)
                for name, seconds in gpu_seconds(demand, given, parameters).items()
            }
            for parameters in (given.bundled_parameters, given.large_parameters)
        ]
        found.append(
            Need(
                rate,
                cores,
                {
                    name: math.ceil(value / given.pod_cores) + given.spare_pods
                    for name, value in cores.items()
                },
                gpus[0],
                gpus[1],
                shards,
                math.ceil(rate * search_s / shards / share / given.pod_cores) + given.spare_pods,
            )
        )
    return found


def capacity_tables(demand: Demand, given: Assumptions, found: Sequence[Need]) -> Iterator[Table]:
    """Yield demand, needs and assumptions as tables."""
    yield Table(
        "demand",
        "Resources of one ask, measured",
        (text("what", ""), Column("value", "value"), text("unit", "unit")),
        (
            *((name, 1e3 * seconds, "ms of a core, under load") for name, seconds in demand.cpu_s.items()),
            ("together", 1e3 * sum(demand.cpu_s.values()), "ms of a core, under load"),
            ("alone, from question to end", 1e3 * demand.service_s, "ms"),
            ("variation of that (scv)", demand.service_scv, ""),
            ("passages reranked", demand.pool, ""),
            ("tokens read to answer", demand.read_tokens, ""),
            ("tokens written", demand.written_tokens, ""),
            ("saturated at", demand.saturation, f"asks per second on {demand.cores} cores"),
            ("knee, measured", demand.knee, "asks per second"),
            ("knee, predicted", demand.predicted, "asks per second"),
        ),
        f"{demand.measured_on}.",
    )
    services = list(demand.cpu_s)
    yield Table(
        "processors",
        "On processors alone",
        (
            Column("rate", "asks per second"),
            Column("cores", "cores"),
            *(Column(name, f"{name} pods") for name in services),
        ),
        tuple(
            (_whole(one.rate), math.ceil(sum(one.cores.values())), *(one.pods[name] for name in services))
            for one in found
        ),
        f"The bundled models; pods of {given.pod_cores} cores, "
        f"{planned_share(given.pod_cores, demand.service_scv):.0%} of them busy, {given.spare_pods} spare "
        "each. The retriever is that of the small collection that was measured.",
    )
    yield Table(
        "gpus",
        "With GPUs, and an index of its own size",
        (
            Column("rate", "asks per second"),
            Column("bundled_reranker", "GPUs, reranker, bundled"),
            Column("bundled_generator", "generator, bundled"),
            Column("large_reranker", "reranker, large"),
            Column("large_generator", "generator, large"),
            Column("shards", "index shards"),
            Column("replicas", "pods of each"),
            Column("pods", "pods of orchestrator and evaluator"),
        ),
        tuple(
            (
                _whole(one.rate),
                *(one.gpus_bundled[name] for name in _MODELS),
                *(one.gpus_large[name] for name in _MODELS),
                one.shards,
                one.shard_replicas,
                sum(one.pods.get(name, 0) for name in ("orchestrator", "evaluator")),
            )
            for one in found
        ),
        f"Computed, not measured: a GPU is busy {planned_share(1, demand.service_scv):.0%} of its time. "
        f"Bundled: {given.bundled_parameters / 1e6:.0f} million parameters. Large: "
        f"{given.large_parameters / 1e9:.0f} billion parameters; the model judges and answers. Small models "
        "do not use such a share of a GPU, so they need at least the GPUs that the table states.",
    )
    yield Table(
        "assumptions",
        "Assumptions",
        (text("name", "name"), Column("value", "value")),
        tuple((one.name, f"{getattr(given, one.name):g}") for one in fields(given)),
        "Set them in a TOML file, `--assumptions`.",
    )


def _whole(rate: float) -> int | float:
    """Return a rate, as an integer where it is one."""
    return int(rate) if rate == int(rate) else rate
