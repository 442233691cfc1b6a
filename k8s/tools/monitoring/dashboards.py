"""The dashboards: what is drawn, and what it means."""

# ruff: noqa: E501 - a query is one line

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from k8s.tools.monitoring.grafana import Dashboard, Panel, Query, Row

_WINDOWS: Final = ("5m", "1h", "6h", "3d")
_BUDGETS: Final = {"failed": 0.005, "slow": 0.05}
_SERIES: Final = "{{collection}} {{retriever}}/{{reranker}}/{{generator}} α={{alpha}}"
_METHOD: Final = "{{service_name}} {{rpc_method}}"
_COLLECTION: Final = "{{tenant}}/{{collection}}"
_MODEL: Final = "gen_ai_request_model"
_FIVE: Final = 'job=~"orchestrator|retriever|reranker|generator|evaluator"'


def _of(metric: str, labels: str = "") -> str:
    """Return the selector of a metric of the mesh that is looked at."""
    return f"{metric}{{{', '.join(one for one in ('$here', labels) if one)}}}"


def _names(by: str) -> str:
    """Return the legend that names lines by these labels."""
    return " ".join(f"{{{{{one}}}}}" for one in by.split(", "))


def _per_s(metric: str, by: str = "", labels: str = "") -> str:
    """Return the sum of a counter's rates, by labels if there are any."""
    rates = f"(rate({_of(metric, labels)}[$__rate_interval]))"
    return f"sum by ({by}) {rates}" if by else f"sum{rates}"


def _quantile(q: float, metric: str, by: str, labels: str, legend: str) -> Query:
    return Query(f"histogram_quantile({q}, {_per_s(f'{metric}_bucket', by, labels)})", legend)


def _quantiles(metric: str, labels: str = "") -> Sequence[Query]:
    """Return the median and the 95th and 99th percentile of a histogram."""
    return [_quantile(q, metric, "le", labels, f"p{100 * q:g}") for q in (0.5, 0.95, 0.99)]


def _p95(metric: str, by: str, labels: str = "") -> Query:
    return _quantile(0.95, metric, f"{by}, le", labels, _names(by))


def _rate(metric: str, by: str) -> Query:
    return Query(_per_s(metric, by), _names(by))


def _total(metric: str, legend: str) -> Query:
    return Query(_per_s(metric), legend)


def _ratio(above: str, below: str, legend: str = "", by: str = "") -> Query:
    """Return the rate of a counter over that of another."""
    return Query(f"{_per_s(above, by)} / {_per_s(below, by)}", legend or _names(by))


def _gauge(metric: str, legend: str = "", *, labels: str = "") -> Query:
    return Query(_of(metric, labels), legend)


def _by(function: str, metric: str, by: str, legend: str = "", *, labels: str = "") -> Query:
    """Return the ``max``, ``sum`` … of a gauge by labels."""
    return Query(f"{function} by ({by}) ({_of(metric, labels)})", legend or _names(by))


def _kept(what: str) -> Query:
    """Return the share of the asks of 30 days that were not ``failed`` or ``slow``."""
    return Query(
        f"1 - sum(sum_over_time(namespace:evenmesh_asks_{what}:rate5m{{$here}}[30d]))"
        " / sum(sum_over_time(namespace:evenmesh_asks:rate5m{$here}[30d]))"
    )


def _burning(what: str) -> Sequence[Query]:
    return [
        Query(f"namespace:evenmesh_asks_{what}:ratio_rate{window}{{$here}} / {_BUDGETS[what]}", window)
        for window in _WINDOWS
    ]


OVERVIEW: Final = Dashboard(
    uid="evenmesh-overview",
    title="evenmesh: overview",
    description="Objectives, asks, and rate, errors and duration of every RPC.",
    rows=[
        Row(
            "Objectives",
            [
                Panel(
                    "Asks that did not fail, 30 days",
                    "Objective: 99.5 %. Errors of the mesh's own and asks turned away for want of room count as failed.",
                    "percentunit",
                    [_kept("failed")],
                    kind="stat",
                    width=4,
                ),
                Panel(
                    "Asks answered within 10 s, 30 days",
                    "Objective: 95 % of those that were answered, to the last word.",
                    "percentunit",
                    [_kept("slow")],
                    kind="stat",
                    width=4,
                ),
                Panel(
                    "Burn rate: asks that fail",
                    "1 uses up the budget of 30 days in 30 days; above 14.4 over an hour somebody is woken.",
                    "short",
                    _burning("failed"),
                    lines=[(1, "orange"), (14.4, "red")],
                ),
                Panel(
                    "Burn rate: asks that take longer than 10 s",
                    "1 uses up the budget of 30 days in 30 days; above 14.4 over an hour somebody is woken.",
                    "short",
                    _burning("slow"),
                    lines=[(1, "orange"), (14.4, "red")],
                ),
            ],
        ),
        Row(
            "Asks",
            [
                Panel(
                    "Asks by outcome",
                    "Degraded asks have an answer, but something was done instead of a stage.",
                    "reqps",
                    [_rate("evenmesh_asks_total", "kind, outcome")],
                    stacked=True,
                ),
                Panel(
                    "Duration of asks",
                    "From the ask to its last event.",
                    "s",
                    _quantiles("evenmesh_ask_duration_seconds", 'kind="ask"'),
                ),
                Panel(
                    "Time to the first words",
                    "From the ask to the first words of its answer, as the caller sees it.",
                    "s",
                    _quantiles("evenmesh_ask_first_word_duration_seconds"),
                ),
                Panel(
                    "Duration of stages (p95)",
                    "The stage that takes longest is the one to look at; generate ends with the last word.",
                    "s",
                    [_p95("evenmesh_ask_stage_duration_seconds", "stage")],
                ),
                Panel(
                    "What was done instead",
                    "Degradations by stage and action; docs/operate/limits.md lists them.",
                    "ops",
                    [_rate("evenmesh_ask_degradations_total", "stage, action, reason")],
                ),
                Panel(
                    "Circuits",
                    "0 closed, 1 half-open, 2 open: the orchestrator leaves that service alone.",
                    "short",
                    [_by("max", "evenmesh_upstream_circuit", "upstream")],
                    most=2,
                ),
            ],
        ),
        Row(
            "RPCs",
            [
                Panel(
                    "Calls",
                    "By service and method, over five minutes.",
                    "reqps",
                    [_gauge("method:evenmesh_rpc_requests:rate5m", _METHOD)],
                ),
                Panel(
                    "Errors",
                    "Share of calls that end with an error of the service's own.",
                    "percentunit",
                    [_gauge("method:evenmesh_rpc_errors:ratio_rate5m", _METHOD)],
                    lines=[(0.05, "red")],
                ),
                Panel(
                    "Duration (p95)",
                    "Streams last until their last message.",
                    "ms",
                    [_gauge("method:evenmesh_rpc_duration_milliseconds:p95_rate5m", _METHOD)],
                ),
                Panel(
                    "Other statuses than OK, by reason",
                    "Refused requests and callers that hung up are among them.",
                    "ops",
                    [_rate("evenmesh_rpc_errors_total", "service_name, rpc_method, error_type")],
                ),
                Panel(
                    "Duration as callers see it (p95)",
                    "Calls between services; what is above the duration at the service is the network and waiting.",
                    "ms",
                    [_p95("rpc_client_duration_milliseconds", "rpc_method", 'rpc_service=~"evenmesh.+"')],
                ),
                Panel(
                    "Second calls (hedges)",
                    "Calls made a second time because the first was slow, and whether the second won.",
                    "ops",
                    [_rate("evenmesh_upstream_hedges_total", "upstream, won")],
                ),
            ],
        ),
        Row(
            "Admission",
            [
                Panel(
                    "Work in flight and in the admission queue",
                    "As a share of what fits; above 1 work waits.",
                    "percentunit",
                    [_gauge("service:evenmesh_admission_load:ratio", "{{service_name}} {{unit}}")],
                    lines=[(1, "red")],
                ),
                Panel(
                    "Turned away for want of room",
                    "Share of calls.",
                    "percentunit",
                    [_gauge("service:evenmesh_admission_refused:ratio_rate5m", "{{service_name}}")],
                    lines=[(0.01, "red")],
                ),
                Panel(
                    "Wait in the admission queue (p95)",
                    "Of calls that had to wait and were let in.",
                    "s",
                    [_p95("evenmesh_admission_wait_duration_seconds", "service_name")],
                ),
                Panel(
                    "Refused by tenants' limits",
                    "Only where EVENMESH_LIMITS is set. Not an error of the mesh.",
                    "ops",
                    [_rate("evenmesh_limits_refused_total", "service_name, reason")],
                ),
                Panel(
                    "Admitted without the store of limits",
                    "While EVENMESH_LIMITS_STORE does not answer, each process counts for itself.",
                    "ops",
                    [_rate("evenmesh_limits_unshared_total", "service_name")],
                ),
            ],
        ),
        Row(
            "Certificates and files",
            [
                Panel(
                    "Time until a certificate ends",
                    "Of the certificate that the next handshake uses; of authorities, the last that is trusted. Empty without TLS.",
                    "s",
                    [
                        Query(
                            "min by (service_name, role) (evenmesh_certificate_expires_timestamp_seconds{$here}) - time()",
                            "{{service_name}} {{role}}",
                        )
                    ],
                    lines=[(2 * 86_400, "red"), (14 * 86_400, "orange")],
                ),
                Panel(
                    "Files that are not in force",
                    "1 where what was there before a change is in force, since what is there now cannot be used.",
                    "short",
                    [_by("max", "evenmesh_reload_stale", "service_name, file")],
                    most=1,
                ),
                Panel(
                    "Changes that could not be used",
                    "Within an hour, by service and file.",
                    "short",
                    [
                        Query(
                            "max by (service_name, file) (increase(evenmesh_reload_failures_total{$here}[1h]))",
                            "{{service_name}} {{file}}",
                        )
                    ],
                ),
            ],
        ),
        Row(
            "Processes",
            [
                Panel(
                    "Running",
                    "Processes that Prometheus reaches.",
                    "short",
                    [_by("sum", "up", "job", labels=_FIVE)],
                ),
                Panel(
                    "Processors",
                    "Cores that each process keeps busy.",
                    "short",
                    [
                        Query(
                            f"rate({_of('process_cpu_seconds_total', _FIVE)}[$__rate_interval])",
                            "{{job}} {{instance}}",
                        )
                    ],
                ),
                Panel(
                    "Memory",
                    "Resident memory of each process.",
                    "bytes",
                    [_gauge("process_resident_memory_bytes", "{{job}} {{instance}}", labels=_FIVE)],
                ),
            ],
        ),
        Row(
            "Cluster",
            [
                Panel(
                    "Probes that succeed",
                    "1: the address answers another pod. Empty without components/probe.",
                    "short",
                    [_gauge("probe_success", "{{instance}}", labels='job="probe"')],
                    most=1,
                ),
                Panel(
                    "Left of volumes",
                    "Bytes or inodes. Empty outside Kubernetes.",
                    "percentunit",
                    [_gauge("volume:kubelet_volume_left:ratio", "{{persistentvolumeclaim}} {{of}}")],
                    lines=[(0.05, "red"), (0.15, "orange")],
                    most=1,
                ),
                Panel(
                    "Memory of GPUs",
                    "Used of what programs can use, by pod. Empty without NVIDIA's exporter.",
                    "percentunit",
                    [_gauge("gpu:dcgm_memory_used:ratio", "{{pod}} {{gpu}}")],
                    lines=[(0.95, "red")],
                    most=1,
                ),
            ],
        ),
    ],
)

MODELS: Final = Dashboard(
    uid="evenmesh-models",
    title="evenmesh: models",
    description="What models are asked, how long it waits, and how much they do at a time.",
    rows=[
        Row(
            "Generator",
            [
                Panel(
                    "Requests",
                    "Waiting for the model, and being computed. Zero where a Triton server computes.",
                    "short",
                    [
                        _by("sum", f"evenmesh_generator_requests_{one}", _MODEL, f"{_names(_MODEL)} {one}")
                        for one in ("waiting", "active")
                    ],
                ),
                Panel(
                    "Wait until the model takes a request up",
                    "Long waits mean that the model has more to do than it can: add generators or GPUs.",
                    "s",
                    _quantiles("evenmesh_generator_queue_duration_seconds"),
                    lines=[(2, "red")],
                ),
                Panel(
                    "Time to the first token",
                    "From the request's arrival at the generator.",
                    "s",
                    _quantiles("gen_ai_server_time_to_first_token_seconds"),
                ),
                Panel(
                    "Time per output token",
                    "Mean of each answer; its inverse is how fast one reader sees words.",
                    "s",
                    _quantiles("gen_ai_server_time_per_output_token_seconds"),
                ),
                Panel(
                    "Tokens written",
                    "By all answers together, as they are written.",
                    "short",
                    [_rate("evenmesh_generator_tokens_written_total", _MODEL)],
                ),
                Panel(
                    "Prompt tokens",
                    "Computed, and found in the cache of encodings.",
                    "short",
                    [_total(f"evenmesh_generator_tokens_{one}_total", one) for one in ("computed", "reused")],
                    stacked=True,
                ),
                Panel(
                    "Rows of a step",
                    "How many answers the running batch writes at a time, on average: more is cheaper.",
                    "short",
                    [
                        _ratio(
                            "evenmesh_generator_step_rows_total", "evenmesh_generator_steps_total", by=_MODEL
                        )
                    ],
                ),
                Panel(
                    "Duration of requests (p95)",
                    "By operation: answers, and judgements of relevance (RankRAG).",
                    "s",
                    [_p95("gen_ai_server_request_duration_seconds", "gen_ai_operation_name")],
                ),
                Panel(
                    "Cache of encodings",
                    "Memory taken by what models have read before.",
                    "bytes",
                    [_by("sum", "evenmesh_generator_cache_size_bytes", _MODEL)],
                ),
                Panel(
                    "Ends",
                    "Requests answered, given up by their callers, and failed.",
                    "ops",
                    [
                        _total(f"evenmesh_generator_requests_{end}_total", end)
                        for end in ("finished", "cancelled", "failed")
                    ],
                ),
                Panel(
                    "Passages judged",
                    "By the model that answers, for the reranker (RankRAG).",
                    "ops",
                    [_rate("evenmesh_generator_passages_judged_total", _MODEL)],
                ),
            ],
        ),
        Row(
            "Reranker",
            [
                Panel(
                    "Pairs scored",
                    "Questions with passages, each second.",
                    "ops",
                    [_rate("evenmesh_reranker_pairs_total", "reranker")],
                ),
                Panel(
                    "Duration (p95)",
                    "Of a request, after it was let in.",
                    "s",
                    [_p95("evenmesh_reranker_duration_seconds", "reranker")],
                ),
                Panel(
                    "Queue of the cross-encoder",
                    "Pairs that wait for a batch.",
                    "short",
                    [Query("sum(evenmesh_reranker_queue_depth{$here})", "pairs")],
                ),
                Panel(
                    "Wait of pairs for their batch",
                    "Long waits mean that the cross-encoder has more to do than it can.",
                    "s",
                    _quantiles("evenmesh_reranker_queue_duration_seconds"),
                    lines=[(1, "red")],
                ),
                Panel(
                    "Pairs of a batch",
                    "Computed together, on average.",
                    "short",
                    [
                        _ratio(
                            "evenmesh_reranker_batch_pairs_sum",
                            "evenmesh_reranker_batch_pairs_count",
                            "pairs",
                        )
                    ],
                ),
                Panel(
                    "Pairs for each second of computing",
                    "How fast the cross-encoder is while it computes.",
                    "ops",
                    [
                        _ratio(
                            "evenmesh_reranker_batch_pairs_sum",
                            "evenmesh_reranker_batch_duration_seconds_sum",
                            "pairs/s",
                        )
                    ],
                ),
                Panel(
                    "Model that serves",
                    "Of the agents without a version of their own.",
                    "short",
                    [_by("max", "evenmesh_reranker_model_info", "instance, version, origin", "{{version}}")],
                    kind="table",
                ),
                Panel(
                    "Age of the model",
                    "Time since its weights were made.",
                    "s",
                    [Query("time() - max(evenmesh_reranker_model_created_timestamp_seconds{$here})")],
                    kind="stat",
                ),
            ],
        ),
        Row(
            "Retriever",
            [
                Panel(
                    "Duration of a search (p95)",
                    "Scoring and ranking one query.",
                    "s",
                    [_p95("evenmesh_retriever_search_duration_seconds", "retriever")],
                ),
                Panel(
                    "Duration of drawing (p95)",
                    "The part of a search that draws rankings.",
                    "s",
                    [_p95("evenmesh_retriever_sample_duration_seconds", "retriever")],
                ),
                Panel(
                    "Rankings drawn",
                    "Each second.",
                    "ops",
                    [_rate("evenmesh_retriever_sampled_rankings_total", "retriever")],
                ),
                Panel(
                    "Texts encoded",
                    "Queries, and passages that were ingested.",
                    "ops",
                    [_rate("evenmesh_retriever_encoded_texts_total", "input")],
                ),
                Panel(
                    "Duration of encoding (p95)",
                    "Of one batch of the dense encoder.",
                    "s",
                    [_p95("evenmesh_retriever_encode_duration_seconds", "input")],
                ),
            ],
        ),
        Row(
            "Triton",
            [
                Panel(
                    "Requests that wait for the running batch",
                    "Behind Triton's own queue. Empty without a Triton server.",
                    "short",
                    [_by("sum", "evenmesh_generator_waiting", "model")],
                ),
                Panel(
                    "Mean wait in Triton's queue",
                    "Each request, in microseconds. Empty without a Triton server.",
                    "µs",
                    [_ratio("nv_inference_queue_duration_us", "nv_inference_request_success", by="model")],
                ),
                Panel(
                    "Tokens written",
                    "By each model of the Triton servers. Empty without a Triton server.",
                    "short",
                    [_rate("evenmesh_generator_written_tokens_total", "model")],
                ),
            ],
        ),
    ],
)

_OF: Final = '$here, collection=~"$collection"'


# Of each evaluator in each collection: shares, and the observations that they weigh.
_EACH: Final = "namespace, instance, tenant, collection"
_SHARE: Final = f"evenmesh_fairness_provider_exposure_share{{{_OF}}}"
_SEEN: Final = f"sum by ({_EACH}) (evenmesh_fairness_observations{{{_OF}}})"


def _recorded(quantity: str, over: str = "mean") -> str:
    """Return the selector of a quantity of each series of asks, as the rules record it."""
    return f"series:evenmesh_fairness_{quantity}:{over}{{{_OF}}}"


def _weighed(metric: str, legend: str = _SERIES, *, of: str = _OF) -> Query:
    """Return the mean of a gauge over evaluators, of which each reports what it received."""
    by = "namespace, tenant, collection, retriever, reranker, generator, alpha"
    value, weight = f"{metric}{{{of}}}", "evenmesh_fairness_observations"
    return Query(f"sum by ({by}) ({value} * {weight}) / sum by ({by}) ({weight} and {value})", legend)


def _beyond(values: str, quantity: str, bound: str, legend: str = _SERIES) -> Query:
    """Return by how much values miss the strictest target of their collection; negative where they keep it."""
    strictest, sign = ("min", "") if bound == "at_most" else ("max", "-")
    target = f'evenmesh_fairness_target{{quantity="{quantity}", bound="{bound}"}}'
    return Query(
        f"{sign}({values} - on (tenant, collection) group_left ()"
        f" {strictest} by (tenant, collection) ({target}))",
        legend,
    )


FAIRNESS: Final = Dashboard(
    uid="evenmesh-fairness",
    title="evenmesh: fairness",
    description="Who was shown to the models in the last hour, and how useful the answers were.",
    choices=[("collection", "Collection", "label_values(evenmesh_fairness_observations, collection)")],
    rows=[
        Row(
            "Exposure",
            [
                Panel(
                    "Disparity (EE-D, normalised)",
                    "0: all candidates get the same exposure; 1: one ranking for all. Lower α is fairer.",
                    "percentunit",
                    [Query(_recorded("ee_d_norm"), _SERIES)],
                    width=12,
                    lines=[(0.9, "red")],
                    most=1,
                ),
                Panel(
                    "Disparity beside the day before",
                    "Difference to the mean of the day before; more than 0.1 is a drift.",
                    "short",
                    [Query(f"{_recorded('ee_d_norm')} - {_recorded('ee_d_norm', 'avg1d')}", _SERIES)],
                    width=12,
                    lines=[(0.1, "red")],
                ),
                Panel(
                    "Disparity beyond its target",
                    "Above 0: the target of the collection is missed. Empty without a target.",
                    "short",
                    [_beyond(_recorded("ee_d_norm"), "disparity", "at_most")],
                    width=12,
                    lines=[(0, "red")],
                ),
                Panel(
                    "Largest provider beyond its target",
                    "Above 0: a provider has more than the target of the collection. Empty without a target.",
                    "percentunit",
                    [
                        _beyond(
                            "max by (namespace, tenant, collection)"
                            f" (provider:evenmesh_fairness_provider_exposure_share:mean{{{_OF}}})",
                            "provider_share",
                            "at_most",
                            "{{tenant}} {{collection}}",
                        )
                    ],
                    width=12,
                    lines=[(0, "red")],
                ),
                Panel(
                    "Providers: least over most exposed",
                    "1: providers get the same; 0: one gets nothing.",
                    "percentunit",
                    [Query(_recorded("provider_exposure_ratio"), _SERIES)],
                    width=12,
                    most=1,
                ),
                Panel(
                    "Share of each provider",
                    "Of all exposure of known providers.",
                    "percentunit",
                    [
                        Query(
                            f"sum by (collection, provider) ({_SHARE} * on ({_EACH}) group_left () {_SEEN})"
                            f" / on (collection) group_left ()"
                            f" sum by (collection) ({_SEEN} and sum by ({_EACH}) ({_SHARE}))",
                            "{{collection}} {{provider}}",
                        )
                    ],
                    width=12,
                    stacked=True,
                    most=1,
                ),
                Panel(
                    "Exposure of what is useful (EE-R, normalised)",
                    "Where asks name useful passages.",
                    "percentunit",
                    [_weighed("evenmesh_fairness_ee_r_norm")],
                    width=12,
                    most=1,
                ),
                Panel(
                    "Disparity (EE-D), not normalised",
                    "Sum of squared exposures, averaged over the window.",
                    "short",
                    [_weighed("evenmesh_fairness_ee_d")],
                    width=12,
                ),
            ],
        ),
        Row(
            "Utility",
            [
                Panel(
                    "Expected utility",
                    "Where asks bring references, [0, 1].",
                    "percentunit",
                    [Query(_recorded("expected_utility"), _SERIES)],
                    width=12,
                    most=1,
                ),
                Panel(
                    "Utility beside the day before",
                    "Ratio to the mean of the day before; less than 0.8 is a drop.",
                    "percentunit",
                    [
                        Query(
                            f"{_recorded('expected_utility')} / {_recorded('expected_utility', 'avg1d')}",
                            _SERIES,
                        )
                    ],
                    width=12,
                ),
                Panel(
                    "Utility below its target",
                    "Above 0: the target of the collection is missed. Empty without a target.",
                    "percentunit",
                    [_beyond(_recorded("expected_utility"), "utility", "at_least")],
                    width=12,
                    lines=[(0, "red")],
                ),
                Panel(
                    "Least over most exposed provider below its target",
                    "Above 0: the target of the collection is missed. Empty without a target.",
                    "percentunit",
                    [_beyond(_recorded("provider_exposure_ratio"), "provider_ratio", "at_least")],
                    width=12,
                    lines=[(0, "red")],
                ),
                Panel(
                    "Agreement of votes",
                    "Of ensembles: share of the other answers that agree with the one that won.",
                    "percentunit",
                    # Of no one collection: each expression names its own.
                    [_weighed("evenmesh_fairness_vote_agreement", "{{retriever}} {{generator}}", of="$here")],
                    width=12,
                    most=1,
                ),
                Panel(
                    "Observations in the window",
                    "What the means are of: few make them wander.",
                    "short",
                    [Query(_recorded("observations", "sum"), _SERIES)],
                    width=12,
                ),
            ],
        ),
    ],
)

DATA: Final = Dashboard(
    uid="evenmesh-data",
    title="evenmesh: data",
    description="Collections, feedback, and the way of observations to the evaluator.",
    rows=[
        Row(
            "Observations",
            [
                Panel(
                    "Outbox",
                    "Observations that the evaluator has not acknowledged.",
                    "short",
                    [_gauge("evenmesh_outbox_depth", "{{instance}}")],
                ),
                Panel(
                    "Outbox, as a share of what fits",
                    "What does not fit is lost.",
                    "percentunit",
                    [_gauge("instance:evenmesh_outbox_filled:ratio", "{{instance}}")],
                    lines=[(0.5, "red")],
                ),
                Panel(
                    "Log",
                    "Observations that wait in the log between orchestrators and evaluators, if there is one.",
                    "short",
                    [_gauge("evenmesh_evaluator_log_entries", "{{instance}}")],
                    lines=[(10_000, "red")],
                ),
                Panel(
                    "Age of the oldest in the outbox",
                    "0 when it is empty.",
                    "s",
                    [_gauge("evenmesh_outbox_oldest_age_seconds", "{{instance}}")],
                    lines=[(300, "red")],
                ),
                Panel(
                    "Delivered, set aside, lost",
                    "Set aside is what the evaluator will never take; lost is what did not fit.",
                    "ops",
                    [
                        _total("evenmesh_outbox_delivered_total", "delivered"),
                        _total("evenmesh_outbox_refused_total", "set aside"),
                        _total("evenmesh_outbox_dropped_total", "lost"),
                    ],
                ),
                Panel(
                    "Taken in by the evaluator",
                    "New ones, ones it had already, and ones it refused.",
                    "ops",
                    [_rate("evenmesh_evaluator_observations_total", "outcome")],
                    stacked=True,
                ),
                Panel(
                    "Lag",
                    "From an ask's end until it is counted.",
                    "s",
                    _quantiles("evenmesh_evaluator_lag_seconds"),
                    lines=[(60, "red")],
                ),
                Panel(
                    "Backlog of the evaluator",
                    "Received and not yet durable.",
                    "short",
                    [_gauge("evenmesh_evaluator_backlog", "{{instance}}")],
                ),
            ],
        ),
        Row(
            "Collections",
            [
                Panel(
                    "Passages",
                    "Of the largest collections.",
                    "short",
                    [_gauge("evenmesh_retriever_collection_passages", _COLLECTION)],
                ),
                Panel(
                    "Size on disk",
                    "Of the largest collections.",
                    "bytes",
                    [_gauge("evenmesh_retriever_collection_size_bytes", _COLLECTION)],
                ),
                Panel(
                    "Passages with a vector",
                    "The others are found by their words alone.",
                    "percentunit",
                    [_gauge("evenmesh_retriever_collection_embedded", _COLLECTION)],
                    most=1,
                ),
                Panel(
                    "Versions that read replicas are behind",
                    "0 or 1 while a replica follows.",
                    "short",
                    [_gauge("evenmesh_retriever_replica_lag", f"{{{{instance}}}} {_COLLECTION}")],
                ),
                Panel(
                    "Passages gone and still on disk",
                    "Merging frees them.",
                    "short",
                    [_gauge("evenmesh_retriever_collection_tombstones", _COLLECTION)],
                ),
                Panel(
                    "Since the last change",
                    "Of the largest collections.",
                    "s",
                    [
                        Query(
                            "time() - evenmesh_retriever_collection_updated_timestamp_seconds{$here}",
                            "{{tenant}}/{{collection}}",
                        )
                    ],
                ),
                Panel(
                    "Versions",
                    "What is served, and the encoder of its vectors.",
                    "short",
                    [
                        Query(
                            "max by (instance, tenant, collection, version, encoder) (evenmesh_retriever_collection_info{$here})"
                        )
                    ],
                    kind="table",
                ),
                Panel(
                    "Collections",
                    "Served by the retrievers.",
                    "short",
                    [Query("sum(evenmesh_retriever_collections{$here})")],
                    kind="stat",
                ),
            ],
        ),
        Row(
            "Feedback",
            [
                Panel(
                    "Taken in",
                    "New items, ones that were there already, and refused ones.",
                    "ops",
                    [_rate("evenmesh_reranker_feedback_total", "outcome")],
                    stacked=True,
                ),
                Panel(
                    "Stored",
                    "Items of all tenants.",
                    "short",
                    [_gauge("evenmesh_reranker_feedback_stored", "{{instance}}")],
                ),
                Panel(
                    "Newest feedback over the model",
                    "How much later the newest item came than the model was made: it has not learned from that.",
                    "s",
                    [_gauge("instance:evenmesh_reranker_model_behind_feedback:seconds", "{{instance}}")],
                    lines=[(14 * 86_400, "red")],
                ),
            ],
        ),
    ],
)

DASHBOARDS: Final = (OVERVIEW, MODELS, FAIRNESS, DATA)
