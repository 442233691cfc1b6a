from pathlib import Path

import pytest

from ragmesh.mesh import SERVICES, GeneratorEngine, MeshSettings, services_with
from ragmesh.mesh import settings as mesh_settings
from ragmesh.mesh.services import STOP_ORDER
from ragmesh.mesh.settings import service_environment

PORTS = {"orchestrator": 1, "retriever": 2, "reranker": 3, "generator": 4, "evaluator": 5}
BY_NAME = {service.name: service for service in SERVICES}


def environment(name: str, base: dict[str, str] | None = None, **changes: object) -> dict[str, str]:
    settings = MeshSettings(home=Path("/home/mesh"), **changes)  # type: ignore[arg-type]
    return service_environment(BY_NAME[name], settings, PORTS, base=base or {}, supervisor_pid=99)


def test_every_service_is_told_where_it_lives_and_whom_to_follow() -> None:
    for name, port in PORTS.items():
        told = environment(name)
        prefix = f"RAGMESH_{name.upper()}_"
        assert told["RAGMESH_HOME"] == "/home/mesh"
        assert told[f"{prefix}PORT"] == str(port)
        assert told[f"{prefix}HOST"] == "127.0.0.1"
        assert (told[f"{prefix}EXIT_WITH_PARENT"], told[f"{prefix}PARENT_PID"]) == ("true", "99")


def test_services_are_told_of_those_they_call_and_no_others() -> None:
    targets = {
        name: {key: value for key, value in environment(name).items() if "TARGET" in key} for name in PORTS
    }

    assert targets == {
        "retriever": {},
        "generator": {},
        "evaluator": {},
        "reranker": {"RAGMESH_RERANKER_GENERATOR_TARGET": "dns:///127.0.0.1:4"},
        "orchestrator": {
            "RAGMESH_ORCHESTRATOR_RETRIEVER_TARGET": "dns:///127.0.0.1:2",
            "RAGMESH_ORCHESTRATOR_RERANKER_TARGET": "dns:///127.0.0.1:3",
            "RAGMESH_ORCHESTRATOR_GENERATOR_TARGET": "dns:///127.0.0.1:4",
            "RAGMESH_ORCHESTRATOR_EVALUATOR_TARGET": "dns:///127.0.0.1:5",
        },
    }


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (8, "4")])
def test_models_get_half_of_the_cores(monkeypatch: pytest.MonkeyPatch, cores: int, threads: str) -> None:
    monkeypatch.setattr(mesh_settings, "usable_cores", lambda: cores)

    told = environment("generator")
    assert (told["OMP_NUM_THREADS"], told["RAGMESH_GENERATOR_THREADS"]) == (threads, threads)
    assert environment("retriever")["RAGMESH_RETRIEVER_ENCODER_THREADS"] == threads
    assert environment("evaluator")["OMP_NUM_THREADS"] == "1"


def test_what_the_user_sets_wins() -> None:
    told = environment("generator", {"OMP_NUM_THREADS": "7"})
    assert (told["OMP_NUM_THREADS"], told["RAGMESH_GENERATOR_THREADS"]) == ("7", "7")
    told = environment("generator", {"OMP_NUM_THREADS": "7", "RAGMESH_GENERATOR_THREADS": "3"})
    assert told["RAGMESH_GENERATOR_THREADS"] == "3"
    assert environment("generator", {"OMP_NUM_THREADS": "many"})["RAGMESH_GENERATOR_THREADS"].isdecimal()
    settings = {"RAGMESH_GENERATOR_GRACE_S": "1"}
    assert environment("generator", environment=settings)["RAGMESH_GENERATOR_GRACE_S"] == "1"
    assert environment("generator", {"RAGMESH_RETRIEVER_ENCODER": "e"})["RAGMESH_RETRIEVER_ENCODER"] == "e"


def test_a_mesh_with_triton_runs_it_for_the_generator_alone() -> None:
    services = services_with(GeneratorEngine.TRITON)
    settings = MeshSettings(home=Path("/home/mesh"), services=services)
    ports = {service.name: at for at, service in enumerate(services, 1)}
    assert set(ports) == {*PORTS, "triton"}
    assert len({service.offset for service in services}) == 6

    def told(name: str, base: dict[str, str]) -> dict[str, str]:
        (service,) = (one for one in services if one.name == name)
        return service_environment(service, settings, ports, base=base, supervisor_pid=99)

    generator = told("generator", {"RAGMESH_GENERATOR_ENGINE": "in-process"})
    assert generator["RAGMESH_GENERATOR_ENGINE"] == "triton", "the mesh decides"
    assert generator["RAGMESH_GENERATOR_TRITON_TARGET"] == f"127.0.0.1:{ports['triton']}"
    triton = told("triton", {"OMP_NUM_THREADS": "3"})
    assert triton["RAGMESH_TRITON_PORT"] == str(ports["triton"])
    assert triton["RAGMESH_TRITON_THREADS"] == "3"
    assert not any("TRITON_TARGET" in name for name in told("orchestrator", {}))


def test_a_mesh_that_learns_has_a_trainer_that_finds_the_others() -> None:
    services = services_with(GeneratorEngine.IN_PROCESS, learn=True)
    assert [service.name for service in services] == [*(one.name for one in SERVICES), "trainer"]
    ports = {service.name: at for at, service in enumerate(services, 1)}
    settings = MeshSettings(home=Path("/home/mesh"), services=services)
    told = service_environment(services[-1], settings, ports, base={}, supervisor_pid=99)
    assert told["RAGMESH_TRAINER_PORT"] == str(ports["trainer"])
    assert told["RAGMESH_TRAINER_RERANKER_TARGET"] == f"dns:///127.0.0.1:{ports['reranker']}"
    assert told["RAGMESH_TRAINER_RETRIEVER_TARGET"] == f"dns:///127.0.0.1:{ports['retriever']}"
    assert {name for group in STOP_ORDER for name in group} >= set(ports)


def test_a_mesh_without_triton_says_so_to_its_generator() -> None:
    services = services_with(GeneratorEngine.IN_PROCESS)
    settings = MeshSettings(home=Path("/home/mesh"), services=services)
    assert [service.name for service in services] == [service.name for service in SERVICES]
    generator = next(service for service in services if service.name == "generator")
    told = service_environment(
        generator, settings, PORTS, base={"RAGMESH_GENERATOR_ENGINE": "triton"}, supervisor_pid=99
    )
    assert told["RAGMESH_GENERATOR_ENGINE"] == "in-process"
    assert "RAGMESH_GENERATOR_TRITON_TARGET" not in told


def test_a_mesh_that_learns_begins_with_the_cross_encoder_that_ships_unless_told_another() -> None:
    name = "RAGMESH_RERANKER_CROSS_ENCODER"
    learning = services_with(GeneratorEngine.IN_PROCESS, learn=True)
    assert name not in environment("reranker")
    assert environment("reranker", services=learning)[name] == "bundled"
    assert environment("reranker", {name: "/mine"}, services=learning)[name] == "/mine"
