"""The dashboards: what is drawn, and what it means."""

# ruff: noqa: E501 - a query is one line

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from k8s.tools.monitoring.grafana import Dashboard, Panel, Query, Row

_WINDOWS: Final = ("5m", "1h", "6h", "3d")
_BUDGETS: Final = {"failed": 0.005, "slow": 0.05}
_SERIES: Final = "{{collection}} {{retriever}}/{{reranker}}/{{generator}} α={{alpha}}"


def _quantiles(metric: str, labels: str = "", by: str = "", legend: str = "") -> Sequence[Query]:
    """The median and the 95th and 99th percentile of a histogram."""
    inner = ", ".join(one for one in ("$here", labels) if one)
    groups = ", ".join(one for one in (by, "le") if one)
    return [
        Query(
            f"histogram_quantile({q}, sum by ({groups}) (rate({metric}_bucket{{{inner}}}[$__rate_interval])))",
            f"{legend} p{100 * q:g}".strip(),
        )
        for q in (0.5, 0.95, 0.99)
    ]


def _p95(metric: str, by: str, labels: str = "") -> Query:
    inner = ", ".join(one for one in ("$here", labels) if one)
    return Query(
        f"histogram_quantile(0.95, sum by ({by}, le) (rate({metric}_bucket{{{inner}}}[$__rate_interval])))",
        f"{{{{{by}}}}}",
    )


def _rate(metric: str, by: str, labels: str = "") -> Query:
    inner = ", ".join(one for one in ("$here", labels) if one)
    legend = " ".join(f"{{{{{one}}}}}" for one in by.split(", "))
    return Query(f"sum by ({by}) (rate({metric}{{{inner}}}[$__rate_interval]))", legend)


def _mean(metric: str, legend: str) -> Query:
    """The mean of a histogram."""
    return Query(
        f"sum(rate({metric}_sum{{$here}}[$__rate_interval])) / sum(rate({metric}_count{{$here}}[$__rate_interval]))",
        legend,
    )


def _kept(what: str) -> Query:
    """The share of the asks of 30 days that were not ``failed`` or ``slow``."""
    return Query(
        f"1 - sum(sum_over_time(namespace:ragmesh_asks_{what}:rate5m{{$here}}[30d]))"
        " / sum(sum_over_time(namespace:ragmesh_asks:rate5m{$here}[30d]))"
    )


def _burning(what: str) -> Sequence[Query]:
    return [
        Query(f"namespace:ragmesh_asks_{what}:ratio_rate{window}{{$here}} / {_BUDGETS[what]}", window)
        for window in _WINDOWS
    ]


OVERVIEW: Final = Dashboard(
    uid="ragmesh-overview",
    title="ragmesh: overview",
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
                    [_rate("ragmesh_asks_total", "kind, outcome")],
                    stacked=True,
                ),
                Panel(
                    "Duration of asks",
                    "From the ask to its last event.",
                    "s",
                    _quantiles("ragmesh_ask_duration_seconds", 'kind="ask"'),
                ),
                Panel(
                    "Time to the first words",
                    "From the ask to the first words of its answer, as the caller sees it.",
                    "s",
                    _quantiles("ragmesh_ask_first_word_duration_seconds"),
                ),
                Panel(
                    "Duration of stages (p95)",
                    "The stage that takes longest is the one to look at; generate ends with the last word.",
                    "s",
                    [_p95("ragmesh_ask_stage_duration_seconds", "stage")],
                ),
                Panel(
                    "What was done instead",
                    "Degradations by stage and action; docs/limits.md lists them.",
                    "ops",
                    [_rate("ragmesh_ask_degradations_total", "stage, action, reason")],
                ),
                Panel(
                    "Circuits",
                    "0 closed, 1 half-open, 2 open: the orchestrator leaves that service alone.",
                    "short",
                    [Query("max by (upstream) (ragmesh_upstream_circuit{$here})", "{{upstream}}")],
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
                    [Query("method:ragmesh_rpc_requests:rate5m{$here}", "{{service_name}} {{rpc_method}}")],
                ),
                Panel(
                    "Errors",
                    "Share of calls that end with an error of the service's own.",
                    "percentunit",
                    [
                        Query(
                            "method:ragmesh_rpc_errors:ratio_rate5m{$here}", "{{service_name}} {{rpc_method}}"
                        )
                    ],
                    lines=[(0.05, "red")],
                ),
                Panel(
                    "Duration (p95)",
                    "Streams last until their last message.",
                    "ms",
                    [
                        Query(
                            "method:ragmesh_rpc_duration_milliseconds:p95_rate5m{$here}",
                            "{{service_name}} {{rpc_method}}",
                        )
                    ],
                ),
                Panel(
                    "Other statuses than OK, by reason",
                    "Refused requests and callers that hung up are among them.",
                    "ops",
                    [_rate("ragmesh_rpc_errors_total", "service_name, rpc_method, error_type")],
                ),
                Panel(
                    "Duration as callers see it (p95)",
                    "Calls between services; what is above the duration at the service is the network and waiting.",
                    "ms",
                    [_p95("rpc_client_duration_milliseconds", "rpc_method", 'rpc_service=~"ragmesh.+"')],
                ),
                Panel(
                    "Second calls (hedges)",
                    "Calls made a second time because the first was slow, and whether the second won.",
                    "ops",
                    [_rate("ragmesh_upstream_hedges_total", "upstream, won")],
                ),
            ],
        ),
        Row(
            "Doors",
            [
                Panel(
                    "Work in flight and at the door",
                    "As a share of what fits; above 1 work waits.",
                    "percentunit",
                    [Query("service:ragmesh_admission_load:ratio{$here}", "{{service_name}} {{unit}}")],
                    lines=[(1, "red")],
                ),
                Panel(
                    "Turned away for want of room",
                    "Share of calls.",
                    "percentunit",
                    [Query("service:ragmesh_admission_refused:ratio_rate5m{$here}", "{{service_name}}")],
                    lines=[(0.01, "red")],
                ),
                Panel(
                    "Wait at the door (p95)",
                    "Of calls that had to wait and were let in.",
                    "s",
                    [_p95("ragmesh_admission_wait_duration_seconds", "service_name")],
                ),
                Panel(
                    "Refused by tenants' limits",
                    "Only where RAGMESH_LIMITS is set. Not an error of the mesh.",
                    "ops",
                    [_rate("ragmesh_limits_refused_total", "service_name, reason")],
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
                            "min by (service_name, role) (ragmesh_certificate_expires_timestamp_seconds{$here}) - time()",
                            "{{service_name}} {{role}}",
                        )
                    ],
                    lines=[(2 * 86_400, "red"), (14 * 86_400, "orange")],
                ),
                Panel(
                    "Files that are not in force",
                    "1 where what was there before a change is in force, since what is there now cannot be used.",
                    "short",
                    [
                        Query(
                            "max by (service_name, file) (ragmesh_reload_stale{$here})",
                            "{{service_name}} {{file}}",
                        )
                    ],
                    most=1,
                ),
                Panel(
                    "Changes that could not be used",
                    "Within an hour, by service and file.",
                    "short",
                    [
                        Query(
                            "max by (service_name, file) (increase(ragmesh_reload_failures_total{$here}[1h]))",
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
                    [
                        Query(
                            'sum by (job) (up{$here, job=~"orchestrator|retriever|reranker|generator|evaluator"})',
                            "{{job}}",
                        )
                    ],
                ),
                Panel(
                    "Processors",
                    "Cores that each process keeps busy.",
                    "short",
                    [
                        Query(
                            'rate(process_cpu_seconds_total{$here, job=~"orchestrator|retriever|reranker|generator|evaluator"}'
                            "[$__rate_interval])",
                            "{{job}} {{instance}}",
                        )
                    ],
                ),
                Panel(
                    "Memory",
                    "Resident memory of each process.",
                    "bytes",
                    [
                        Query(
                            'process_resident_memory_bytes{$here, job=~"orchestrator|retriever|reranker|generator|evaluator"}',
                            "{{job}} {{instance}}",
                        )
                    ],
                ),
            ],
        ),
    ],
)

MODELS: Final = Dashboard(
    uid="ragmesh-models",
    title="ragmesh: models",
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
                        Query(
                            "sum by (gen_ai_request_model) (ragmesh_generator_requests_waiting{$here})",
                            "{{gen_ai_request_model}} waiting",
                        ),
                        Query(
                            "sum by (gen_ai_request_model) (ragmesh_generator_requests_active{$here})",
                            "{{gen_ai_request_model}} active",
                        ),
                    ],
                ),
                Panel(
                    "Wait until the model takes a request up",
                    "Long waits mean that the model has more to do than it can: add generators or GPUs.",
                    "s",
                    _quantiles("ragmesh_generator_queue_duration_seconds"),
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
                    [_rate("ragmesh_generator_tokens_written_total", "gen_ai_request_model")],
                ),
                Panel(
                    "Prompt tokens",
                    "Computed, and found in the cache of encodings.",
                    "short",
                    [
                        Query(
                            "sum(rate(ragmesh_generator_tokens_computed_total{$here}[$__rate_interval]))",
                            "computed",
                        ),
                        Query(
                            "sum(rate(ragmesh_generator_tokens_reused_total{$here}[$__rate_interval]))",
                            "reused",
                        ),
                    ],
                    stacked=True,
                ),
                Panel(
                    "Rows of a step",
                    "How many answers the running batch writes at a time, on average: more is cheaper.",
                    "short",
                    [
                        Query(
                            "sum by (gen_ai_request_model) (rate(ragmesh_generator_step_rows_total{$here}[$__rate_interval]))"
                            " / sum by (gen_ai_request_model) (rate(ragmesh_generator_steps_total{$here}[$__rate_interval]))",
                            "{{gen_ai_request_model}}",
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
                    [
                        Query(
                            "sum by (gen_ai_request_model) (ragmesh_generator_cache_size_bytes{$here})",
                            "{{gen_ai_request_model}}",
                        )
                    ],
                ),
                Panel(
                    "Ends",
                    "Requests answered, given up by their callers, and failed.",
                    "ops",
                    [
                        Query(
                            "sum(rate(ragmesh_generator_requests_finished_total{$here}[$__rate_interval]))",
                            "finished",
                        ),
                        Query(
                            "sum(rate(ragmesh_generator_requests_cancelled_total{$here}[$__rate_interval]))",
                            "cancelled",
                        ),
                        Query(
                            "sum(rate(ragmesh_generator_requests_failed_total{$here}[$__rate_interval]))",
                            "failed",
                        ),
                    ],
                ),
                Panel(
                    "Passages judged",
                    "By the model that answers, for the reranker (RankRAG).",
                    "ops",
                    [_rate("ragmesh_generator_passages_judged_total", "gen_ai_request_model")],
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
                    [_rate("ragmesh_reranker_pairs_total", "reranker")],
                ),
                Panel(
                    "Duration (p95)",
                    "Of a request, after it was let in.",
                    "s",
                    [_p95("ragmesh_reranker_duration_seconds", "reranker")],
                ),
                Panel(
                    "Queue of the cross-encoder",
                    "Pairs that wait for a batch.",
                    "short",
                    [Query("sum(ragmesh_reranker_queue_depth{$here})", "pairs")],
                ),
                Panel(
                    "Wait of pairs for their batch",
                    "Long waits mean that the cross-encoder has more to do than it can.",
                    "s",
                    _quantiles("ragmesh_reranker_queue_duration_seconds"),
                    lines=[(1, "red")],
                ),
                Panel(
                    "Pairs of a batch",
                    "Computed together, on average.",
                    "short",
                    [_mean("ragmesh_reranker_batch_pairs", "pairs")],
                ),
                Panel(
                    "Pairs for each second of computing",
                    "How fast the cross-encoder is while it computes.",
                    "ops",
                    [
                        Query(
                            "sum(rate(ragmesh_reranker_batch_pairs_sum{$here}[$__rate_interval]))"
                            " / sum(rate(ragmesh_reranker_batch_duration_seconds_sum{$here}[$__rate_interval]))",
                            "pairs/s",
                        )
                    ],
                ),
                Panel(
                    "Model that serves",
                    "Of the agents without a version of their own.",
                    "short",
                    [
                        Query(
                            "max by (instance, version, origin) (ragmesh_reranker_model_info{$here})",
                            "{{version}}",
                        )
                    ],
                    kind="table",
                ),
                Panel(
                    "Age of the model",
                    "Time since its weights were made.",
                    "s",
                    [Query("time() - max(ragmesh_reranker_model_created_timestamp_seconds{$here})")],
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
                    [_p95("ragmesh_retriever_search_duration_seconds", "retriever")],
                ),
                Panel(
                    "Duration of drawing (p95)",
                    "The part of a search that draws rankings.",
                    "s",
                    [_p95("ragmesh_retriever_sample_duration_seconds", "retriever")],
                ),
                Panel(
                    "Rankings drawn",
                    "Each second.",
                    "ops",
                    [_rate("ragmesh_retriever_sampled_rankings_total", "retriever")],
                ),
                Panel(
                    "Texts encoded",
                    "Queries, and passages that were ingested.",
                    "ops",
                    [_rate("ragmesh_retriever_encoded_texts_total", "input")],
                ),
                Panel(
                    "Duration of encoding (p95)",
                    "Of one batch of the dense encoder.",
                    "s",
                    [_p95("ragmesh_retriever_encode_duration_seconds", "input")],
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
                    [Query("sum by (model) (ragmesh_generator_waiting{$here})", "{{model}}")],
                ),
                Panel(
                    "Mean wait in Triton's queue",
                    "Each request, in microseconds. Empty without a Triton server.",
                    "µs",
                    [
                        Query(
                            "sum by (model) (rate(nv_inference_queue_duration_us{$here}[$__rate_interval]))"
                            " / sum by (model) (rate(nv_inference_request_success{$here}[$__rate_interval]))",
                            "{{model}}",
                        )
                    ],
                ),
                Panel(
                    "Tokens written",
                    "By each model of the Triton servers. Empty without a Triton server.",
                    "short",
                    [_rate("ragmesh_generator_written_tokens_total", "model")],
                ),
            ],
        ),
    ],
)

_OF: Final = '$here, collection=~"$collection"'


def _series(metric: str) -> Query:
    return Query(f"{metric}{{{_OF}}}", _SERIES)


FAIRNESS: Final = Dashboard(
    uid="ragmesh-fairness",
    title="ragmesh: fairness",
    description="Who was shown to the models in the last hour, and how useful the answers were.",
    choices=[("collection", "Collection", "label_values(ragmesh_fairness_observations, collection)")],
    rows=[
        Row(
            "Exposure",
            [
                Panel(
                    "Disparity (EE-D, normalised)",
                    "0: all candidates get the same exposure; 1: one ranking for all. Lower α is fairer.",
                    "percentunit",
                    [_series("series:ragmesh_fairness_ee_d_norm:mean")],
                    width=12,
                    lines=[(0.9, "red")],
                    most=1,
                ),
                Panel(
                    "Disparity beside the day before",
                    "Difference to the mean of the day before; more than 0.1 is a drift.",
                    "short",
                    [
                        Query(
                            f"series:ragmesh_fairness_ee_d_norm:mean{{{_OF}}}"
                            f" - series:ragmesh_fairness_ee_d_norm:avg1d{{{_OF}}}",
                            _SERIES,
                        )
                    ],
                    width=12,
                    lines=[(0.1, "red")],
                ),
                Panel(
                    "Providers: least over most exposed",
                    "1: providers get the same; 0: one gets nothing.",
                    "percentunit",
                    [_series("series:ragmesh_fairness_provider_exposure_ratio:mean")],
                    width=12,
                    most=1,
                ),
                Panel(
                    "Share of each provider",
                    "Of all exposure of known providers.",
                    "percentunit",
                    [
                        Query(
                            f"avg by (collection, provider) (ragmesh_fairness_provider_exposure_share{{{_OF}}})",
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
                    [_series("ragmesh_fairness_ee_r_norm")],
                    width=12,
                    most=1,
                ),
                Panel(
                    "Disparity (EE-D), not normalised",
                    "Sum of squared exposures, averaged over the window.",
                    "short",
                    [_series("ragmesh_fairness_ee_d")],
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
                    [_series("series:ragmesh_fairness_expected_utility:mean")],
                    width=12,
                    most=1,
                ),
                Panel(
                    "Utility beside the day before",
                    "Ratio to the mean of the day before; less than 0.8 is a drop.",
                    "percentunit",
                    [
                        Query(
                            f"series:ragmesh_fairness_expected_utility:mean{{{_OF}}}"
                            f" / series:ragmesh_fairness_expected_utility:avg1d{{{_OF}}}",
                            _SERIES,
                        )
                    ],
                    width=12,
                ),
                Panel(
                    "Agreement of votes",
                    "Of ensembles: share of the other answers that agree with the one that won.",
                    "percentunit",
                    # Of no one collection: each expression names its own.
                    [Query("ragmesh_fairness_vote_agreement{$here}", "{{retriever}} {{generator}}")],
                    width=12,
                    most=1,
                ),
                Panel(
                    "Observations in the window",
                    "What the means are of: few make them wander.",
                    "short",
                    [_series("series:ragmesh_fairness_observations:sum")],
                    width=12,
                ),
            ],
        ),
    ],
)

DATA: Final = Dashboard(
    uid="ragmesh-data",
    title="ragmesh: data",
    description="Collections, feedback, and the way of observations to the evaluator.",
    rows=[
        Row(
            "Observations",
            [
                Panel(
                    "Outbox",
                    "Observations that the evaluator has not acknowledged.",
                    "short",
                    [Query("ragmesh_outbox_depth{$here}", "{{instance}}")],
                ),
                Panel(
                    "Outbox, as a share of what fits",
                    "What does not fit is lost.",
                    "percentunit",
                    [Query("instance:ragmesh_outbox_filled:ratio{$here}", "{{instance}}")],
                    lines=[(0.5, "red")],
                ),
                Panel(
                    "Age of the oldest in the outbox",
                    "0 when it is empty.",
                    "s",
                    [Query("ragmesh_outbox_oldest_age_seconds{$here}", "{{instance}}")],
                    lines=[(300, "red")],
                ),
                Panel(
                    "Delivered, set aside, lost",
                    "Set aside is what the evaluator will never take; lost is what did not fit.",
                    "ops",
                    [
                        Query(
                            "sum(rate(ragmesh_outbox_delivered_total{$here}[$__rate_interval]))", "delivered"
                        ),
                        Query(
                            "sum(rate(ragmesh_outbox_refused_total{$here}[$__rate_interval]))", "set aside"
                        ),
                        Query("sum(rate(ragmesh_outbox_dropped_total{$here}[$__rate_interval]))", "lost"),
                    ],
                ),
                Panel(
                    "Taken in by the evaluator",
                    "New ones, ones it had already, and ones it refused.",
                    "ops",
                    [_rate("ragmesh_evaluator_observations_total", "outcome")],
                    stacked=True,
                ),
                Panel(
                    "Lag",
                    "From an ask's end until it is counted.",
                    "s",
                    _quantiles("ragmesh_evaluator_lag_seconds"),
                    lines=[(60, "red")],
                ),
                Panel(
                    "Backlog of the evaluator",
                    "Received and not yet durable.",
                    "short",
                    [Query("ragmesh_evaluator_backlog{$here}", "{{instance}}")],
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
                    [Query("ragmesh_retriever_collection_passages{$here}", "{{tenant}}/{{collection}}")],
                ),
                Panel(
                    "Size on disk",
                    "Of the largest collections.",
                    "bytes",
                    [Query("ragmesh_retriever_collection_size_bytes{$here}", "{{tenant}}/{{collection}}")],
                ),
                Panel(
                    "Passages with a vector",
                    "The others are found by their words alone.",
                    "percentunit",
                    [Query("ragmesh_retriever_collection_embedded{$here}", "{{tenant}}/{{collection}}")],
                    most=1,
                ),
                Panel(
                    "Passages gone and still on disk",
                    "Merging frees them.",
                    "short",
                    [Query("ragmesh_retriever_collection_tombstones{$here}", "{{tenant}}/{{collection}}")],
                ),
                Panel(
                    "Since the last change",
                    "Of the largest collections.",
                    "s",
                    [
                        Query(
                            "time() - ragmesh_retriever_collection_updated_timestamp_seconds{$here}",
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
                            "max by (instance, tenant, collection, version, encoder) (ragmesh_retriever_collection_info{$here})"
                        )
                    ],
                    kind="table",
                ),
                Panel(
                    "Collections",
                    "Served by the retrievers.",
                    "short",
                    [Query("sum(ragmesh_retriever_collections{$here})")],
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
                    [_rate("ragmesh_reranker_feedback_total", "outcome")],
                    stacked=True,
                ),
                Panel(
                    "Stored",
                    "Items of all tenants.",
                    "short",
                    [Query("ragmesh_reranker_feedback_stored{$here}", "{{instance}}")],
                ),
                Panel(
                    "Newest feedback over the model",
                    "How much later the newest item came than the model was made: it has not learned from that.",
                    "s",
                    [Query("instance:ragmesh_reranker_model_behind_feedback:seconds{$here}", "{{instance}}")],
                    lines=[(14 * 86_400, "red")],
                ),
            ],
        ),
    ],
)

DASHBOARDS: Final = (OVERVIEW, MODELS, FAIRNESS, DATA)
