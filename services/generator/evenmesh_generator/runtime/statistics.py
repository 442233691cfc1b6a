"""What an engine has done so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace


@dataclass(slots=True)
class EngineStatistics:
    """Counts since the engine started; all in [0, inf). Loops hand out copies of their own.

    Attributes:
        waiting: requests not taken up yet.
        active_requests: requests being computed.
        active_rows: rows (beams counted) of the running batch.
        finished: requests answered.
        cancelled: cancelled requests.
        failed: requests that ended with an error.
        steps: decoder steps computed.
        step_rows: rows of all steps together; divided by ``steps``, the mean batch size.
        prefills: passes over prompts.
        written_tokens: tokens written.
        computed_tokens: prompt tokens computed.
        reused_tokens: prompt tokens whose encodings were cached.
        cache_bytes: size of the encodings kept. Bytes.
        cache_hits: encodings found.
        cache_misses: encodings not found.
        most_steps_after_cancel: most decoder steps a request still took part in after it was cancelled.
        judged: passages judged.
        judge_batches: passes in which they were judged.
    """

    waiting: int = 0
    active_requests: int = 0
    active_rows: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    steps: int = 0
    step_rows: int = 0
    prefills: int = 0
    written_tokens: int = 0
    computed_tokens: int = 0
    reused_tokens: int = 0
    cache_bytes: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    most_steps_after_cancel: int = 0
    judged: int = 0
    judge_batches: int = 0


def combined(parts: Iterable[EngineStatistics]) -> EngineStatistics:
    """Return what several engines have done together."""
    found = EngineStatistics()
    for part in parts:
        for one in fields(EngineStatistics):
            mine, other = getattr(found, one.name), getattr(part, one.name)
            setattr(
                found, one.name, max(mine, other) if one.name == "most_steps_after_cancel" else mine + other
            )
    return found


def counts_alone(statistics: EngineStatistics) -> EngineStatistics:
    """Return what an engine that is gone had done: its counts, and nothing waiting, running or kept."""
    return replace(statistics, waiting=0, active_requests=0, active_rows=0, cache_bytes=0)
