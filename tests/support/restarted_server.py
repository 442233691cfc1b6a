"""A process that answers as an orchestrator and an evaluator, and is killed and started again on its port."""

from __future__ import annotations

import subprocess
import sys

from evenmesh import Addresses
from tests.support import ports

SERVER = """
import asyncio, os, sys
import grpc
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as evaluator_grpc
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as pb_grpc

class Evaluator(evaluator_grpc.EvaluatorServiceServicer):
    async def ListRuns(self, request, context):
        return evaluator_pb.ListRunsResponse(runs=[evaluator_pb.Run(run_id=str(os.getpid()))])
    async def ListMeasurements(self, request, context):
        yield evaluator_pb.ListMeasurementsResponse(observation_id=str(os.getpid()))

class Orchestrator(pb_grpc.OrchestratorServiceServicer):
    async def Ask(self, request, context):
        yield pb.AskResponse(degraded={"reason": str(os.getpid())})
        if request.question == "long" and sys.argv[2] == "first":
            print("long", flush=True)
            await asyncio.Event().wait()
        yield pb.AskResponse(done=pb.Done(ask_id=str(os.getpid())))

async def main():
    server = grpc.aio.server()
    evaluator_grpc.add_EvaluatorServiceServicer_to_server(Evaluator(), server)
    pb_grpc.add_OrchestratorServiceServicer_to_server(Orchestrator(), server)
    assert server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
    await server.start()
    print("serves", flush=True)
    await server.wait_for_termination()

asyncio.run(main())
"""


class RestartedServer:
    """A server that is killed and started again on its port."""

    def __init__(self) -> None:
        self.port = ports.reserve(self)
        self.addresses = Addresses(*[f"127.0.0.1:{self.port}"] * 5)
        self.running: subprocess.Popen[str]
        self.start("first")

    def start(self, which: str) -> None:
        command = [sys.executable, "-c", SERVER, str(self.port), which]
        self.running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.says("serves")

    def says(self, word: str) -> None:
        assert self.running.stdout is not None
        assert self.running.stdout.readline().strip() == word

    def kill(self) -> None:
        self.running.kill()
        self.running.communicate(timeout=60)
