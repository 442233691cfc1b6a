"""A local S3 server, and the environment that points at it."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.programs import moto, s3rver

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def s3_server() -> Iterator[str]:
    """Yield the address of a server without buckets, ``http://HOST:PORT``; skip the test without the program.

    :data:`ENVIRONMENT` and the address as ``AWS_ENDPOINT_URL`` let a client in.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # It prints its address when it listens.
    with subprocess.Popen(
        [moto(), "-H", "127.0.0.1", "-p", str(port)],
        env={**os.environ, "PYTHONPATH": "", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stderr is not None
            said = []
            while (line := server.stderr.readline()) and "Running on" not in line:
                said.append(line)
            if server.poll() is not None:
                pytest.skip(f"moto_server does not start: {''.join(said)[-300:]}")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


PARTS_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "S3RVER",
    "AWS_SECRET_ACCESS_KEY": "S3RVER",
    "AWS_DEFAULT_REGION": "us-east-1",
    # It stores the checksums that newer clients add as if they were data.
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
}


@contextmanager
def parts_server(folder: Path, bucket: str) -> Iterator[str]:
    """Yield the address of a server that takes uploads in parts, of which pyarrow reads no reply of moto's.

    :data:`PARTS_ENVIRONMENT` and the address as ``AWS_ENDPOINT_URL`` let a client in.

    Args:
        folder: where it keeps objects.
        bucket: the one that it has.
    """
    command = [s3rver(), "-d", str(folder), "-a", "127.0.0.1", "-p", "0", "--configure-bucket", bucket]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            while "listening on" not in (line := server.stdout.readline()):
                assert line, "s3rver does not start"
            yield f"http://{line.split()[-1]}"
        finally:
            server.kill()


def put(address: str, data: bytes) -> None:
    """Make a bucket or an object, as S3's REST does it."""
    signed = "AWS4-HMAC-SHA256 Credential=test/20261125/us-east-1/s3/aws4_request"
    headers = {"authorization": signed}
    httpx.put(address, content=data, headers=headers, trust_env=False, timeout=60).raise_for_status()
