"""A Milvus Lite in a process of its own, that tests talk to over gRPC."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Its own command does not say which port it was given; this does, and ends when its standard input does.
_PROGRAM = """
import sys
from milvus_lite.adapter.grpc.server import start_server_in_thread
server, database, port = start_server_in_thread(sys.argv[1], port=int(sys.argv[2]))
print(port, flush=True)
sys.stdin.read()
server.stop(grace=1)
database.close()
"""


class MilvusLite:
    """One server process.

    Args:
        folder: where it keeps its data.
        port: port to listen on; 0 lets the system choose.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(folder), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.uri = f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """Ends it at once."""
        self.process.kill()
        self.process.communicate()

    def stop(self) -> None:
        """Ends it in order."""
        self.process.communicate()


@contextmanager
def serving(folder: Path) -> Iterator[MilvusLite]:
    """A server for as long as the block runs."""
    server = MilvusLite(folder)
    try:
        yield server
    finally:
        server.stop()
