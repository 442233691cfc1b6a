"""Pages of lists, and reports as they go out."""

from __future__ import annotations

import pytest

from meshkit.errors import InvalidField
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from services.evaluator.codec import reports


def test_a_page_token_comes_back_as_it_went() -> None:
    response = reports.runs([], 1234)
    assert reports.page(pb.ListRunsRequest(page_token=response.next_page_token)) == (
        1234,
        reports.DEFAULT_PAGE,
    )
    assert reports.runs([], None).next_page_token == ""


@pytest.mark.parametrize("token", ["x", "%%%", "YmVmb3JlOng=", "YWZ0ZXI6MQ==", "YmVmb3JlOi0x", "é"])
def test_a_made_up_page_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidField) as caught:
        reports.page(pb.ListRunsRequest(page_token=token))
    assert caught.value.field == "page_token"


@pytest.mark.parametrize("size", [0, 1001])
def test_page_size_bounds(size: int) -> None:
    with pytest.raises(InvalidField) as caught:
        reports.page(pb.ListRunsRequest(page_size=size))
    assert caught.value.field == "page_size"
