"""What asks, audits and ensembles count in admission: answers, and what takes as long or as much memory."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import Message

from evenmesh_orchestrator.domain import Ask, Audit, EnsembleAsk, Pool

_PLACES_PER_ANSWER: Final = 10_000
_BYTES_PER_ANSWER: Final = 32_768
_FREE_BYTES: Final = 2**20


def of_ask(ask: Ask, request: Message) -> int:
    """Return the work of an ask: answers, sampled places, target and request. Answers, [1, inf)."""
    rankings = 1 if ask.sampling is None else ask.sampling.num_rankings
    return max(1, ask.num_answers) + _drawn(rankings, ask) + _targeted(ask) + _held(request)


def of_ensemble(ensemble: EnsembleAsk, request: Message) -> int:
    """Return the work of an ensemble: that of its members, each observed alone too. Answers, [1, inf)."""
    members = sum(1 + _drawn(1, member) for member in ensemble.members)
    return members + (len(ensemble.members) + 1) * _held(request)


def of_audit(audit: Audit, request: Message) -> int:
    """Return the work of an audit: answers, places of its rankings, and its request. Answers, [1, inf)."""
    answers = audit.num_rankings if audit.ask.num_answers else 1
    return answers + _drawn(audit.num_rankings, audit.ask) + _held(request)


def of_pool(pool: Pool) -> int:
    """Return the work of passages that were found: a mebibyte is free, more counts as in a request."""
    found = sum(passage.ByteSize() for passage in pool.passages)
    return max(0, found - _FREE_BYTES) // _BYTES_PER_ANSWER


def _drawn(rankings: int, ask: Ask) -> int:
    return rankings * ask.depth // _PLACES_PER_ANSWER


def _targeted(ask: Ask) -> int:
    """Return the work of finding the policy of a target: in the worst case that of passages times places.

    What is expected of a policy that makes up for what providers are owed takes as long at most.
    """
    sampling = ask.sampling
    wanted = sampling is not None and (sampling.target is not None or sampling.balance is not None)
    return ask.rerank_depth * ask.k // _PLACES_PER_ANSWER if wanted else 0


def _held(request: Message) -> int:
    return request.ByteSize() // _BYTES_PER_ANSWER
