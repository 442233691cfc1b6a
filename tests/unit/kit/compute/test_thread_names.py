"""Names of threads as the system shows them."""

import sys
import threading
from pathlib import Path

import pytest

from evenmesh_kit.compute.thread_names import name_thread, threads_begin_as

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the names are Linux's")


def _name() -> str:
    return Path("/proc/thread-self/comm").read_text(encoding="utf-8").rstrip("\n")


def _in_a_thread(named: bool) -> str:
    found = []

    def work() -> None:
        if named:
            name_thread()
        found.append(_name())

    thread = threading.Thread(target=work, name="a name that is longer than Linux keeps")
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_has_the_beginning_of_its_name_in_python() -> None:
    assert _in_a_thread(named=True) == "a name that is "


def test_threads_of_others_take_the_name_of_the_context_and_no_longer() -> None:
    before = _name()
    with threads_begin_as("openvino"):
        assert _in_a_thread(named=False) == "openvino"
    assert _name() == before
    assert _in_a_thread(named=False) == before
