"""Write the comments of the protos for the OpenAPI document (``make proto``); ``--check`` only compares.

The stubs do not have the comments. ``evenmesh_gateway/descriptions.json`` has them by the full name of the
service, method, message, field, enum or value.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

PROTOS = Path(__file__).parents[2] / "protos"
TARGET = Path(__file__).parent / "evenmesh_gateway" / "descriptions.json"


def main(check: bool) -> int:
    """Write the comments, or compare them; return the exit status."""
    text = json.dumps(_comments(), ensure_ascii=False, indent=0, sort_keys=True) + "\n"
    if not check:
        TARGET.write_text(text, "utf-8")
        return 0
    stale = not TARGET.exists() or TARGET.read_text("utf-8") != text
    if stale:
        sys.stderr.write(f"{TARGET.name} is not what protos/ says: make proto\n")
    return int(stale)


def _comments() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set.binpb"
        files = sorted(path.relative_to(PROTOS).as_posix() for path in PROTOS.glob("evenmesh/**/*.proto"))
        compiler = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--include_source_info"]
        subprocess.run([*compiler, f"--descriptor_set_out={out}", *files], cwd=PROTOS, check=True)  # noqa: S603
        found = FileDescriptorSet.FromString(out.read_bytes())
    return {name: comment for file in found.file for name, comment in _of_file(file)}


def _of_file(file: FileDescriptorProto) -> Iterator[tuple[str, str]]:
    for location in file.source_code_info.location:
        comment = " ".join(location.leading_comments.split())
        if comment and len(location.path) > 1:
            yield f"{file.package}.{_name(file, location.path)}", comment


def _name(file: FileDescriptorProto, path: Any) -> str:
    """Return the name of what a path of numbers leads to: of a field of a descriptor, then its place."""
    names, there = [], file
    for number, place in zip(path[::2], path[1::2], strict=True):
        there = getattr(there, there.DESCRIPTOR.fields_by_number[number].name)[place]
        names.append(there.name)
    return ".".join(names)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
