"""What the events of an ask say, in the words of OpenAI's API and beyond them."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import grpc
from google.protobuf.message import Message

from evenmesh.common.v1 import common_pb2
from evenmesh.generator.v1.generator_service_pb2 import Answer
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.errors import MeshError, Unavailable, from_item_error
from evenmesh_gateway.http.json_values import JsonValues

_REPORTED_ELSEWHERE: Final = ("exposure", "providers")
_VALUES: Final = JsonValues(snake_case=True, zeros=True)
_NOWHERE: Final = "mesh"
"""Stands in addresses for the sources of an expression or an ensemble, whose passages are from several."""


class Outcome:
    """Gathers the events of an ask.

    Args:
        request: the ask.
        ignored: parameters of the request without an effect.

    Attributes:
        passages: the pool; of an ensemble those of its members, one after the other.
    """

    def __init__(self, request: pb.AskRequest, ignored: list[str]) -> None:
        self._request = request
        self._ignored = ignored
        self.forget()

    def forget(self) -> None:
        """Forget all events: the ask begins again."""
        self.passages: list[common_pb2.Passage] = []
        self._retrieved: list[pb.Retrieved] = []
        self._ranked: list[pb.Ranked] = []
        self._answers: list[pb.AnswerEvent] = []
        self._failed: list[pb.AnswerFailed] = []
        self._degraded: list[common_pb2.Degradation] = []
        self._vote: pb.VoteEvent | None = None
        self._answered: list[dict[str, Any]] = []
        self._reported: dict[str, Any] = {"shown": [], "providers": [], "report": None}
        self._done = pb.Done()

    def add(self, event: pb.AskResponse) -> str:
        """Take an event, and return the text to show at once.

        An ensemble has none before its vote: its winner is not known.
        """
        match event.WhichOneof("event"):
            case "retrieved":
                self._retrieved.append(event.retrieved)
                self.passages.extend(event.retrieved.passages)
            case "ranked":
                self._ranked.append(event.ranked)
            case "delta" if not self._request.HasField("ensemble"):
                return event.delta.text
            case "answer":
                self._answers.append(event.answer)
                self._answered.append(_dict(event.answer))  # now, and not when the client waits for the end
            case "failed":
                self._failed.append(event.failed)
            case "degraded":
                self._degraded.append(event.degraded)
            case "vote":
                self._vote = event.vote
            case "report":
                self._reported = self._described(event.report)
            case "done":
                self._done = event.done
        return ""

    def check(self, said: str = "") -> None:
        """Check that there is an answer, where one was asked for, and that it is what was shown of it.

        Args:
            said: what :meth:`add` returned for the client to see; it is of the first ranking.

        Raises:
            MeshError: why there is none, or why the one that was shown broke off.
        """
        if said and (broken := next((one for one in self._failed if 0 in one.samples), None)):
            raise from_item_error(broken.error)
        wants = not self._request.HasField("num_answers") or self._request.num_answers > 0
        if self._answers or not wants:
            return
        if self._failed:
            raise from_item_error(self._failed[0].error)
        why = next((one for one in self._degraded if one.stage == common_pb2.STAGE_GENERATE), None)
        if why is not None:
            raise Unavailable(why.reason, why.message)
        raise MeshError(grpc.StatusCode.INTERNAL, "NO_ANSWER", "the ask ended without an answer")

    @property
    def scores(self) -> list[float]:
        """Return the retriever's score of each passage."""
        return [score for one in self._retrieved for score in one.scores]

    @property
    def rankings(self) -> list[list[int]]:
        """Return the contexts of an ask that is no ensemble, as places in the passages."""
        found: list[list[int]] = []
        for one in self._ranked:
            depth, indices = one.contexts.depth, list(one.contexts.indices)
            found += [indices[at : at + depth] for at in range(0, len(indices), depth)] if depth else []
        return found

    @property
    def text(self) -> str:
        """Return the answer: the winner of a vote, or else the first."""
        if self._vote is not None:
            return self._vote.answer
        return self._answers[0].answer.text if self._answers else ""

    @property
    def finish_reason(self) -> str:
        """Return why the model stopped: ``stop`` or ``length``."""
        chosen = self._chosen
        cut = chosen is not None and chosen.answer.finish_reason == Answer.FINISH_REASON_LENGTH
        return "length" if cut else "stop"

    @property
    def tokens(self) -> tuple[int, int, int]:
        """Return the tokens read, those of them that were cached, and the tokens written, of all answers."""
        answers = [one.answer for one in self._answers]
        read = sum(one.prompt_tokens for one in answers)
        cached = sum(one.cost.reused_tokens for one in answers)
        return read, cached, sum(one.completion_tokens for one in answers)

    @property
    def annotations(self) -> list[dict[str, Any]]:
        """Return the passages that contain the answer, as citations of the whole of it.

        The address is the passage's attribute ``url``, or ``evenmesh://COLLECTION/ID``; COLLECTION is
        ``mesh`` for passages of several sources.
        """
        chosen, text = self._chosen, self.text
        if chosen is None:
            return []
        by_id = {one.id: one for one in self.passages}
        found = []
        for cited in chosen.citations:
            passage = by_id.get(cited.passage_id, common_pb2.Passage(id=cited.passage_id))
            found.append(
                {
                    "start_index": 0,
                    "end_index": len(text),
                    "title": passage.title or passage.id,
                    "url": self._address(passage),
                }
            )
        return found

    @property
    def collection(self) -> str:
        """Return the collection that was searched; empty if passages are from elsewhere."""
        # An orchestrator of before does not say so.
        return next((one.collection for one in self._retrieved), "") or self._request.collection

    def extension(self) -> dict[str, Any]:
        """Return what OpenAI's API has no place for.

        ``shown`` are the passages that models were given, with their expected exposure; ``providers`` is the
        exposure per provider, ``report`` the disparity, relevance and utility of the ask.
        """
        retrieved, ranked = self._retrieved, self._ranked
        return {
            "ask_id": self._done.ask_id,
            "run_id": self._done.run_id,
            "collection": self.collection,
            "retriever": ", ".join(dict.fromkeys(one.retriever for one in retrieved)),
            "index_version": ", ".join(dict.fromkeys(one.index_version for one in retrieved)),
            "reranker": ", ".join(dict.fromkeys(one.reranker for one in ranked)),
            "reranker_version": ", ".join(dict.fromkeys(one.model_version for one in ranked)),
            **self._reported,
            "answers": self._answered,
            "failed": [_dict(one) for one in self._failed],
            "vote": _dict(self._vote) if self._vote is not None else None,
            "degradations": [_dict(one) for one in self._degraded],
            "stage_ms": {
                common_pb2.Stage.Name(one.stage).removeprefix("STAGE_").lower(): one.duration_ms
                for one in self._done.stage_times
            },
            "total_ms": self._done.total_ms,
            "seed": self._done.seed if self._done.HasField("seed") else None,
            "ignored": self._ignored,
        }

    def _described(self, report: pb.ExposureReport) -> dict[str, Any]:
        """Return what the extension has of a report, and of the passages, which came before it."""
        shown = [
            {
                "passage_id": passage.id,
                "title": passage.title,
                "provider": passage.attributes.get("provider", ""),
                "exposure": value,
            }
            for passage, value in zip(self.passages, report.exposure, strict=False)
            if value > 0
        ]
        whole = {name: value for name, value in _dict(report).items() if name not in _REPORTED_ELSEWHERE}
        return {"shown": shown, "providers": [_dict(one) for one in report.providers], "report": whole}

    @property
    def _chosen(self) -> pb.AnswerEvent | None:
        """Return the event of the answer."""
        member = "" if self._vote is None else self._vote.member
        return next((one for one in self._answers if self._vote is None or one.member == member), None)

    def _address(self, passage: common_pb2.Passage) -> str:
        url = passage.attributes.get("url", "")
        if url.startswith(("http://", "https://")):
            return url
        place: str = self.collection or self._request.WhichOneof("source") or _NOWHERE
        return f"evenmesh://{place}/{quote(passage.id, safe='/')}"


def _dict(message: Message) -> dict[str, Any]:
    """Return a message as OpenAI's API writes: names in snake case, and zeros too."""
    found: dict[str, Any] = _VALUES.of(message)
    return found
