"""The protos as a contract: every bound is written where callers read it, and the stubs follow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

ROOT = Path(__file__).parents[2]
PROTOS = ROOT / "protos"
STUBS = ROOT / "clients" / "python"
TOOLS = Path(sys.executable).parent
FILES = sorted(path.relative_to(PROTOS).as_posix() for path in PROTOS.glob("evenmesh/**/*.proto"))

F = FieldDescriptorProto
NUMERIC = {
    F.TYPE_DOUBLE,
    F.TYPE_FLOAT,
    F.TYPE_INT32,
    F.TYPE_INT64,
    F.TYPE_UINT32,
    F.TYPE_UINT64,
    F.TYPE_SINT32,
    F.TYPE_SINT64,
    F.TYPE_FIXED32,
    F.TYPE_FIXED64,
    F.TYPE_SFIXED32,
    F.TYPE_SFIXED64,
}


@dataclass(frozen=True)
class Element:
    """Something in a proto that needs a comment.

    Attributes:
        name: full name, with the file for files.
        comment: its leading comment, one line.
        field: its descriptor if it is a field.
        message: name of the message it is in.
    """

    name: str
    comment: str
    field: FieldDescriptorProto | None = None
    message: str = ""


def protoc(*arguments: str) -> None:
    """Runs the compiler over all our protos, with the plugins of this environment."""
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I.", *arguments, *FILES],
        cwd=PROTOS,
        env={**os.environ, "PATH": f"{TOOLS}{os.pathsep}{os.environ.get('PATH', '')}"},
        check=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def elements(tmp_path_factory: pytest.TempPathFactory) -> list[Element]:
    """Everything in our protos that has a place for a comment."""
    out = tmp_path_factory.mktemp("descriptors") / "set.binpb"
    protoc("--include_source_info", f"--descriptor_set_out={out}")
    return [
        element
        for file in FileDescriptorSet.FromString(out.read_bytes()).file
        for element in _elements_of(file)
    ]


def _elements_of(file: FileDescriptorProto) -> Iterator[Element]:
    comments = {
        tuple(location.path): " ".join(location.leading_comments.split())
        for location in file.source_code_info.location
    }

    def number(descriptor: type, name: str) -> int:
        return int(descriptor.DESCRIPTOR.fields_by_name[name].number)  # type: ignore[attr-defined]

    def of_enum(enum: EnumDescriptorProto, path: tuple[int, ...], within: str) -> Iterator[Element]:
        name = f"{within}.{enum.name}"
        yield Element(name, comments.get(path, ""))
        for index, value in enumerate(enum.value):
            place = (*path, number(EnumDescriptorProto, "value"), index)
            yield Element(f"{name}.{value.name}", comments.get(place, ""))

    def of_message(message: DescriptorProto, path: tuple[int, ...], within: str) -> Iterator[Element]:
        if message.options.map_entry:  # written by the compiler, for a map field
            return
        name = f"{within}.{message.name}"
        yield Element(name, comments.get(path, ""))
        for index, field in enumerate(message.field):
            place = (*path, number(DescriptorProto, "field"), index)
            yield Element(f"{name}.{field.name}", comments.get(place, ""), field, message.name)
        synthetic = {field.oneof_index for field in message.field if field.proto3_optional}
        for index, oneof in enumerate(message.oneof_decl):
            if index not in synthetic:
                place = (*path, number(DescriptorProto, "oneof_decl"), index)
                yield Element(f"{name}.{oneof.name}", comments.get(place, ""))
        for index, nested in enumerate(message.nested_type):
            yield from of_message(nested, (*path, number(DescriptorProto, "nested_type"), index), name)
        for index, enum in enumerate(message.enum_type):
            yield from of_enum(enum, (*path, number(DescriptorProto, "enum_type"), index), name)

    package = file.package
    yield Element(file.name, comments.get((number(FileDescriptorProto, "package"),), ""))
    for index, message in enumerate(file.message_type):
        yield from of_message(message, (number(FileDescriptorProto, "message_type"), index), package)
    for index, enum in enumerate(file.enum_type):
        yield from of_enum(enum, (number(FileDescriptorProto, "enum_type"), index), package)
    for index, service in enumerate(file.service):
        place = (number(FileDescriptorProto, "service"), index)
        yield Element(f"{package}.{service.name}", comments.get(place, ""))
        for at, method in enumerate(service.method):
            yield Element(f"{package}.{service.name}.{method.name}", comments.get((*place, 2, at), ""))


def _numeric(elements: list[Element]) -> list[tuple[Element, FieldDescriptorProto]]:
    return [
        (element, element.field)
        for element in elements
        if element.field is not None and element.field.type in NUMERIC
    ]


def test_the_walk_sees_the_contract(elements: list[Element]) -> None:
    names = {element.name for element in elements}
    assert {
        "evenmesh.common.v1.Passage.id",
        "evenmesh.common.v1.Degradation.Action.ACTION_NO_CONTEXT",
        "evenmesh.retriever.v1.RetrieveRequest.source",
        "evenmesh.orchestrator.v1.OrchestratorService.Ask",
    } <= names
    assert len(_numeric(elements)) > 50


def test_everything_is_commented(elements: list[Element]) -> None:
    assert [element.name for element in elements if not element.comment] == []


def test_every_number_has_its_unit_and_range(elements: list[Element]) -> None:
    lacking = [
        element.name
        for element, _ in _numeric(elements)
        if not re.search(r"\bUnit(:| of)", element.comment) or "Range:" not in element.comment
    ]
    assert lacking == []


def test_every_optional_number_of_a_request_has_its_default(elements: list[Element]) -> None:
    requests = _reachable_from_requests(elements)
    lacking = [
        element.name
        for element, field in _numeric(elements)
        if field.proto3_optional and element.name.rpartition(".")[0] in requests
        if "Default:" not in element.comment and "unset" not in element.comment.lower()
    ]
    assert lacking == []


def _reachable_from_requests(elements: list[Element]) -> set[str]:
    """Full names of the request messages and of the messages they are made of."""
    parts: dict[str, set[str]] = {}
    for element in elements:
        if element.field is not None:
            message = element.name.rpartition(".")[0]
            parts.setdefault(message, set())
            if element.field.type == F.TYPE_MESSAGE:
                parts[message].add(element.field.type_name.lstrip("."))
    found = {message for message in parts if message.endswith("Request")}
    todo = list(found)
    while todo:
        for part in parts.get(todo.pop(), set()) - found:
            found.add(part)
            todo.append(part)
    return found


def test_a_default_is_within_its_range(elements: list[Element]) -> None:
    seen = 0
    for element, _ in _numeric(elements):
        bounds = re.search(r"Range: [\[(](-?[\d.]+), (-?[\d.]+)[\])]", element.comment)
        default = re.search(r"Default: (-?\d+(?:\.\d+)?)(?=[.,; ]|$)", element.comment)
        if bounds is not None and default is not None:
            seen += 1
            assert float(bounds[1]) <= float(default[1]) <= float(bounds[2]), element.name
    assert seen > 5


def test_the_stubs_are_what_the_protos_say(tmp_path: Path) -> None:
    protoc(
        f"--python_out={tmp_path}",
        f"--mypy_out=quiet:{tmp_path}",
        f"--grpc_python_out={tmp_path}",
        f"--mypy_grpc_out=quiet:{tmp_path}",
    )
    made = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*_pb2*.py*")}
    committed = {
        path.relative_to(STUBS).as_posix(): path.read_bytes()
        for pattern in ("*_pb2*.py", "*_pb2*.pyi")
        for path in (STUBS / "evenmesh").rglob(pattern)
    }
    assert sorted(made) == sorted(committed)
    assert [name for name in sorted(made) if made[name] != committed[name]] == []


@pytest.mark.parametrize("command", [["lint"], ["format", "--diff", "--exit-code"]], ids=lambda c: c[0])
def test_buf_has_nothing_to_say(command: list[str]) -> None:
    done = subprocess.run(
        [str(TOOLS / "buf"), *command, str(PROTOS)], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
