from pathlib import Path

import pytest

from evenmesh_mesh import SERVICES, GeneratorEngine, MeshSettings, services_with
from evenmesh_mesh import settings as mesh_settings
from evenmesh_mesh.services import GATEWAY, STOP_ORDER
from evenmesh_mesh.settings import service_environment

PORTS = {"orchestrator": 1, "retriever": 2, "reranker": 3, "generator": 4, "evaluator": 5}
BY_NAME = {service.name: service for service in SERVICES}


def environment(name: str, base: dict[str, str] | None = None, **changes: object) -> dict[str, str]:
    settings = MeshSettings(home=Path("/home/mesh"), **changes)  # type: ignore[arg-type]
    return service_environment(BY_NAME[name], settings, PORTS, base=base or {}, supervisor_pid=99)


def test_every_service_knows_where_it_lives_and_whom_to_follow() -> None:
    for name, port in PORTS.items():
        reported = environment(name)
        prefix = f"EVENMESH_{name.upper()}_"
        assert reported["EVENMESH_HOME"] == "/home/mesh"
        assert reported[f"{prefix}PORT"] == str(port)
        assert reported[f"{prefix}HOST"] == "127.0.0.1"
        assert (reported[f"{prefix}EXIT_WITH_PARENT"], reported[f"{prefix}PARENT_PID"]) == ("true", "99")


def test_services_know_those_they_call_and_no_others() -> None:
    targets = {
        name: {key: value for key, value in environment(name).items() if "TARGET" in key} for name in PORTS
    }

    assert targets == {
        "retriever": {},
        "generator": {},
        "evaluator": {},
        "reranker": {"EVENMESH_RERANKER_GENERATOR_TARGET": "dns:///127.0.0.1:4"},
        "orchestrator": {
            "EVENMESH_ORCHESTRATOR_RETRIEVER_TARGET": "dns:///127.0.0.1:2",
            "EVENMESH_ORCHESTRATOR_RERANKER_TARGET": "dns:///127.0.0.1:3",
            "EVENMESH_ORCHESTRATOR_GENERATOR_TARGET": "dns:///127.0.0.1:4",
            "EVENMESH_ORCHESTRATOR_EVALUATOR_TARGET": "dns:///127.0.0.1:5",
        },
    }


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (8, "4")])
def test_models_get_half_of_the_cores(monkeypatch: pytest.MonkeyPatch, cores: int, threads: str) -> None:
    monkeypatch.setattr(mesh_settings, "usable_cores", lambda: cores)

    reported = environment("generator")
    assert (reported["OMP_NUM_THREADS"], reported["EVENMESH_GENERATOR_THREADS"]) == (threads, threads)
    assert environment("retriever")["EVENMESH_RETRIEVER_ENCODER_THREADS"] == threads
    assert environment("evaluator")["OMP_NUM_THREADS"] == "1"


def test_what_the_user_sets_wins() -> None:
    reported = environment("generator", {"OMP_NUM_THREADS": "7"})
    assert (reported["OMP_NUM_THREADS"], reported["EVENMESH_GENERATOR_THREADS"]) == ("7", "7")
    reported = environment("generator", {"OMP_NUM_THREADS": "7", "EVENMESH_GENERATOR_THREADS": "3"})
    assert reported["EVENMESH_GENERATOR_THREADS"] == "3"
    assert environment("generator", {"OMP_NUM_THREADS": "many"})["EVENMESH_GENERATOR_THREADS"].isdecimal()
    settings = {"EVENMESH_GENERATOR_GRACE_S": "1"}
    assert environment("generator", environment=settings)["EVENMESH_GENERATOR_GRACE_S"] == "1"
    assert environment("generator", {"EVENMESH_RETRIEVER_ENCODER": "e"})["EVENMESH_RETRIEVER_ENCODER"] == "e"


def test_a_mesh_with_triton_runs_it_for_the_generator_alone() -> None:
    services = services_with(GeneratorEngine.TRITON)
    settings = MeshSettings(home=Path("/home/mesh"), services=services)
    ports = {service.name: at for at, service in enumerate(services, 1)}
    assert set(ports) == {*PORTS, "triton"}
    assert len({service.offset for service in services}) == 6

    def reported(name: str, base: dict[str, str]) -> dict[str, str]:
        (service,) = (one for one in services if one.name == name)
        return service_environment(service, settings, ports, base=base, supervisor_pid=99)

    generator = reported("generator", {"EVENMESH_GENERATOR_ENGINE": "in-process"})
    assert generator["EVENMESH_GENERATOR_ENGINE"] == "triton", "the mesh decides"
    assert generator["EVENMESH_GENERATOR_TRITON_TARGET"] == f"127.0.0.1:{ports['triton']}"
    triton = reported("triton", {"OMP_NUM_THREADS": "3"})
    assert triton["EVENMESH_TRITON_PORT"] == str(ports["triton"])
    assert triton["EVENMESH_TRITON_THREADS"] == "3"
    assert not any("TRITON_TARGET" in name for name in reported("orchestrator", {}))


def test_a_mesh_that_learns_has_a_trainer_that_finds_the_others() -> None:
    services = services_with(GeneratorEngine.IN_PROCESS, learn=True)
    assert [service.name for service in services] == [*(one.name for one in SERVICES), "trainer"]
    ports = {service.name: at for at, service in enumerate(services, 1)}
    settings = MeshSettings(home=Path("/home/mesh"), services=services)
    reported = service_environment(services[-1], settings, ports, base={}, supervisor_pid=99)
    assert reported["EVENMESH_TRAINER_PORT"] == str(ports["trainer"])
    assert reported["EVENMESH_TRAINER_RERANKER_TARGET"] == f"dns:///127.0.0.1:{ports['reranker']}"
    assert reported["EVENMESH_TRAINER_RETRIEVER_TARGET"] == f"dns:///127.0.0.1:{ports['retriever']}"
    assert {name for group in STOP_ORDER for name in group} >= set(ports)


def test_a_mesh_with_a_gateway_stops_it_first() -> None:
    services = services_with(GeneratorEngine.TRITON, learn=True, gateway=True)
    assert services[-1] is GATEWAY
    assert len({service.offset for service in services}) == len(services)
    ports = {service.name: at for at, service in enumerate(services, 1)}
    settings = MeshSettings(home=Path("/home/mesh"), services=services)
    reported = service_environment(GATEWAY, settings, ports, base={}, supervisor_pid=99)
    assert reported["EVENMESH_GATEWAY_PORT"] == str(ports["gateway"])
    for name in PORTS:
        assert reported[f"EVENMESH_GATEWAY_{name.upper()}_TARGET"] == f"dns:///127.0.0.1:{ports[name]}"
    assert STOP_ORDER[0] == ("gateway",)


def test_a_mesh_without_triton_says_so_to_its_generator() -> None:
    services = services_with(GeneratorEngine.IN_PROCESS)
    settings = MeshSettings(home=Path("/home/mesh"), services=services)
    assert [service.name for service in services] == [service.name for service in SERVICES]
    generator = next(service for service in services if service.name == "generator")
    reported = service_environment(
        generator, settings, PORTS, base={"EVENMESH_GENERATOR_ENGINE": "triton"}, supervisor_pid=99
    )
    assert reported["EVENMESH_GENERATOR_ENGINE"] == "in-process"
    assert "EVENMESH_GENERATOR_TRITON_TARGET" not in reported
