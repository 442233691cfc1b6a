"""What the source may not do, whoever asks: unpickle, run what came from elsewhere, unpack archives blindly."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("clients", "libs", "mesh", "models", "orchestrator", "services", "studies", "training")
SOURCES = tuple(
    path
    for folder in ROOMS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
)
UNPICKLERS = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "jsonpickle",
}
ARCHIVES = {"zipfile", "tarfile"}
CHECK_ARCHIVES = {
    "libs/documents/evenmesh_documents/origins/archives.py",
    "libs/documents/evenmesh_documents/readers/archive.py",
}
"""They bound number, sizes and ratio, and unpack in memory (tests/unit/documents, test_archives and test_parsers)."""


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


def place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


@cache
def imported() -> tuple[tuple[str, str], ...]:
    return tuple(_imported())


def _imported() -> Iterator[tuple[str, str]]:
    for path in SOURCES:
        for node in nodes(path):
            if isinstance(node, ast.Import):
                for one in node.names:
                    yield place(path, node), one.name.split(".")[0]
            elif isinstance(node, ast.ImportFrom) and node.module not in (None, "pickle") and not node.level:
                yield place(path, node), str(node.module).split(".")[0]


@cache
def constants() -> dict[str, dict[str, ast.expr]]:
    """Return the dictionaries with keys of text that modules name in capitals."""
    found = {}
    for path in SOURCES:
        for node in tree(path).body:
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict)):
                continue
            if isinstance(node.target, ast.Name) and node.target.id.isupper():
                found[node.target.id] = {
                    str(key.value): value
                    for key, value in zip(node.value.keys, node.value.values, strict=True)
                    if isinstance(key, ast.Constant)
                }
    return found


@cache
def calls() -> tuple[tuple[str, str, dict[str, ast.expr]], ...]:
    """Where, what by its dotted name, and its keywords, those of named dictionaries included."""
    return tuple(_calls())


def _calls() -> Iterator[tuple[str, str, dict[str, ast.expr]]]:
    for path in SOURCES:
        for node in nodes(path):
            if isinstance(node, ast.Call):
                keywords = {one.arg: one.value for one in node.keywords if one.arg is not None}
                for one in node.keywords:
                    if one.arg is None and isinstance(one.value, ast.Name):
                        keywords |= constants().get(one.value.id, {})
                yield place(path, node), ast.unparse(node.func), keywords


def says(keywords: dict[str, ast.expr], name: str, value: object) -> bool:
    given = keywords.get(name)
    return isinstance(given, ast.Constant) and given.value is value


def test_the_whole_source_is_looked_at() -> None:
    assert set(ROOMS) <= {path.relative_to(ROOT).parts[0] for path in SOURCES}
    assert len(SOURCES) > 300


def test_nothing_unpickles() -> None:
    assert [one for one in imported() if one[1] in UNPICKLERS] == []
    # The name of what torch raises over such a file is all that anyone takes of pickle.
    taken = {
        one.name
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and node.module == "pickle"
        for one in node.names
    }
    assert taken <= {"UnpicklingError"}


def test_torch_loads_weights_only() -> None:
    loads = [
        (where, keywords)
        for where, name, keywords in calls()
        if name in ("torch.load", "load_state_dict_from_url")
    ]
    assert loads, "checkpoints are read by torch.load"
    assert [where for where, keywords in loads if not says(keywords, "weights_only", True)] == []


def test_numpy_loads_no_objects() -> None:
    loads = [
        (where, keywords) for where, name, keywords in calls() if name in ("np.load", "numpy.load", "np.save")
    ]
    assert loads, "vectors are read by np.load"
    assert [where for where, keywords in loads if not says(keywords, "allow_pickle", False)] == []


def test_no_model_brings_code() -> None:
    loading = re.compile(
        r"(^|\.)(Auto\w+\.from_pretrained|auto\.from_pretrained|SentenceTransformer|CrossEncoder)$"
    )
    loads = [(where, keywords) for where, name, keywords in calls() if loading.search(name)]
    assert len(loads) >= 8
    assert [where for where, keywords in loads if not says(keywords, "trust_remote_code", False)] == []
    # Nor can it be asked for: no proto, no setting and no option has such a name.
    for path in (*(ROOT / "protos").rglob("*.proto"), *SOURCES):
        for line in path.read_text(encoding="utf-8").splitlines():
            if "trust_remote_code" in line and not line.lstrip().startswith(("#", '"', "*")):
                assert re.search(r'trust_remote_code(=|": )False', line), (path, line)


def test_what_is_fetched_of_a_hub_is_no_code_and_no_pickle() -> None:
    from evenmesh_kit.compute import model_files as models

    for pattern in models.FETCHED:
        assert not re.search(r"\.(bin|pt|pth|pkl|pickle|py|ckpt|h5|msgpack)$", pattern), pattern


def test_nothing_is_evaluated() -> None:
    evaluating = {
        "eval",
        "exec",
        "compile",
        "os.system",
        "os.popen",
        "yaml.load",
        "yaml.unsafe_load",
        "__import__",
    }
    assert [(where, name) for where, name, _ in calls() if name in evaluating] == []
    assert [where for where, _, keywords in calls() if says(keywords, "shell", True)] == []


def test_archives_are_not_unpacked_blindly() -> None:
    opening = {where.rpartition(":")[0] for where, module in imported() if module in ARCHIVES}
    assert opening == CHECK_ARCHIVES
    unpacking = re.compile(r"(extractall|unpack_archive)$")
    assert [(where, name) for where, name, _ in calls() if unpacking.search(name)] == []
