"""What is said of a TOML file that is wrong."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import BaseModel, Field, ValidationError

from evenmesh_training.toml_faults import faults_of


class Entry(BaseModel):
    """An entry of a list."""

    ratio: Annotated[float, Field(gt=0)]


class File(BaseModel):
    """A file with entries."""

    source: Annotated[tuple[Entry, ...], Field(min_length=1)]


@pytest.mark.parametrize(
    ("given", "faults"),
    [
        ({"source": [{"ratio": -1}]}, ["source.0.ratio: Input should be greater than 0"]),
        ({"source": []}, ["source: Tuple should have at least 1 item after validation, not 0"]),
        ({}, ["source: Field required"]),
    ],
)
def test_an_entry_that_is_wrong_does_not_make_its_list_too_short(given: object, faults: list[str]) -> None:
    with pytest.raises(ValidationError) as error:
        File.model_validate(given)
    assert faults_of(error.value, "file") == faults
