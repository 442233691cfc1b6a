"""``python -m services.reranker.bundled.export``: a trained cross-encoder as it ships, with its card."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from raglab.files.agent_runs import read_agent_runs
from services.reranker.bundled import artifact
from services.reranker.bundled.card import card
from services.reranker.training import start


def main() -> int:
    """Writes weights, configuration and card; prints the weights' size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the last round's model")
    parser.add_argument("--warm-start", type=Path, required=True, help="warm_start.json of its beginning")
    parser.add_argument(
        "--runs", type=Path, action="append", required=True, help="runs.jsonl of a run; repeatable"
    )
    parser.add_argument("--share", type=float, default=1.0, help="that blend was told")
    parser.add_argument(
        "--evaluation", type=Path, action="append", required=True, help="what evaluate printed; repeatable"
    )
    parser.add_argument("--output", type=Path, default=artifact.folder())
    told = parser.parse_args()
    tokenizer, model = start.load(told.model)
    warm = json.loads(told.warm_start.read_text(encoding="utf-8"))
    warm.pop("last_losses", None)
    size = artifact.export(model, tokenizer, told.output, warm_start=warm, share=told.share)
    measured = [json.loads(path.read_text(encoding="utf-8")) for path in told.evaluation]
    runs = read_agent_runs(told.runs)
    text = card(size, tokenizer.model_max_length, warm, runs, measured, share=told.share)
    (told.output / "MODEL_CARD.md").write_text(text, encoding="utf-8")
    sys.stdout.write(f"{size:,} bytes in {told.output}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
