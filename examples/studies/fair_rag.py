"""Run the Fair-RAG study of docs/studies/fair-rag.md, from the data set to its report.

    python examples/studies/fair_rag.py OUT [--questions 100] [--samples 100]

Make the files from the data set multihop-small, start a mesh, fill it, audit three retrievers with the
bundled model at four dials, and stop the mesh. Run the command again after an interruption to resume.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

RETRIEVERS = ("bm25-lucene", "dense", "hybrid")
ALPHAS = "1,2,4,8"
COLLECTION = "multihop"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder for everything")
    parser.add_argument("--questions", type=int, default=100, help="questions to use, the first of 200")
    parser.add_argument("--samples", type=int, default=100, help="rankings at each dial")
    parser.add_argument("--data", type=Path, default=None, help="folder of the data sets")
    options = parser.parse_args()
    data = options.data or Path(
        os.environ.get("EVENMESH_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")
    )
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    files(data / "multihop-small", out, options.questions)
    # In float32 an answer does not depend on its batch, so that a resumed run is identical.
    environment = os.environ | {"EVENMESH_HOME": str(out / "home"), "EVENMESH_GENERATOR_DTYPE": "float32"}

    def evenmesh(*arguments: str) -> int:
        command = [sys.executable, "-m", "evenmesh", *arguments]
        return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - our own command

    try:
        return (
            evenmesh("up", "--detach", "--no-demo", "--port", "0")
            or evenmesh("ingest", str(out / "passages.jsonl"), "--collection", COLLECTION)
            or evenmesh(
                *("audit", str(out / "queries.jsonl"), "--labels", str(out / "labels.qrels")),
                *("--out", str(out / "run"), "--collection", COLLECTION, "-k", "5", "--alpha", ALPHAS),
                *(
                    "--samples",
                    str(options.samples),
                    "--metric",
                    "token_f1",
                    "--seed",
                    "1",
                    "--reranker",
                    "none",
                ),
                *(part for name in RETRIEVERS for part in ("--retriever", name)),
            )
        )
    finally:
        evenmesh("down")


def files(source: Path, out: Path, count: int) -> None:
    """Write questions with answers, labels of their supporting passages, and all passages."""
    questions = rows(source / "questions.jsonl.gz")[:count]
    with (out / "queries.jsonl").open("w") as queries, (out / "labels.qrels").open("w") as labels:
        for one in questions:
            row = {"query_id": one["id"], "question": one["question"], "references": one["answers"]}
            queries.write(json.dumps(row) + "\n")
            labels.writelines(f"{one['id']} 0 {passage} 1\n" for passage in one["gold_passage_ids"])
    with (out / "passages.jsonl").open("w") as passages:
        for one in rows(source / "passages.jsonl.gz"):
            row = {name: one[name] for name in ("id", "title", "text")}
            passages.write(json.dumps(row | {"attributes": {"provider": one["provider"]}}) + "\n")


def rows(path: Path) -> list[dict[str, object]]:
    """Read a file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


if __name__ == "__main__":
    sys.exit(main())
