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
