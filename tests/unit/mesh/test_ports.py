import socket
import sys

import pytest

from evenmesh_mesh import SERVICES
from evenmesh_mesh.ports import Ports, PortTakenError, is_free


def listening(port: int = 0) -> socket.socket:
    """A socket that listens as a gRPC server's does."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", port))
    one.listen()
    return one


@pytest.mark.skipif(sys.platform != "linux", reason="ports are only reserved on Linux")
def test_a_reserved_port_is_the_services_own() -> None:
    with Ports(SERVICES, 0) as ports:
        assert set(ports.by_service) == {service.name for service in SERVICES}
        port = ports.by_service["retriever"]
        with listening(port):
            assert not is_free(port)
        with listening(port):  # again, as after a crash
            pass
        with Ports(SERVICES, 0) as others:
            assert set(ports.by_service.values()).isdisjoint(others.by_service.values())


def test_fixed_ports_follow_the_orchestrator() -> None:
    with listening() as one:
        port = one.getsockname()[1]
        with pytest.raises(PortTakenError) as caught, Ports(SERVICES, port - 4):
            pytest.fail("two servers on one port")

    assert (caught.value.service, caught.value.port) == ("evaluator", port)


def test_ports_end_at_the_last_one() -> None:
    with pytest.raises(PortTakenError), Ports(SERVICES, 65_534):
        pytest.fail("there is no such port")
