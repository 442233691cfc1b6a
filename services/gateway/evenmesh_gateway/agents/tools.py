"""The tools and resources of the mesh for agents."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from importlib.metadata import version
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.types import ToolAnnotations
from pydantic import Field, ValidationError

from evenmesh.common.v1 import common_pb2
from evenmesh.common.v1.common_pb2 import Sampling
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb
from evenmesh.reranker.v1 import feedback_service_pb2 as feedback_pb
from evenmesh.retriever.v1 import collection_service_pb2 as collection_pb
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.types.feedback import Feedback
from evenmesh.types.request import Agent
from evenmesh.wire.errors import MeshError, from_item_error, restored
from evenmesh_gateway.calls import Call
from evenmesh_gateway.forwarding import Forwarder
from evenmesh_gateway.json_messages import from_value
from evenmesh_gateway.methods import PublicMethod, public_methods
from evenmesh_gateway.openai.outcome import Outcome

Enter: TypeAlias = Callable[[Mapping[str, str], PublicMethod], Awaitable[Call]]
"""Returns the call of who sent these headers; without headers that of this process."""

INSTRUCTIONS: Final = (
    "Ask questions of collections of passages, retrieve passages, and say which ones helped. Sampled "
    "rankings give every useful provider a chance to be shown; `shown` and `providers` say who was."
)
M = TypeVar("M", bound=Message)
_ASK: Final = "/evenmesh.orchestrator.v1.OrchestratorService/Ask"
_REPORT: Final = "/evenmesh.evaluator.v1.EvaluatorService/GetReport"
_RUNS: Final = "/evenmesh.evaluator.v1.EvaluatorService/ListRuns"
_FEEDBACK: Final = "/evenmesh.reranker.v1.FeedbackService/RecordFeedback"
_LIST: Final = "/evenmesh.retriever.v1.CollectionService/ListCollections"
_GET: Final = "/evenmesh.retriever.v1.CollectionService/GetCollection"

Question = Annotated[str, Field(min_length=1, max_length=8192, description="The question.")]
Collection = Annotated[
    str | None, Field(max_length=64, description="Collection by name; the mesh's default without it.")
]
Alpha = Annotated[
    float | None,
    Field(ge=0, le=100, description="Fairness dial: 0 draws uniformly, larger values follow the scores."),
]
Samples = Annotated[int | None, Field(ge=1, le=1000, description="Rankings to draw; 1 without it.")]
Seed = Annotated[int | None, Field(ge=0, le=2**63 - 1, description="Seed of the rankings; drawn without it.")]
Size = Annotated[int | None, Field(ge=1, le=100, description="Passages to show; 5 without it.")]
Task = Annotated[str | None, Field(max_length=128, description="Your task, the same in every tool.")]
Model = Annotated[str | None, Field(max_length=128, description="Your model, the same in every tool.")]
Filter = Annotated[
    dict[str, Any] | None,
    Field(
        description="Passages that may be found, by their attributes; all conditions hold. Example: "
        '{"conditions": [{"attribute": "provider", "any_of": {"values": ["a.org", "b.org"]}}, '
        '{"attribute": "date", "text_range": {"from": "2020-01-01"}}, '
        '{"attribute": "year", "number_range": {"from": 1990, "to": 2000}}]}'
    ),
]
_REPORTED: Final = (
    "collection",
    "shown",
    "providers",
    "report",
    "degradations",
    "ask_id",
    "run_id",
    "seed",
    "ignored",
)
"""What the tools return of :meth:`Outcome.extension`."""
_READS: Final = ToolAnnotations(read_only_hint=True)
"""Hosts need not ask their user before such a tool is called."""
_ADDS: Final = ToolAnnotations(destructive_hint=False, idempotent_hint=True)
_RANKED: Final = ("retriever", "index_version", "reranker", "reranker_version")


class _Server(MCPServer):
    """Says in its own words which argument of a tool is wrong, and refuses what is no argument of it."""

    def add_tool(self, fn: Callable[..., Any], *args: Any, **options: Any) -> None:
        """Add a tool; agents read its docstring, without the indentation of the code."""
        super().add_tool(fn, *args, **{**options, "description": inspect.getdoc(fn)})

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> Any:
        """Call a tool by name.

        Raises:
            ToolError: its arguments are wrong, or it failed.
        """
        properties = {one.name: one.input_schema["properties"] for one in await self.list_tools()}
        if unknown := sorted(arguments.keys() - properties.get(name, arguments).keys()):
            known = ", ".join(properties[name]) or "none"
            raise ToolError(f"{unknown[0][:128]}: is no argument of {name}; there are: {known}")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            problem = error.__cause__.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(one) for one in problem["loc"]) or "arguments"
            raise ToolError(f"{field}: {problem['msg']}") from error


def agent_server(forwarder: Forwarder, enter: Enter) -> MCPServer:
    """Return the server of the tools and resources.

    Args:
        forwarder: makes the calls.
        enter: who calls.
    """
    server = _Server(
        "evenmesh", version=version("evenmesh-gateway"), instructions=INSTRUCTIONS, log_level="WARNING"
    )
    methods = public_methods()

    async def reply(path: str, request: Message, context: Context[Any, Any]) -> bytes:
        method = methods[path]
        call = await enter(context.headers or {}, method)
        return await forwarder.reply(method, request.SerializeToString(), call)

    async def answer(path: str, request: Message, kind: type[M], context: Context[Any, Any]) -> M:
        try:
            return kind.FromString(await reply(path, request, context))
        except MeshError as error:
            raise _tool_error(error) from error

    async def outcome(
        request: orchestrator_pb.AskRequest,
        collection: str | None,
        wanted: dict[str, Any] | None,
        agent: Agent,
        seed: int | None,
        context: Context[Any, Any],
    ) -> Outcome:
        """Return what an ask leads to, of a collection, with a filter, on behalf of an agent."""
        if collection:
            request.collection = collection
        if wanted is not None:
            request.filter.CopyFrom(from_value(retriever_pb.Filter, wanted, "filter"))
        if agent.task_id or agent.model_id:
            request.agent.CopyFrom(common_pb2.Agent(task_id=agent.task_id, model_id=agent.model_id))
        drawn = request.HasField("sampling")
        found = Outcome(request, [] if seed is None or drawn else ["seed"])
        method = methods[_ASK]
        call = await enter(context.headers or {}, method)
        sent = request.SerializeToString()
        async with aclosing(forwarder.replies(method, sent, call, forget=found.forget)) as replies:
            async for data in replies:
                found.add(orchestrator_pb.AskResponse.FromString(data))
        found.check()
        return found

    @server.tool(annotations=_READS)
    async def ask(
        question: Question,
        context: Context[Any, Any],
        collection: Collection = None,
        k: Size = None,
        filter: Filter = None,  # noqa: A002 - the name of the argument
        alpha: Alpha = None,
        samples: Samples = None,
        seed: Seed = None,
        task: Task = None,
        model: Model = None,
    ) -> dict[str, Any]:
        """Answer a question from passages; returns the answer, its citations and who was shown.

        With your task and model, passages are ranked as your feedback taught.
        """
        request = orchestrator_pb.AskRequest(question=question, k=k, sampling=_sampling(alpha, samples, seed))
        try:
            found = await outcome(request, collection, filter, _agent(task, model), seed, context)
        except MeshError as error:
            raise _tool_error(error) from error
        extension = found.extension()
        return {
            "answer": found.text,
            "citations": found.annotations,
            **{name: extension[name] for name in _REPORTED},
        }

    @server.tool(annotations=_READS)
    async def retrieve(
        query: Question,
        context: Context[Any, Any],
        collection: Collection = None,
        k: Size = None,
        filter: Filter = None,  # noqa: A002 - the name of the argument
        alpha: Alpha = None,
        samples: Samples = None,
        seed: Seed = None,
        task: Task = None,
        model: Model = None,
    ) -> dict[str, Any]:
        """Return the passages for a query, best first, or several sampled rankings; for answers of your own.

        With your task and model, passages are ranked as your feedback taught. Give feedback with the query,
        the collection and the ids of this result.
        """
        request = orchestrator_pb.AskRequest(
            question=query, k=k, sampling=_sampling(alpha, samples, seed), num_answers=0
        )
        try:
            found = await outcome(request, collection, filter, _agent(task, model), seed, context)
        except MeshError as error:
            field = "query" if error.field == "question" else error.field
            said = restored(error.code, error.reason, error.message, field, error.retry_after_s)
            raise _tool_error(said) from error
        passages, scores, rankings = found.passages, found.scores, found.rankings
        extension = found.extension()
        used = sorted({place for ranking in rankings for place in ranking})
        return {
            "query": query,
            "rankings": [[passages[place].id for place in ranking] for ranking in rankings],
            "passages": [{**_dict(passages[place]), "score": scores[place]} for place in used],
            **{name: extension[name] for name in (*_RANKED, *_REPORTED)},
        }

    @server.tool(annotations=_READS)
    async def report(
        context: Context[Any, Any],
        run_id: Annotated[
            str | None, Field(max_length=128, description="Run by id; the newest one without it.")
        ] = None,
    ) -> dict[str, Any]:
        """Report who was shown in a run of asks: exposure per provider, disparity, utility, times.

        Disparity (`ee_d_norm`) is of the rankings of each ask: of one ranking it is 1, however asks differ.
        """
        if not run_id:
            newest = evaluator_pb.ListRunsRequest(page_size=1)
            listed = await answer(_RUNS, newest, evaluator_pb.ListRunsResponse, context)
            if not listed.runs:
                raise ToolError("there is no run yet: ask something first")
            run_id = listed.runs[0].run_id
        request = evaluator_pb.GetReportRequest(run_id=run_id)
        return _dict((await answer(_REPORT, request, evaluator_pb.GetReportResponse, context)).report)

    @server.tool(annotations=_ADDS)
    async def give_feedback(
        query: Question,
        passage_id: Annotated[str, Field(min_length=1, max_length=256, description="The passage.")],
        usefulness: Annotated[float, Field(ge=0, le=1, description="How much it helped, 0 to 1.")],
        context: Context[Any, Any],
        collection: Annotated[
            str | None,
            Field(max_length=64, description="Where the passage is from; without it nothing is learned."),
        ] = None,
        task: Task = None,
        model: Model = None,
    ) -> dict[str, Any]:
        """Say how useful a passage was to you, so that later rankings for you are better.

        Name your task or your model, and the collection.
        """
        agent, where = _agent(task, model), collection or ""
        sent = Feedback(query, passage_id, usefulness, agent, collection=where)
        item = feedback_pb.Feedback(
            id=sent.key,
            query=query,
            passage_id=passage_id,
            agent=common_pb2.Agent(task_id=agent.task_id, model_id=agent.model_id),
            usefulness=usefulness,
            collection=where,
        )
        request = feedback_pb.RecordFeedbackRequest(feedback=[item])
        (result,) = (await answer(_FEEDBACK, request, feedback_pb.RecordFeedbackResponse, context)).results
        if result.HasField("error"):
            raise _tool_error(from_item_error(result.error))
        return {"id": result.id, "duplicate": result.duplicate, "flagged": result.flagged}

    @server.tool(annotations=_READS)
    async def collections(context: Context[Any, Any]) -> dict[str, Any]:
        """List the collections that you may ask; each is a resource evenmesh://collections/NAME too."""
        request = collection_pb.ListCollectionsRequest()
        return _dict(await answer(_LIST, request, collection_pb.ListCollectionsResponse, context))

    @server.resource("evenmesh://collections/{name}", mime_type="application/json")
    async def collection(name: str, context: Context[Any, Any]) -> dict[str, Any]:
        """One collection: its size, its version and how it is indexed."""
        try:
            data = await reply(_GET, collection_pb.GetCollectionRequest(name=name), context)
        except MeshError as error:
            raise ResourceError(str(error)) from error
        return _dict(collection_pb.GetCollectionResponse.FromString(data).collection)

    return server


def _sampling(alpha: float | None, samples: int | None, seed: int | None) -> Sampling | None:
    """Return how to draw rankings; None for one deterministic ranking."""
    if alpha is None and samples is None:
        return None
    drawn = Sampling(seed=seed)
    if alpha is not None:
        drawn.alpha = alpha
    if samples is not None:
        drawn.num_rankings = samples
    return drawn


def _agent(task: str | None, model: str | None) -> Agent:
    return Agent(task or "", model or "")


def _tool_error(error: MeshError) -> ToolError:
    """Return an error that the agent reads: what is wrong, and when to try again."""
    again = "" if error.retry_after_s is None else f"; try again in {error.retry_after_s:g} s"
    return ToolError(f"{error.reason}: {error}{again}")


def _dict(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return found
