"""Go, its plugins of protoc and its libraries, as Debian has them: where they are, or why not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from evenmesh import Addresses
from tests.support.programs import required

ROOT: Final = Path(__file__).parents[2]
CLIENT: Final = ROOT / "clients" / "go"
MODULE: Final = "example.com/evenmesh"
"""Path under which the client's program imports what is generated."""
LIBRARIES: Final = Path("/usr/share/gocode")
"""Where Debian has the sources of Go's libraries."""
PACKAGES: Final = {
    "google.golang.org/grpc": "golang-google-grpc-dev",
    "google.golang.org/protobuf": "golang-google-protobuf-dev",
    "google.golang.org/genproto": "golang-google-genproto-dev",
    # Version 1.3 has no such file. It satisfies gRPC's package too, and compiles; but it panics at a `oneof`.
    "github.com/golang/protobuf/proto/registry.go": "golang-github-golang-protobuf-1-5-dev",
}
"""Debian's package by what it brings, below the sources."""


def compile_program(folder: Path) -> Path:
    """Generate Go of the protos into a folder, compile the client's program there, and return its path.

    Skip the test where Go or one of its libraries is not installed.
    """
    go = required("go")
    required("protoc-gen-go")
    required("protoc-gen-go-grpc")
    for library, package in PACKAGES.items():
        if not (LIBRARIES / "src" / library).exists():
            pytest.skip(f"{library} is not installed: it comes with Debian's package {package}")
    project = folder / "src" / MODULE
    shutil.copytree(CLIENT / "ask", project / "ask")
    buf = Path(sys.executable).with_name("buf")
    _run([str(buf), "generate", "--template", str(CLIENT / "buf.gen.yaml"), str(ROOT / "protos")], project)
    program = folder / "ask"
    _run(
        [go, "build", "-o", str(program), f"{MODULE}/ask"],
        project,
        GO111MODULE="off",
        GOFLAGS="",
        GOPATH=f"{folder}:{LIBRARIES}",
        # With a compiler of C, Debian's compiled standard library fits; without one it is compiled again.
        CGO_ENABLED="1" if shutil.which("gcc") else "0",
    )
    return program


def said_in_go(
    program: Path, addresses: Addresses, collection: str, question: str, **environment: str
) -> list[dict[str, Any]]:
    """Ask a question by that program and return what it says, one object for each line.

    Args:
        program: what :func:`compile_program` returned.
        addresses: the services; the orchestrator is asked.
        collection: name of the collection.
        question: the question.
        environment: further variables; without them the program has no key and no TLS.
    """
    without = {"EVENMESH_API_KEY": "", "EVENMESH_TLS_CA": ""}
    command = [str(program), addresses.orchestrator, collection, question]
    said = _run(command, program.parent, **{**without, **environment})
    return [json.loads(line) for line in said.splitlines()]


def _run(command: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
