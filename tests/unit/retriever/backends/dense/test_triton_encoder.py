"""Several Triton servers of one name: calls take turns, and go on where one is away."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.json_format import ParseDict
from tritonclient.grpc import service_pb2, service_pb2_grpc

from evenmesh.wire.errors import Unavailable
from evenmesh_retriever.backends.dense import triton_encoder
from evenmesh_retriever.backends.dense.triton_encoder import TritonEncoder

CONFIG = {
    "name": "embed",
    "max_batch_size": 4,
    "input": [{"name": "text", "data_type": "TYPE_STRING", "dims": [1]}],
    "output": [{"name": "embedding", "data_type": "TYPE_FP32", "dims": [2]}],
}


class Server(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers with one vector for all texts, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self._server = grpc.server(ThreadPoolExecutor(2))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def stop(self) -> None:
        """End at once."""
        self._server.stop(None).wait()

    def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        return service_pb2.ModelMetadataResponse(name="embed", versions=["1"])

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        return ParseDict({"config": CONFIG}, service_pb2.ModelConfigResponse())

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.calls += 1
        count = request.inputs[0].shape[0]
        vectors = np.tile(np.array([3.0, 4.0], dtype=np.float32), (count, 1))
        reply = service_pb2.ModelInferResponse(model_name="embed", raw_output_contents=[vectors.tobytes()])
        reply.outputs.add(name="embedding", datatype="FP32", shape=[count, 2])
        return reply


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    with ExitStack() as stack:
        made = [Server(), Server()]
        for one in made:
            stack.callback(one.stop)
        yield made


@pytest.fixture
def encoder(servers: list[Server], monkeypatch: pytest.MonkeyPatch) -> TritonEncoder:
    """One whose name resolves to both."""
    both = f"ipv4:{','.join(f'127.0.0.1:{one.port}' for one in servers)}"
    monkeypatch.setattr(triton_encoder, "with_scheme", lambda _: both)
    return TritonEncoder("triton://triton:8001/embed")


def test_servers_take_turns(encoder: TritonEncoder, servers: list[Server]) -> None:
    # Both connections are there after a few calls; how long that takes is the machine's.
    for number in range(10_000):
        np.testing.assert_allclose(encoder.encode_query(f"query {number}"), [0.6, 0.8], rtol=1e-6)
        if min(one.calls for one in servers) >= 5:
            break
    before = [one.calls for one in servers]
    for number in range(10):
        encoder.encode_query(f"again {number}")
    assert [one.calls - was for one, was in zip(servers, before, strict=True)] == [5, 5]


def test_calls_go_on_where_one_is_away(encoder: TritonEncoder, servers: list[Server]) -> None:
    servers[0].stop()
    for _ in range(100):  # a call that was on its way to it fails
        with contextlib.suppress(Unavailable):
            encoder.encode_query("query")
            break
    vectors = encoder.encode_passages([f"passage {number}" for number in range(40)], lambda _: None)
    assert vectors.shape == (40, 2)
    assert servers[1].calls >= 10
