"""Stream across processes: a child asks and streams its answer, this process prints it as it arrives.

The child is a program of its own that only knows the mesh's address; several of them share one mesh.
Run it against `make up`:  python examples/stream_from_another_process.py [QUESTION ...]
"""

import asyncio
import multiprocessing
import sys
from multiprocessing.connection import Connection

import evenmesh

QUESTIONS = ("How often should I oil my bike chain?", "How long should chain oil soak in?")


def ask(addresses: evenmesh.Addresses, question: str, sender: Connection) -> None:
    """Send the pieces of the answer as they arrive, and an empty one at the end; runs in the child."""

    async def stream() -> None:
        async with evenmesh.AsyncClient(addresses) as mesh:
            async for event in mesh.ask(question):
                if isinstance(event, evenmesh.Delta) and event.text:
                    sender.send(event.text)

    try:
        asyncio.run(stream())
    except evenmesh.MeshError as error:
        sender.send(f"[{error.reason}: {error}]")
    sender.send("")


def main(questions: tuple[str, ...]) -> None:
    """Ask each question in a child of its own, all at once, and print one answer after the other."""
    context = multiprocessing.get_context("spawn")  # gRPC must not be forked
    addresses = evenmesh.Addresses.find()
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
