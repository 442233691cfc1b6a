"""What is on a letter to the evaluator beside what it says: the trace it belongs to, and its date."""

from __future__ import annotations

from ragmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb


def with_trace(observation: bytes, traceparent: str) -> bytes:
    """An observation, as it is sent, with the trace of its ask (W3C Trace Context, ``traceparent``)."""
    # Messages that are joined are read as one that has the fields of both.
    return observation + evaluator_pb.Observation(trace_context=traceparent).SerializeToString()


def observed_at_s(observation: bytes) -> float:
    """When an observation, as it is sent, was made. Seconds since 1970."""
    at = evaluator_pb.Observation.FromString(observation).observed_at
    return float(at.seconds) + at.nanos / 1e9
