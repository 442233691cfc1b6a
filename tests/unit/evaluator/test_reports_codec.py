"""Pages of lists, and reports as they go out."""

from __future__ import annotations

import pytest

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_evaluator.reports import codec as reports


def test_a_page_token_comes_back_as_it_went() -> None:
    token = reports.runs([], 1234, "acme").next_page_token
    assert reports.page(pb.ListRunsRequest(page_token=token), "acme") == (1234, reports.DEFAULT_PAGE)
    token = reports.configurations([], 5, "acme").next_page_token
    assert reports.page(pb.ListConfigurationsRequest(page_token=token, page_size=2), "acme") == (5, 2)
    assert reports.runs([], None, "acme").next_page_token == ""


def test_a_page_token_of_another_tenant_or_list_is_refused() -> None:
    token = reports.runs([], 3, "acme").next_page_token
    with pytest.raises(InvalidField) as caught:
        reports.page(pb.ListRunsRequest(page_token=token), "other")
    assert caught.value.field == "page_token"
    with pytest.raises(InvalidField):
        reports.page(pb.ListConfigurationsRequest(page_token=token), "acme")


@pytest.mark.parametrize("token", ["x", "%%%", "runs-3", "runs-3-", "runs--1-x", "3", "é"])
def test_a_made_up_page_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidField) as caught:
        reports.page(pb.ListRunsRequest(page_token=token), "acme")
    assert caught.value.field == "page_token"


@pytest.mark.parametrize("size", [0, 1001])
def test_page_size_bounds(size: int) -> None:
    with pytest.raises(InvalidField) as caught:
        reports.page(pb.ListRunsRequest(page_size=size), "acme")
    assert caught.value.field == "page_size"
