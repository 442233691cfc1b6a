"""Every method of the contract, for every role, tenant and state of a credential: exactly the allowed cells.

The methods come from the descriptors of the protos: a new one without a declared role fails here. That nobody
reaches another's things is tried on the real evaluator, reranker and retriever in one process.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf import message_factory
from google.protobuf.message import Message

from evenmesh.addresses import VARIABLES
from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.reranker.v1 import feedback_service_pb2 as feedback_pb
from evenmesh.retriever.v1 import collection_service_pb2 as collection_pb
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.wire.channel import connect
from evenmesh.wire.credentials import Credential
from evenmesh.wire.errors import FailedPrecondition, from_rpc_error
from evenmesh.wire.security import ChannelSecurity
from evenmesh_evaluator.__main__ import EvaluatorService
from evenmesh_evaluator.settings import EvaluatorSettings
from evenmesh_kit.rpc.server import MeshServer, Registration
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.access import roles_of
from evenmesh_kit.security.authentication import TENANT_KEY
from evenmesh_kit.security.caller import Role
from evenmesh_kit.settings import ServiceSettings
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_reranker.__main__ import RerankerService
from evenmesh_reranker.models.manifest import Lineage
from evenmesh_reranker.models.store import ModelStore
from evenmesh_reranker.settings import RerankerSettings
from evenmesh_retriever.__main__ import RetrieverService
from evenmesh_retriever.settings import RetrieverSettings
from tests.support.lifecycle import Idle
from tests.support.methods import METHODS, calls_of

ROOT: Final = Path(__file__).parents[2]

ROLES: Final = {name: roles_of(name) for name in METHODS}
TENANTS: Final = ("acme", "other")
SIGNER, FORGER = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
REACHED: Final = "REACHED"


def test_the_methods_are_those_of_the_protos() -> None:
    root = Path(__file__).parents[2] / "protos"
    declared = sum(
        line.strip().startswith("rpc ")
        for path in root.rglob("*.proto")
        for line in path.read_text().splitlines()
    )
    assert len(METHODS) == declared


def key(tenant: str, role: str, *, ended: bool = False) -> str:
    """An API key that the servers here know."""
    return f"emk_{tenant}_{role}{'_ended' if ended else ''}"


def token(tenant: str, role: str, *, signer: ec.EllipticCurvePrivateKey = SIGNER, **claims: Any) -> str:
    """A token that is in order but for what a state changes."""
    content = {
        "sub": f"{role} of {tenant}",
        "aud": "evenmesh",
        "exp": int(time.time()) + 600,
        "evenmesh_tenant": tenant,
        "evenmesh_roles": [role],
    }
    claimed = {name: value for name, value in (content | claims).items() if value is not None}
    return jwt.encode(claimed, signer, algorithm="ES256", headers={"kid": "one"})


def unsigned(tenant: str, role: str) -> str:
    """A token that says of itself that it needs no signature."""
    return jwt.encode({"sub": "a", "aud": "evenmesh", "exp": 2**31, "evenmesh_roles": [role]}, None, "none")


STATES: Final[Mapping[str, tuple[Any, str]]] = {
    "none": (lambda *_: "", "NO_CREDENTIAL"),
    "unknown key": (lambda tenant, role: key(tenant, role) + "x", "UNKNOWN_KEY"),
    "expired key": (lambda tenant, role: key(tenant, role, ended=True), "EXPIRED"),
    "expired token": (lambda tenant, role: token(tenant, role, exp=int(time.time()) - 3600), "EXPIRED"),
    "wrong signature": (lambda tenant, role: token(tenant, role, signer=FORGER), "INVALID_TOKEN"),
    "no signature": (unsigned, "INVALID_TOKEN"),
    "for somebody else": (lambda tenant, role: token(tenant, role, aud="bank"), "INVALID_TOKEN"),
    "without a tenant": (lambda tenant, role: token(tenant, role, evenmesh_tenant=None), "INVALID_TOKEN"),
    "two keys": (lambda tenant, role: (key(tenant, role), key(tenant, role)), "TWO_CREDENTIALS"),
    "key and token": (lambda tenant, role: (key(tenant, role), token(tenant, role)), "TWO_CREDENTIALS"),
    "right key": (key, ""),
    "right token": (token, ""),
}
"""What a caller shows, by state, and why it is turned away; empty where it is not."""


@dataclass(frozen=True)
class KeyFiles:
    """Files of keys that servers take."""

    keys: Path
    jwks: Path

    @property
    def settings(self) -> dict[str, Any]:
        """As settings of a service."""
        return {
            "port": 0,
            "grace_s": 0,
            "api_keys": self.keys,
            "jwks": str(self.jwks),
            "jwt_audience": "evenmesh",
        }


@pytest.fixture(scope="module")
def key_files(tmp_path_factory: pytest.TempPathFactory) -> KeyFiles:
    """Keys of every role of every tenant, some of which have ended, and the public key of tokens."""
    folder = tmp_path_factory.mktemp("keys")
    entries = [
        f'[[key]]\nname = "{role} of {tenant}"\ntenant = "{tenant}"\nroles = ["{role}"]\n'
        f'sha256 = "{hashlib.sha256(key(tenant, role, ended=ended).encode()).hexdigest()}"\n'
        + ('provider = "Acme Press"\n' if role is Role.PROVIDER else "")
        + ("expires = 2026-01-01T00:00:00Z\n" if ended else "")
        for tenant in TENANTS
        for role in Role
        for ended in (False, True)
    ]
    (folder / "keys.toml").write_text("".join(entries))
    public = jwt.algorithms.ECAlgorithm.to_jwk(SIGNER.public_key(), as_dict=True)
    (folder / "jwks.json").write_text(json.dumps({"keys": [public | {"kid": "one", "use": "sig"}]}))
    return KeyFiles(folder / "keys.toml", folder / "jwks.json")


async def _reached(request: Any, context: Any) -> None:
    """What stands in for every method: says which tenant it was called for."""
    raise FailedPrecondition(REACHED, callers.current().tenant)


def _stand_in(name: str) -> Registration:
    methods = [method for method in METHODS.values() if method.containing_service.full_name == name]
    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    handlers = {
        method.name: kinds[method.client_streaming, method.server_streaming](_reached) for method in methods
    }

    def add(servicer: object, server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))

    return Registration(add, None, name)


async def _ended(channel: grpc.aio.Channel, name: str, metadata: Any) -> tuple[str, str]:
    """The reason and the words with which a call ends."""
    method = METHODS[name]
    request = iter([b""]) if method.client_streaming else b""
    call = calls_of(channel, method)(name)(request, timeout=60, metadata=metadata)
    try:
        if method.server_streaming:
            await call.read()
        await call
    except grpc.aio.AioRpcError as error:
        reported = from_rpc_error(error)
        return reported.reason, reported.message
    except grpc.aio.UsageError:  # a stream that was read to its end is not awaited
        pass
    return "OK", ""


async def test_exactly_the_allowed_cells_are_let_in(key_files: KeyFiles) -> None:
    services = dict.fromkeys(method.containing_service.full_name for method in METHODS.values())
    settings = ServiceSettings(**key_files.settings)
    telemetry = Telemetry.disabled()
    wrong: list[str] = []
    counted: Counter[str] = Counter()
    async with (
        MeshServer("all", settings, Idle(*map(_stand_in, services)), telemetry=telemetry) as server,
        connect(server.address, service="any", security=ChannelSecurity()) as channel,
    ):

        async def tried(name: str, role: Role, tenant: str, state: str) -> None:
            make, refused = STATES[state]
            # Everyone names the other tenant, which a service alone may.
            named = next(one for one in TENANTS if one != tenant)
            shown = make(tenant, role.value)
            metadata = [(TENANT_KEY, named)]
            credentials = (shown,) if isinstance(shown, str) else shown
            metadata += [("authorization", f"Bearer {one}") for one in credentials if one]
            by_key = state == "right key"
            is_service = by_key and role is Role.SERVICE
            roles = {role} if by_key or role is not Role.SERVICE else set()  # no token makes a service
            if refused:
                expected = refused, None
            elif roles & (ROLES[name] | {Role.ADMIN, Role.SERVICE}):
                expected = REACHED, named if is_service else tenant
            else:
                expected = "PERMISSION_DENIED", None
            reason, words = await _ended(channel, name, metadata)
            counted[reason] += 1
            if reason != expected[0] or (expected[1] is not None and words != expected[1]):
                wrong.append(f"{name} {role} of {tenant}, {state}: {reason} {words}, not {expected}")

        for state in STATES:
            for name in METHODS:
                await asyncio.gather(
                    *(tried(name, role, tenant, state) for role in Role for tenant in TENANTS)
                )
    assert not wrong
    cells = len(METHODS) * len(Role) * len(TENANTS)
    assert counted.total() == cells * len(STATES)
    # By key: the roles of each method, the administrator and a service; by token all but the service.
    allowed = sum(len(roles) + 2 for roles in ROLES.values()) + sum(
        len(roles) + 1 for roles in ROLES.values()
    )
    assert counted[REACHED] == allowed * len(TENANTS)
    assert counted["PERMISSION_DENIED"] == 2 * cells - counted[REACHED]


async def test_where_nobody_is_asked_a_service_may_name_the_tenant() -> None:
    name = "/evenmesh.evaluator.v1.EvaluatorService/ListRuns"
    settings = ServiceSettings(port=0, grace_s=0)
    registration = _stand_in("evenmesh.evaluator.v1.EvaluatorService")
    telemetry = Telemetry.disabled()
    async with (
        MeshServer("open", settings, Idle(registration), telemetry=telemetry) as server,
        connect(server.address, service="any", security=ChannelSecurity()) as channel,
    ):
        assert await _ended(channel, name, None) == (REACHED, "default")
        assert await _ended(channel, name, [(TENANT_KEY, "acme")]) == (REACHED, "acme")
        assert (await _ended(channel, name, [(TENANT_KEY, "../acme")]))[0] == "INVALID_FIELD"

        async def served() -> tuple[str, str]:
            callers.enter(callers.Caller("ada", "acme", frozenset({Role.ASK})))
            return await _ended(channel, name, None)

        # A service that works for a tenant says so, without a credential of its own too.
        assert await asyncio.create_task(served()) == (REACHED, "acme")


OF_NOBODY: Final = frozenset(
    {
        "evaluator.v1.EvaluatorService/EvaluateExposure",
        "evaluator.v1.EvaluatorService/EvaluateUtility",
        "evaluator.v1.EvaluatorService/EvaluateTradeoff",
        "evaluator.v1.EvaluatorService/EvaluateRankings",
        "evaluator.v1.EvaluatorService/EvaluateRankedList",
        "evaluator.v1.EvaluatorService/EvaluateConversation",
        "evaluator.v1.EvaluatorService/Vote",
        "evaluator.v1.EvaluatorService/VoteAnytime",
        "evaluator.v1.EvaluatorService/SearchVoteWeights",
        "evaluator.v1.EvaluatorService/CompareRetrievers",
        "evaluator.v1.EvaluatorService/CompareSystems",
        "generator.v1.GeneratorService/Generate",
        "generator.v1.GeneratorService/GenerateBatch",
        "generator.v1.GeneratorService/ScoreRelevance",
        "generator.v1.GeneratorService/ListModels",
        "orchestrator.v1.OrchestratorService/ListEnsembles",
        "retriever.v1.RetrieverService/Embed",
        "retriever.v1.RetrieverService/ListRetrievers",
        "retriever.v1.RetrieverService/ListSources",
    }
)
"""Methods that neither name nor tell what is kept for a tenant: all they work with comes with the call, or was
set up for everyone."""
ELSEWHERE: Final = frozenset(
    {
        # Whose collections and runs, of asks and audits: test_mesh_security.py. Whose conversations: the
        # corpus's own tests. Which version ranks: test_registry.py.
        "orchestrator.v1.OrchestratorService/Ask",
        "orchestrator.v1.OrchestratorService/Audit",
        "orchestrator.v1.OrchestratorService/Converse",
        "reranker.v1.RerankerService/Rerank",
        # Whose statements: test_statements.py.
        "evaluator.v1.EvaluatorService/GetExposureStatement",
    }
)

ANN: Final = common_pb2.Agent(task_id="qa", model_id="acmes-agent")
NOBODYS: Final = "nobodys"
"""A name of nothing."""


def _feedback(usefulness: float) -> feedback_pb.RecordFeedbackRequest:
    item = feedback_pb.Feedback(
        id="f1",
        query="Which river?",
        passage_id="p1",
        agent=ANN,
        usefulness=usefulness,
        collection="acmes-zoo",
    )
    return feedback_pb.RecordFeedbackRequest(feedback=[item])


def _observed(answer: str) -> evaluator_pb.ObserveRequest:
    observation = evaluator_pb.Observation(
        id="acmes-run",  # as its run: one name for all of the evaluator
        run_id="acmes-run",
        query_id="q1",
        collection="acmes-zoo",
        answers=[{"text": answer, "samples": [0]}],
    )
    observation.candidates.add(passage_id="p1", provider="acmes-press", merit_share=1.0)
    observation.shown.depth = 1
    observation.shown.indices.append(0)
    observation.labels.references.append("Rhine")
    return evaluator_pb.ObserveRequest(observation=observation)


def _ingested(collection: str) -> collection_pb.IngestRequest:
    passage = common_pb2.Passage(id="p1", text="Otters hold hands while they sleep.")
    return collection_pb.IngestRequest(collection=collection, passages=[passage], last=True)


def _named(name: str, version: str) -> dict[str, Message]:
    """For each method that names a tenant's things, what asks it about those of a name and version."""
    agent = common_pb2.Agent(task_id="qa", model_id=name)
    found: dict[str, Message] = {
        "evaluator.v1.EvaluatorService/GetReport": evaluator_pb.GetReportRequest(run_id=name),
        "evaluator.v1.EvaluatorService/ListMeasurements": evaluator_pb.ListMeasurementsRequest(run_id=name),
        "evaluator.v1.EvaluatorService/DeleteRun": evaluator_pb.DeleteRunRequest(run_id=name),
        "evaluator.v1.EvaluatorService/GetObservation": evaluator_pb.GetObservationRequest(
            observation_id=name
        ),
        "reranker.v1.FeedbackService/DeleteAgent": feedback_pb.DeleteAgentRequest(agent=agent),
        "reranker.v1.FeedbackService/PromoteModel": feedback_pb.PromoteModelRequest(version=version),
        "reranker.v1.FeedbackService/RollbackModel": feedback_pb.RollbackModelRequest(agent=agent),
        "reranker.v1.FeedbackService/ExportFeedback": feedback_pb.ExportFeedbackRequest(agent=agent),
        "reranker.v1.FeedbackService/ListModels": feedback_pb.ListModelsRequest(agent=agent),
        "reranker.v1.FeedbackService/GetTrainingStatus": feedback_pb.GetTrainingStatusRequest(agent=agent),
        "retriever.v1.CollectionService/Ingest": _ingested(name),
        "retriever.v1.CollectionService/DeletePassages": collection_pb.DeletePassagesRequest(
            collection=name, passage_ids=["p1"]
        ),
        "retriever.v1.CollectionService/GetCollection": collection_pb.GetCollectionRequest(name=name),
        "retriever.v1.CollectionService/DeleteCollection": collection_pb.DeleteCollectionRequest(name=name),
        "retriever.v1.CollectionService/ListPassages": collection_pb.ListPassagesRequest(collection=name),
        "retriever.v1.CollectionService/GetPassages": collection_pb.GetPassagesRequest(
            collection=name, passage_ids=["p1"]
        ),
        "retriever.v1.RetrieverService/Retrieve": retriever_pb.RetrieveRequest(
            query="otters", collection=name
        ),
        "evaluator.v1.EvaluatorService/GetExposureBalance": evaluator_pb.GetExposureBalanceRequest(
            collection=name
        ),
        "evaluator.v1.EvaluatorService/ResetExposureBalance": evaluator_pb.ResetExposureBalanceRequest(
            collection=name
        ),
    }
    return found


LISTS: Final[Mapping[str, Message]] = {
    "evaluator.v1.EvaluatorService/ListRuns": evaluator_pb.ListRunsRequest(),
    "evaluator.v1.EvaluatorService/ListConfigurations": evaluator_pb.ListConfigurationsRequest(),
    "reranker.v1.FeedbackService/ListAgents": feedback_pb.ListAgentsRequest(),
    "retriever.v1.CollectionService/ListCollections": collection_pb.ListCollectionsRequest(),
}
"""Methods that tell all there is."""
MAKES: Final[Mapping[str, tuple[Message, Message]]] = {
    "evaluator.v1.EvaluatorService/Observe": (_observed("Rhine"), _observed("Elbe")),
    "reranker.v1.FeedbackService/RecordFeedback": (_feedback(1.0), _feedback(0.0)),
    "reranker.v1.FeedbackService/RegisterAgent": (
        feedback_pb.RegisterAgentRequest(agent=ANN, description="acme's"),
        feedback_pb.RegisterAgentRequest(agent=ANN, description="the other's"),
    ),
    "retriever.v1.CollectionService/CreateCollection": (
        collection_pb.CreateCollectionRequest(name="acmes-zoo", description="acme's"),
        collection_pb.CreateCollectionRequest(name="acmes-zoo", description="the other's"),
    ),
}
"""Methods that make something: what each tenant sends; names and ids are the same, contents are not."""


def test_it_is_known_of_every_method_what_of_a_tenant_it_is_about() -> None:
    known = [*OF_NOBODY, *ELSEWHERE, *_named("", ""), *LISTS, *MAKES]
    assert sorted(f"/evenmesh.{name}" for name in known) == sorted(METHODS)


class World:
    """The evaluator, the reranker and the retriever, as two tenants reach them; each with all roles but admin."""

    def __init__(
        self, channels: Mapping[tuple[str, str], grpc.aio.Channel], addresses: Mapping[str, str]
    ) -> None:
        self._channels = channels
        self.addresses = addresses

    async def asked(self, tenant: str, name: str, *requests: Message) -> tuple[str, str, list[Message]]:
        """How a call ends, and what it answered."""
        method = METHODS[f"/evenmesh.{name}"]
        channel = self._channels[tenant, name.split(".")[0]]
        reply = message_factory.GetMessageClass(method.output_type)
        call = calls_of(channel, method)(
            f"/evenmesh.{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )(iter(requests) if method.client_streaming else requests[0], timeout=60)
        try:
            if method.server_streaming:
                return "OK", "", [one async for one in call]
            return "OK", "", [await call]
        except grpc.aio.AioRpcError as error:
            reported = from_rpc_error(error)
            return reported.reason, reported.message, []


@pytest.fixture
async def world(key_files: KeyFiles, tmp_path: Path) -> AsyncIterator[World]:
    """The world, and a model version that is acme's: ``tmp_path/version`` has its name."""
    with ModelStore(tmp_path / "reranker" / "models").write(Lineage("of acme", tenant="acme")) as draft:
        (draft.folder / "model.safetensors").write_bytes(b"")
    (tmp_path / "version").write_text(draft.version)
    given = key_files.settings | {"home": tmp_path}
    telemetry = Telemetry.disabled()
    reranker = RerankerSettings(**given, default_reranker="none", cross_encoder="")
    evaluator, retriever = EvaluatorSettings(**given), RetrieverSettings(**given, encoder="")
    services = {
        "evaluator": (evaluator, EvaluatorService(evaluator)),
        "reranker": (reranker, RerankerService(reranker, telemetry)),
        "retriever": (retriever, RetrieverService(retriever)),
    }
    channels = {}
    addresses = {}
    async with AsyncExitStack() as stack:
        for name, (settings, service) in services.items():
            server = MeshServer(name, settings, service, telemetry=telemetry)
            await stack.enter_async_context(server)
            addresses[name] = server.address
            for tenant in TENANTS:
                security = ChannelSecurity(credential=Credential(key(tenant, Role.ADMIN)))
                channel = connect(server.address, service=name, security=security)
                channels[tenant, name] = await stack.enter_async_context(channel)
        yield World(channels, addresses)


async def test_nobody_reaches_what_is_anothers(world: World, tmp_path: Path) -> None:
    version = (tmp_path / "version").read_text()
    for name, (mine, _) in MAKES.items():
        reason, _, replies = await world.asked("acme", name, mine)
        assert (reason, _troubles(replies)) == ("OK", []), name
    assert (await world.asked("acme", _INGEST, _ingested("acmes-zoo")))[0] == "OK"
    names = {"evaluator": "acmes-run", "reranker": "acmes-agent", "retriever": "acmes-zoo"}
    questions = {name: _named(_name_of(name, names), version)[name] for name in _named("", "")}
    before = {
        name: await world.asked("acme", name, ask) for name, ask in (LISTS | _reading(questions)).items()
    }
    assert {reason for reason, _, _ in before.values()} == {"OK"}
    assert all(replies and any(map(_says_something, replies)) for _, _, replies in before.values())

    # Another is reported of each exactly what it is reported of what there is not.
    nothing = _named(NOBODYS, "0" * 16)
    for name, ask in questions.items():
        found = await world.asked("other", name, ask)
        absent = await world.asked("other", name, nothing[name])
        assert _disguised(found, _name_of(name, names), version) == _disguised(absent), name
        assert found[0] in ("NOT_FOUND", "OK", "NO_EARLIER_MODEL"), name
    for name, ask in LISTS.items():
        reason, _, replies = await world.asked("other", name, ask)
        assert (reason, [one for one in replies if _says_something(one)]) == ("OK", []), name

    # It may have things of the same names and ids, and whatever it did changed nothing of acme's.
    for name, (_, theirs) in MAKES.items():
        reason, _, replies = await world.asked("other", name, theirs)
        assert (reason, _troubles(replies)) == ("OK", []), name
    after = {
        name: await world.asked("acme", name, ask) for name, ask in (LISTS | _reading(questions)).items()
    }
    assert _dateless(after) == _dateless(before)


async def test_the_program_of_the_page_ends_a_tenant(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, asks in MAKES.items():
        for tenant, ask in zip(("acme", "other"), asks, strict=True):
            assert (await world.asked(tenant, name, ask))[0] == "OK"
    lists = {name: ask for name, ask in LISTS.items() if not name.endswith("ListConfigurations")}

    async def listed(tenant: str) -> list[tuple[str, str, list[Message]]]:
        return [await world.asked(tenant, name, ask) for name, ask in lists.items()]

    theirs = await listed("other")
    page = (ROOT / "docs" / "operate" / "tenants.md").read_text(encoding="utf-8")
    program = page.partition("```python\n")[2].partition("```")[0]
    for name in ("orchestrator", *world.addresses):
        monkeypatch.setenv(VARIABLES[name], world.addresses.get(name, "127.0.0.1:1"))
    monkeypatch.setenv("EVENMESH_API_KEY", key("acme", Role.ADMIN))
    await asyncio.to_thread(exec, compile(program, "docs/operate/tenants.md", "exec"), {})
    for reason, _, replies in await listed("acme"):
        assert (reason, [one for one in replies if _says_something(one)]) == ("OK", [])
    assert await listed("other") == theirs


_INGEST: Final = "retriever.v1.CollectionService/Ingest"
_CHANGING: Final = (
    *("Ingest", "DeletePassages", "DeleteCollection", "PromoteModel", "RollbackModel"),
    *("DeleteRun", "ResetExposureBalance", "DeleteAgent"),
)


def _name_of(method: str, names: Mapping[str, str]) -> str:
    """The name that a method knows things of acme by: of a balance it is that of the collection."""
    return names["retriever" if method.endswith("ExposureBalance") else method.split(".")[0]]


def _reading(questions: Mapping[str, Message]) -> dict[str, Message]:
    return {name: ask for name, ask in questions.items() if not name.endswith(_CHANGING)} | {
        "reranker.v1.FeedbackService/ListModels": feedback_pb.ListModelsRequest()
    }


def _dateless(asked: Mapping[str, tuple[str, str, list[Message]]]) -> dict[str, object]:
    """What was answered, without when a balance was read and by how much it faded meanwhile."""
    kept: dict[str, object] = dict(asked)
    for name, (reason, words, replies) in asked.items():
        if name.endswith("GetExposureBalance"):
            kept[name] = reason, words, [one.provider for reply in replies for one in reply.providers]
    return kept


def _troubles(replies: Sequence[Message]) -> list[str]:
    """What says that something was there already, or was not taken."""
    said = str(replies)
    return [word for word in ("duplicate: true", "error", "refusal") if word in said]


def _says_something(reply: Message) -> bool:
    return bool(reply.ByteSize())


def _disguised(found: tuple[str, str, list[Message]], name: str = NOBODYS, version: str = "0" * 16) -> str:
    """An answer without the names that were asked for."""
    reason, words, replies = found
    for one in replies:
        if isinstance(one, evaluator_pb.GetExposureBalanceResponse):
            one.ClearField("as_of")
    said = "\n".join([reason, words, *map(str, replies)])
    return said.replace(name, "…").replace(version, "…")
