"""What asks, audits and ensembles count in admission; and that nothing is kept across tenants."""

from __future__ import annotations

import ast
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import evenmesh_orchestrator
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField, MeshError, Overloaded
from evenmesh_core.plackett_luce import Disparity
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_orchestrator import cost
from evenmesh_orchestrator import servicer as servicer_module
from evenmesh_orchestrator.asks.request import Defaults
from evenmesh_orchestrator.conversations.conversation import Conversation, Limits
from evenmesh_orchestrator.conversations.memory import MemoryConversationStore
from evenmesh_orchestrator.domain import EMPTY_POOL, Pool, Sampling
from evenmesh_orchestrator.servicer import OrchestratorServicer
from tests.unit.orchestrator.fakes import Mesh, ask, audit, ensemble, passage

EMPTY = pb.AskRequest()


def test_sampled_places_count_beside_answers() -> None:
    plain = replace(ask(), num_answers=1, depth=100, sampling=None)
    assert cost.of_ask(plain, EMPTY) == 1
    assert cost.of_ask(replace(plain, num_answers=0), EMPTY) == 1
    sampled = replace(plain, depth=1000, sampling=Sampling(1.0, 1000, 0))
    assert cost.of_ask(sampled, EMPTY) == 1 + 1000 * 1000 // 10_000


def test_the_search_for_a_target_counts() -> None:
    plain = replace(ask(), num_answers=1, depth=1000, k=100, rerank_depth=1000)
    wanted = replace(plain, sampling=Sampling(None, 1, 0, Disparity(0.5)))
    assert cost.of_ask(wanted, EMPTY) == cost.of_ask(plain, EMPTY) + 10


def test_an_audit_without_answers_counts_its_rankings() -> None:
    made = audit()
    asked = replace(made.ask, depth=1000, num_answers=0)
    large = replace(
        made, ask=asked, alphas=tuple(map(float, range(16))), sampling=Sampling(0, 1000, 0), num_oracle=0
    )
    assert cost.of_audit(large, EMPTY) == 1 + 16_001 * 1000 // 10_000
    answered = replace(large, ask=replace(asked, num_answers=1000))
    assert cost.of_audit(answered, EMPTY) == 16_001 + 16_001 * 1000 // 10_000


def test_members_of_an_ensemble_count_with_their_pools() -> None:
    made = ensemble("Wiki@2", "SE@1")
    members = tuple(replace(one, depth=1000) for one in made.members) * 50
    assert cost.of_ensemble(replace(made, members=members), EMPTY) == 100
    deep = tuple(replace(one, depth=20_000) for one in made.members)
    assert cost.of_ensemble(replace(made, members=deep), EMPTY) == 2 + 2 * 2


def test_a_large_request_counts_its_bytes() -> None:
    request = pb.AskRequest(question="Which?")
    for at in range(100):
        request.candidates.passages.add(id=str(at), text="x" * 65_536)
    assert cost.of_ask(replace(ask(), num_answers=1, depth=100, sampling=None), request) == 1 + 200


def test_found_passages_count_their_bytes_from_a_mebibyte_on() -> None:
    def found(number: int) -> Pool:
        return replace(EMPTY_POOL, passages=[passage(str(at), "x" * 65_536) for at in range(number)])

    assert [cost.of_pool(found(number)) for number in (0, 15, 17, 116)] == [0, 0, 2, 200]


@pytest.fixture
def serving(mesh: Mesh) -> OrchestratorServicer:
    """Serves asks over what the retriever has, and counts 40 answers at a time."""
    nothing = cast(Any, None)
    return OrchestratorServicer(
        mesh.pipeline(),
        pool=mesh.pool,
        admission=Admission(40, "answers"),
        defaults=Defaults("demo", "none"),
        turns=nothing,
        conversations=nothing,
        turn_timeout_s=60,
    )


async def test_asks_that_found_much_are_few_at_a_time(mesh: Mesh, serving: OrchestratorServicer) -> None:
    """A hundred asks of one tenant held 26 MB of found passages each, several times, and counted one each."""
    mesh.generator.delay_s = 1e6
    many = [cast(Any, serving.Ask(pb.AskRequest(question="Which?", k=1), cast(Any, None))) for _ in range(5)]
    mesh.retriever.passages = [passage(str(at), "x" * 65_536) for at in range(100)]
    for asked in many[:3]:
        assert (await anext(asked)).HasField("retrieved")
    with pytest.raises(Overloaded):  # 3 · (1 + 10) + 1 of 40 are held: another 10 do not fit
        await anext(many[3])
    await many[0].aclose()
    assert (await anext(many[4])).HasField("retrieved")
    for asked in many:
        await asked.aclose()


async def test_passages_that_a_request_brings_count_once(mesh: Mesh, serving: OrchestratorServicer) -> None:
    request = pb.AskRequest(question="Which?", k=1, num_answers=0)
    for at in range(19):  # 39 of 40
        request.candidates.passages.add(id=str(at), text="x" * 65_536)
    mesh.retriever.passages = list(request.candidates.passages)
    kinds = [one.WhichOneof("event") async for one in serving.Ask(request, cast(Any, None))]
    assert kinds[-1] == "done"


def test_an_ensemble_counts_its_bytes_for_every_member_and_the_vote() -> None:
    made = ensemble("Wiki@2", "SE@1")
    request = pb.AskRequest(question="x" * 65_536)
    assert cost.of_ensemble(made, request) == 2 + 3 * 2


@pytest.fixture
def pool() -> Iterator[TenantPool]:
    made = TenantPool(1, "test")
    yield made
    made.close()


async def test_an_audit_that_draws_too_much_is_refused_before_it_begins(pool: TenantPool) -> None:
    nothing = cast(Any, None)
    servicer = OrchestratorServicer(
        nothing,
        pool=pool,
        admission=Admission(100, "answers"),
        defaults=Defaults("demo", "none"),
        turns=nothing,
        conversations=nothing,
        turn_timeout_s=60,
    )
    request = pb.AuditRequest(ask=pb.AskRequest(question="Which?", depth=1000, num_answers=0))
    request.ask.sampling.num_rankings = 1000
    request.ask.labels.has_useful = True
    with pytest.raises(MeshError) as refused:
        async for _ in servicer.Audit(request, nothing):
            pass
    assert refused.value.reason == "OVER_CAPACITY"


class Continued(MemoryConversationStore):
    """Has settings of an earlier turn, which may have an expression."""

    async def acquire(self, tenant: str, conversation_id: str = "") -> Conversation:
        found = await super().acquire(tenant, conversation_id)
        await self.keep(found, pb.AskRequest(expression="PK").SerializeToString(), found.options)
        return found


@pytest.mark.parametrize("kind", ["ask", "ensemble", "expression", "audit", "turn", "later turn"])
async def test_a_large_request_is_read_in_a_thread(
    pool: TenantPool, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Read on the event loop, 8 MiB of labels would hold up everybody's calls for a tenth of a second and more.

    20 expressions of 256 bytes took 0.3 s.
    """
    read_in: list[str] = []

    def note(*_: object) -> None:
        read_in.append(threading.current_thread().name)
        raise InvalidField("question", "seen")

    monkeypatch.setattr(servicer_module, "read_ensemble" if kind == "ensemble" else "read_ask", note)
    monkeypatch.setattr(servicer_module.audit_codec, "read_audit", note)
    monkeypatch.setattr(servicer_module.conversation_codec, "read_turn", note)
    nothing = cast(Any, None)
    conversations = (Continued if kind == "later turn" else MemoryConversationStore)(Limits())
    servicer = OrchestratorServicer(
        nothing,
        pool=pool,
        admission=Admission(100, "answers"),
        defaults=Defaults("demo", "none"),
        turns=nothing,
        conversations=conversations,
        turn_timeout_s=60,
    )
    for count in (1, 7):
        request = pb.AskRequest(question="Which?", labels={"references": ["x" * 10_000] * count})
        if kind == "ensemble":
            request.ensemble.name = "mixed"
        if kind == "expression":
            request.expression = "PK"

        async def turns(ask: pb.AskRequest = request) -> AsyncIterator[pb.ConverseRequest]:
            yield pb.ConverseRequest(ask=ask)

        stream: AsyncIterator[object] = servicer.Ask(request, nothing)
        if kind == "audit":
            stream = servicer.Audit(pb.AuditRequest(ask=request), nothing)
        if kind.endswith("turn"):
            stream = servicer.Converse(turns(), nothing)
        with contextlib.suppress(InvalidField):
            async for _ in stream:
                pass
    in_thread = [one.startswith("test") for one in read_in]
    assert in_thread == [kind in ("ensemble", "expression", "later turn"), True]


def test_what_is_kept_between_calls_is_kept_by_tenant() -> None:
    """Every function that remembers its results has the tenant as its first argument."""
    assert _first_arguments_of_kept("@functools.cache\ndef parsed(text: str) -> str: ...") == ["text"]
    folder = Path(evenmesh_orchestrator.__file__).parent
    for path in folder.rglob("*.py"):
        assert set(_first_arguments_of_kept(path.read_text())) <= {"tenant"}, path


def _first_arguments_of_kept(source: str) -> list[str]:
    return [
        node.args.args[0].arg
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any("cache" in ast.unparse(one) for one in node.decorator_list)
    ]
