"""Pages of the contract, from a descriptor set of protos/ with its comments."""

from __future__ import annotations

import importlib.resources
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from grpc_tools import protoc

from evenmesh.common.v1.bounds_pb2 import FieldBounds, bounds
from evenmesh.common.v1.method_options_pb2 import METERING_TOKENS, MethodFacts, Role, facts

Place = tuple[int, ...]
"""Where a declaration stands in its file: the path of SourceCodeInfo.Location."""

_Message = tuple[Place, str, DescriptorProto]
_TYPES = FieldDescriptorProto.DESCRIPTOR.enum_types_by_name["Type"].values
_SCALARS = {value.number: value.name.removeprefix("TYPE_").lower() for value in _TYPES}


def pages(root: Path) -> dict[str, str]:
    """Return a page for each proto package of evenmesh, by path."""
    files = [one for one in _descriptors(root / "protos") if one.package.startswith("evenmesh.")]
    where = {name: one.package for one in files for name in _names(one)}
    found: dict[str, str] = {}
    for one in sorted(files, key=lambda one: one.name):
        start = found.get(_path(one.package), f"# {one.package}\n")
        found[_path(one.package)] = start + "\n" + "\n".join(_File(one, where).lines()) + "\n"
    return found


def _path(package: str) -> str:
    return f"reference/protos/{package.split('.')[1]}.md"


def _descriptors(protos: Path) -> list[FileDescriptorProto]:
    sources = sorted(str(path.relative_to(protos)) for path in protos.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set.binpb"
        include = importlib.resources.files("grpc_tools") / "_proto"
        options = [f"-I{protos}", f"-I{include}", "--include_source_info", f"--descriptor_set_out={out}"]
        if protoc.main(["protoc", *options, *sources]) != 0:
            raise RuntimeError("protoc cannot read protos/")
        return list(descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file)


def _messages(file: FileDescriptorProto) -> Iterator[_Message]:
    """Yield every message with its place and its name, those inside others after them."""

    def below(place: Place, prefix: str, one: DescriptorProto) -> Iterator[_Message]:
        if not one.options.map_entry:
            yield place, f"{prefix}{one.name}", one
            for number, inner in enumerate(one.nested_type):
                yield from below((*place, 3, number), f"{prefix}{one.name}.", inner)

    for number, one in enumerate(file.message_type):
        yield from below((4, number), "", one)


def _enums(file: FileDescriptorProto) -> Iterator[tuple[Place, str, EnumDescriptorProto]]:
    """Yield every enum with its place and its name."""
    for place, name, message in _messages(file):
        for number, one in enumerate(message.enum_type):
            yield (*place, 4, number), f"{name}.{one.name}", one
    for number, one in enumerate(file.enum_type):
        yield (5, number), one.name, one


def _names(file: FileDescriptorProto) -> Iterator[str]:
    for _, name, _one in (*_messages(file), *_enums(file)):
        yield f"{file.package}.{name}"


class _File:
    """Writes one proto file as Markdown.

    Args:
        file: the file, with its source info.
        where: the package of every message and enum.
    """

    def __init__(self, file: FileDescriptorProto, where: dict[str, str]) -> None:
        self._file = file
        self._where = where
        self._comments = {
            tuple(one.path): one.leading_comments or one.trailing_comments
            for one in file.source_code_info.location
        }

    def lines(self) -> Iterator[str]:
        file = self._file
        yield f"From `{file.name}`. {self._text((2,))}"
        for number, service in enumerate(file.service):
            yield from ("", self._heading(2, service.name), "", self._text((6, number)), "")
            yield from ("| method | request → reply | | roles and facts |", "|---|---|---|---|")
            for place, method in enumerate(service.method):
                request = ("stream " if method.client_streaming else "") + self._link(method.input_type)
                reply = ("stream " if method.server_streaming else "") + self._link(method.output_type)
                text, stated = self._cell((6, number, 2, place)), _facts(method.options.Extensions[facts])
                yield f"| `{method.name}` | {request} → {reply} | {text} | {stated} |"
        for path, name, message in _messages(file):
            yield from ("", self._heading(3, name), "", self._text(path), "")
            if message.field:
                yield from ("| field | type | |", "|---|---|---|")
            for place, field in enumerate(message.field):
                kind = self._type(field, message)
                text = " ".join((self._cell((*path, 2, place)), *_stated(field.options.Extensions[bounds])))
                yield f"| `{field.name}` = {field.number} | {kind} | {text} |"
        for path, name, enum in _enums(file):
            yield from ("", self._heading(3, name), "", self._text(path), "", "| value | |", "|---|---|")
            for place, value in enumerate(enum.value):
                yield f"| `{value.name}` = {value.number} | {self._cell((*path, 2, place))} |"

    def _heading(self, level: int, name: str) -> str:
        return f"{'#' * level} {name} {{#{_anchor(f'{self._file.package}.{name}')}}}"

    def _text(self, place: Place) -> str:
        lines = self._comments.get(place, "").strip().splitlines()
        return re.sub(r"<(?=\w)", "&lt;", "\n".join(line.strip() for line in lines))

    def _cell(self, place: Place) -> str:
        return re.sub(r"(?<!\\)\|", r"\|", " ".join(self._text(place).split()))

    def _type(self, field: FieldDescriptorProto, message: DescriptorProto) -> str:
        for entry in message.nested_type:
            if entry.options.map_entry and field.type_name.endswith(f".{entry.name}"):
                key, value = map(self._plain, entry.field)
                return f"map of {key} to {value}"
        kind = self._plain(field)
        if field.label == FieldDescriptorProto.LABEL_REPEATED:
            return f"repeated {kind}"
        if field.proto3_optional:
            return f"optional {kind}"
        if field.HasField("oneof_index"):
            return f"{kind}, of `{message.oneof_decl[field.oneof_index].name}`"
        return kind

    def _plain(self, field: FieldDescriptorProto) -> str:
        return self._link(field.type_name) if field.type_name else f"`{_SCALARS[field.type]}`"

    def _link(self, kind: str) -> str:
        name = kind.lstrip(".")
        if name not in self._where:
            return f"`{name}`"
        package = self._where[name]
        page = "" if package == self._file.package else Path(_path(package)).name
        return f"[{name.removeprefix(f'{package}.')}]({page}#{_anchor(name)})"


def _facts(of_method: MethodFacts) -> str:
    """Return the roles of a method and its other facts as one cell."""
    roles = ", ".join(Role.Name(role).removeprefix("ROLE_").lower() for role in of_method.roles)
    stated = ["retryable"] * of_method.retryable
    stated += [f"request at most {of_method.max_request_bytes:,} bytes"]
    stated += ["counts tokens"] * (of_method.metering == METERING_TOKENS)
    stated += ["audited"] * of_method.audited
    return f"{roles or 'admin'}; {', '.join(stated)}"


def _stated(of_field: FieldBounds) -> list[str]:
    """Return the bounds that a field states; none if it states none."""
    stated = [f"{one.name}: {value:,}" for one, value in of_field.ListFields()]
    return [f"`{', '.join(stated)}`"] if stated else []


def _anchor(name: str) -> str:
    return name.removeprefix("evenmesh.").replace(".", "-").lower()
