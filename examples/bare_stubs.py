"""Ask without the SDK: only grpcio and the generated stubs, as in any language with gRPC.

Run it against `make up`:  python examples/bare_stubs.py [HOST:PORT [QUESTION]]
"""

import sys

import grpc

from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as stubs

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7070"
question = sys.argv[2] if len(sys.argv) > 2 else "How often should I oil my bike chain?"

with grpc.insecure_channel(address) as channel:
    orchestrator = stubs.OrchestratorServiceStub(channel)
    request = pb.AskRequest(question=question)
    request.sampling.alpha = 2
    request.sampling.num_rankings = 20
    request.num_answers = 1
    for reply in orchestrator.Ask(request, timeout=60):
        match reply.WhichOneof("event"):
            case "delta":
                print(reply.delta.text, end="", flush=True)
            case "answer":
                print()
                for citation in reply.answer.citations:
                    print(f"  [{citation.rank}] {citation.passage_id} by {citation.provider}")
            case "report":
                shares = (f"{share.name} {share.share:.0%}" for share in reply.report.providers)
                print("exposure:", ", ".join(shares))
            case "done":
                print(f"run {reply.done.run_id}, {reply.done.total_ms:.0f} ms")
