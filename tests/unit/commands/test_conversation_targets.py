"""Targets as the command line says them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from evenmesh import Client
from evenmesh.commands.failure import CommandError
from evenmesh.commands.targets import attributes_json, read_target
from evenmesh.types.conversation import GroupTarget
from evenmesh.types.passage import Passage
from evenmesh_lab.files import read_attributes


class Corpus:
    """A client of a collection of four passages."""

    def passages(self, name: str) -> Iterator[Passage]:
        for place, group in enumerate(["b", "a", "a", "a;b"]):
            yield Passage(f"{name}{place}", "text", "", {"group": group, "only": "one"})


MESH = cast(Client, Corpus())


@pytest.mark.parametrize(
    ("spec", "groups", "shares", "divergence"),
    [
        ("group", ("a", "b"), None, "jsd"),
        ("group=uniform", ("a", "b"), None, "jsd"),
        ("group=collection@nmd", ("a", "b"), (2.5 / 4, 1.5 / 4), "nmd"),
        ("group=a:3,b:1", ("a", "b"), (3 / 4, 1 / 4), "jsd"),
        ("part=start:1, middle:1,end:2@rnod", ("start", "middle", "end"), (1 / 4, 1 / 4, 2 / 4), "rnod"),
        ('group={"a, or b: both": 1, "c": 1}', ("a, or b: both", "c"), (1 / 2, 1 / 2), "jsd"),
    ],
)
def test_a_target_is_read(spec: str, groups: Any, shares: Any, divergence: Any) -> None:
    attribute = spec.partition("=")[0]
    assert read_target(spec, MESH, "c") == GroupTarget(attribute, groups, shares, divergence)


@pytest.mark.parametrize(
    "spec",
    ["", "a b", "group=a", "group=a:1", "group=a:x,b:1", "group=a:1,a:2", "group=a:-1,b:2", "group=a:0,b:0",
     "group=[1]", "group={broken", "only", "none"],
)  # fmt: skip
def test_what_is_no_target_is_reported(spec: str) -> None:
    with pytest.raises(CommandError) as caught:
        read_target(spec, MESH, "c")
    assert caught.value.status == 2


def test_groups_are_looked_up_in_a_collection_only() -> None:
    with pytest.raises(CommandError, match="needs --collection"):
        read_target("group", MESH, None)


def test_targets_are_written_as_eval_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(
        attributes_json([GroupTarget("g", ("a", "b")), GroupTarget("p", ("x", "y"), (0.25, 0.75), "nmd")])
    )
    read = read_attributes(path)
    assert list(read["g"].gold) == [1 / 2, 1 / 2]
    assert (list(read["p"].gold), read["p"].divergence) == ([0.25, 0.75], "nmd")
    assert set(json.loads(path.read_text())) == {"g", "p"}
