"""Functions that stand for OCR, and for whatever else a parser may come to do."""

from __future__ import annotations

import os
import signal
import socket
import threading

import numpy as np
from numpy.typing import NDArray


def killed(image: NDArray[np.uint8]) -> str:
    """As OCR that ends its process."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return ""


def endless(image: NDArray[np.uint8]) -> str:
    """As OCR that computes for ever."""
    while True:
        pass


def waiting(image: NDArray[np.uint8]) -> str:
    """As OCR that waits for ever."""
    threading.Event().wait()
    return ""


def large(image: NDArray[np.uint8]) -> str:
    """As OCR that takes 8 GiB."""
    return str(np.ones(1 << 30).sum())


_KEPT: list[bytes] = []


def keeping(image: NDArray[np.uint8]) -> str:
    """As OCR that keeps 300 MiB; the text is the process."""
    _KEPT.append(b"x" * (300 << 20))
    return f"process {os.getpid()}"


def forgetting(image: NDArray[np.uint8]) -> str:
    """As OCR that leaves 300 MiB to the collector of cycles; the text is the process."""
    cycle: list[object] = [b"x" * (300 << 20)]
    cycle.append(cycle)
    return f"process {os.getpid()}"


def failing(image: NDArray[np.uint8]) -> str:
    """As OCR that does not work."""
    raise RuntimeError("no such language")


def connects(image: NDArray[np.uint8]) -> str:
    """What comes of a connection to this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        try:
            client.connect(server.getsockname())
        except OSError:
            return "no network"
    return "a network"
