"""What tests of several rooms share."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, settings
from pytest_rerunfailures import StatusDB

from tests.support.order import SERVERS, places
from tests.support.postgres import Postgres, running
from tests.support.programs import missing

if TYPE_CHECKING:
    from tests.support.real_vllm import VllmServer
    from tests.support.transformers_server import TransformersServer
    from tests.support.triton_server import TritonServer

# How long an example takes says something about the machine, nothing about the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Importing the tests makes millions of objects that stay: looking for cycles among them takes a quarter of the time.
gc.disable()

TESTS: Final = Path(__file__).parent
_SAID: Final = 4000
"""Characters of why a test ran again, its end: the second try often fails otherwise, or not at all."""


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let no process of tests ask another one about each test.

    pytest-rerunfailures asks over a socket, 40 ms a test (Nagle's algorithm), how often a test ended its process.
    With ``--max-worker-restart 0`` that is never: the run ends.
    """
    if hasattr(config, "workerinput") and hasattr(config, "failures_db"):
        config.failures_db = StatusDB()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group tests for ``--dist loadgroup``: those of a file together, and all that share a server in one process.

    A mesh or a Triton server takes longer to start than most files take; started once, it serves them all. Those
    groups take longest and come first; :func:`tests.support.order.places` says where the others come.
    """
    groups: dict[str, str] = {}
    slow: set[str] = set()
    for item in items:
        fixtures = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
        for name in ("triton", "mesh"):
            if name in fixtures and fixtures[name][-1].scope == "session":
                groups[_file(item)] = name
        if mark := item.get_closest_marker("xdist_group"):  # of a file that says so itself
            groups[_file(item)] = mark.args[0]
        if item.get_closest_marker("slow"):
            slow.add(_file(item))
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups.get(_file(item), _file(item))))
    folders = {_file(item): item.path.relative_to(TESTS).parts[0] for item in items}
    files = {one: groups[one] if groups.get(one) in SERVERS else folder for one, folder in folders.items()}
    place = places(files, slow)
    items.sort(key=lambda item: (place[_file(item)], _file(item) not in slow))


def pytest_collection_finish() -> None:
    """Look for cycles again, among what the tests make."""
    gc.freeze()
    gc.enable()


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end why tests ran again, and in one line what was not run for want of which packages."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.write_sep("_", f"ran again: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext[-_SAID:])
    reports = terminalreporter.stats.get("skipped", [])
    if line := missing(str(report.longrepr[2]) for report in reports if isinstance(report.longrepr, tuple)):
        terminalreporter.write_line(line)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server of one module."""
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def transformers_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TransformersServer]:
    """An OpenAI-compatible server of this session: ``tests/llama`` and ``tests/llama-chat``."""
    from tests.support import tiny_models  # torch, which most tests do without
    from tests.support.transformers_server import TransformersServer

    models = tmp_path_factory.mktemp("openai-models")
    with TransformersServer(
        tmp_path_factory.mktemp("transformers-server"),
        {
            "tests/llama": tiny_models.llama(models / "llama"),
            "tests/llama-chat": tiny_models.llama(models / "llama-chat", chat=True),
        },
    ) as server:
        yield server


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A real vLLM of this session, with a chat model; for completions, too."""
    from tests.support import real_vllm, tiny_models  # torch, which most tests do without

    folder = tmp_path_factory.mktemp("vllm")
    model = tiny_models.llama(folder / "model", chat=True, head_size=real_vllm.HEAD_SIZE)
    with real_vllm.serving(model, folder) as server:
        yield server


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A Triton server of this session: ``t5``, ``bart``, ``llama``, ``llama-chat`` and ``evenmesh-pointer``."""
    from tests.support import tiny_models  # torch, which most tests do without
    from tests.support.triton_server import TritonServer, skip_where_impossible

    skip_where_impossible()
    models = tmp_path_factory.mktemp("triton-models")
    with TritonServer(
        tmp_path_factory.mktemp("triton"),
        {
            "t5": tiny_models.t5(models / "t5"),
            "bart": tiny_models.bart(models / "bart"),
            "llama": tiny_models.llama(models / "llama"),
            "llama-chat": tiny_models.llama(models / "llama-chat", chat=True),
        },
        bundled=True,
        settings={"EVENMESH_TRITON_EMBEDDERS": "minilm="},
    ) as server:
        yield server
