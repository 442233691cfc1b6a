import os
from pathlib import Path

from evenmesh_mesh.logs import ServiceLog


def append(log: ServiceLog, text: str) -> None:
    descriptor = log.open()
    os.write(descriptor, text.encode())
    os.close(descriptor)


def test_a_new_mesh_keeps_the_log_of_the_last_aside(tmp_path: Path) -> None:
    log = ServiceLog(tmp_path / "logs", "retriever")
    log.begin()
    append(log, "first\n")
    log.begin()
    append(log, "second\n")

    assert log.path.read_text() == "second\n"
    assert (tmp_path / "logs" / "retriever.log.1").read_text() == "first\n"


def test_a_log_that_grows_too_large_is_moved_aside_under_its_writer(tmp_path: Path) -> None:
    log = ServiceLog(tmp_path, "retriever")
    log.begin()
    descriptor = log.open()
    os.write(descriptor, b"x" * 100)

    log.trim(max_bytes=100)
    assert log.path.stat().st_size == 100
    os.write(descriptor, b"y")
    log.trim(max_bytes=100)
    os.write(descriptor, b"z")
    os.close(descriptor)

    assert log.path.read_text() == "z"
    assert (tmp_path / "retriever.log.1").read_text() == "x" * 100 + "y"


def test_a_complaint_is_the_last_line_in_plain_words(tmp_path: Path) -> None:
    log = ServiceLog(tmp_path, "retriever")
    log.begin()
    assert log.complaint() == ""
    append(log, '{"level": "INFO", "message": "loading"}\n')
    assert log.complaint() == ""
    append(log, "EVENMESH_RETRIEVER_ENCODER='x': no such model\n\n" + '{"level": "ERROR"}\n' * 3)
    assert log.complaint() == "EVENMESH_RETRIEVER_ENCODER='x': no such model"


def test_a_log_that_was_removed_or_cannot_be_moved_aside_is_no_error(tmp_path: Path) -> None:
    log = ServiceLog(tmp_path, "retriever")
    log.begin()
    append(log, "said\n")
    (tmp_path / "retriever.log.1").mkdir()
    log.trim(max_bytes=1)
    assert log.path.read_text() == "said\n"

    log.path.unlink()
    log.trim(max_bytes=1)
    assert log.complaint() == ""
