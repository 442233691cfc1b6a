"""Errors that are sent to another process, as pools of processes do."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import grpc
import pytest

from evenmesh.wire import errors
from evenmesh.wire.errors import InvalidField, MeshError

RAISED = [
    InvalidField("k", "must be above 0"),
    errors.Overloaded("full", 2.5),
    errors.PermissionDenied("no", field="agent"),
    errors.Internal("7f"),
    MeshError(grpc.StatusCode.ABORTED, "RACE", "again"),
    errors.restored(grpc.StatusCode.NOT_FOUND, "GONE", "there is no run", "run_id"),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_a_copy_of_an_error_says_the_same(error: MeshError) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301 - our own bytes
        assert type(again) is type(error)
        assert (vars(again), again.args, str(again)) == (vars(error), error.args, str(error))
    assert vars(copy.copy(error)) == vars(error)


def _fail() -> None:
    raise InvalidField("k", "must be above 0")


def test_a_pool_of_processes_survives_an_error_of_the_mesh() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(InvalidField, match="k: must be above 0"):
            pool.submit(_fail).result()
        assert pool.submit(abs, -1).result() == 1
