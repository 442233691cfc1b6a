"""Make a stream for online learning from an agent that the reranker was not trained for.

    python examples/studies/claims_stream.py DATA/climate-fever claims.jsonl
    python -m evenmesh_training.online.study claims.jsonl --model MODEL --out runs.jsonl.gz -b 64 128

The agent looks for evidence for a claim: a sentence is useful (1) if CLIMATE-FEVER's annotators found that it
supports or refutes the claim, else 0. Candidates are the best of BM25. Claims without evidence among them are
left out, as all their rankings are equally good. The seed decides the order of claims.
"""

import argparse
import gzip
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rank_bm25 import BM25Okapi


def records(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder of claims, passages and qrels")
    parser.add_argument("out", type=Path, help="the stream, JSON lines")
    parser.add_argument("--depth", type=int, default=20, help="candidates of a claim")
    parser.add_argument("--claims", type=int, default=0, help="most claims; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    passages = list(records(given.data / "passages.jsonl.gz"))
    useful = {
        (one["query_id"], one["doc_id"])
        for one in records(given.data / "qrels.jsonl.gz")
        if one["relevance"] > 0
    }
    index = BM25Okapi([words(f"{one['title']} {one['text']}") for one in passages])
    claims = list(records(given.data / "claims.jsonl.gz"))
    random.Random(given.seed).shuffle(claims)
    kept = 0
    with given.out.open("w", encoding="utf-8") as stream:
        for claim in claims:
            scores = index.get_scores(words(claim["claim"]))
            places = (-scores).argsort(kind="stable")[: given.depth].tolist()
            best = [passages[at] for at in places]
            usefulness = [float((claim["id"], one["id"]) in useful) for one in best]
            if not any(usefulness):
                continue
            found = [{"id": one["id"], "title": one["title"], "text": one["text"]} for one in best]
            line = {
                "query": claim["claim"],
                "passages": found,
                "usefulness": usefulness,
                "scores": [float(scores[at]) for at in places],
            }
            stream.write(json.dumps(line, ensure_ascii=False) + "\n")
            kept += 1
            if kept == given.claims:
                break
    print(f"{kept} claims with evidence among their {given.depth} candidates")


if __name__ == "__main__":
    main()
