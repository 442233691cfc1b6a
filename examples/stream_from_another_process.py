"""Streams that cross processes: a child asks and streams its answers, this process prints them as they come.

The child is a program of its own that only knows the mesh's address; several of them share one mesh.
Run it against `make up`:  python examples/stream_from_another_process.py [QUESTION ...]
"""

import asyncio
import multiprocessing
import sys
from multiprocessing.connection import Connection

import ragmesh

QUESTIONS = ("How often should I oil my bike chain?", "How long should chain oil soak in?")


def ask(addresses: ragmesh.Addresses, question: str, sender: Connection) -> None:
    """Runs in the child: sends the answer's pieces on as they come, and an empty one at the end."""

    async def stream() -> None:
        async with ragmesh.AsyncClient(addresses) as mesh:
            async for event in mesh.ask(question):
                if isinstance(event, ragmesh.Delta) and event.text:
                    sender.send(event.text)

    try:
        asyncio.run(stream())
    except ragmesh.MeshError as error:
        sender.send(f"[{error.reason}: {error}]")
    sender.send("")


def main(questions: tuple[str, ...]) -> None:
    """Asks in one child per question, all at once, and prints one answer after the other."""
    context = multiprocessing.get_context("spawn")  # gRPC must not be forked
    addresses = ragmesh.Addresses.find()
    streams = []
    for question in questions:
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=ask, args=(addresses, question, sender))
        child.start()
        streams.append((question, child, receiver))
    for question, child, receiver in streams:
        print(f"{question} (process {child.pid})\n  ", end="")
        while text := receiver.recv():
            print(text, end="", flush=True)
        print()
        child.join()


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or QUESTIONS)
