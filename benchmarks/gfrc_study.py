"""The study of conversations' fairness: ``topics`` writes what is asked, ``tables`` measures what was said.

``python -m benchmarks.gfrc_study topics OUT`` writes passages and topics of both data sets, which ``evenmesh
ingest`` and ``evenmesh harvest`` read; docs/studies/gfrc.md has the commands. ``… tables RUNS`` reads the
folders of the harvests, RUNS/doc2dial and RUNS/grep-biasir, and writes the tables and the page.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.stats import kendalltau

from benchmarks import command, csv_rows
from benchmarks.page import fill, table
from benchmarks.shared_data import folder, pieces, rows
from evenmesh_core.arrays import FloatArray
from evenmesh_core.group_fairness import Attribute, Transcript
from evenmesh_core.group_fairness import conversation as gfrc
from evenmesh_core.intervals import student_interval
from evenmesh_core.proportions import paired_difference_interval, wilson_interval
from evenmesh_core.significance import holm, mcnemar
from evenmesh_lab.files import read_attributes, read_conversations
from evenmesh_lab.files.plans import described, read_plan
from evenmesh_lab.studies import Bootstrap, conversation

OUT: Final = Path(__file__).resolve().parents[1] / "docs" / "studies" / "gfrc"
SETS: Final = {"doc2dial": "doc2dial-val", "grep-biasir": "grep-biasir"}
"""Folder of a harvest, and the name of its data in the plan."""
TOPICS: Final = 120
TURNS: Final = 4
FIXED: Final = "ranked"
NOISE: Final = (0.05, 0.1, 0.2)
DRAWN: Final = 200
SEED: Final = 0


def main() -> None:
    """Write topics, or tables."""
    parser = command.parser("gfrc_study", __doc__)
    parser.add_argument("what", choices=("topics", "tables"))
    parser.add_argument("folder", type=Path, help="folder of the topics, or of the harvests")
    given = parser.parse_args()
    if given.what == "topics":
        given.folder.mkdir(parents=True, exist_ok=True)
        doc2dial(given.folder)
        grep_biasir(given.folder)
        return
    conversations = [row for name in SETS for row in measured(name, given.folder / name)]
    csv_rows.write(OUT / "conversations.csv", conversations)
    csv_rows.write(
        OUT / "annotators.csv", [row for name in SETS for row in annotated(name, given.folder / name)]
    )
    fill(OUT.with_suffix(".md"), tables())


def doc2dial(out: Path) -> None:
    """Write doc2dial-val as passages of about 100 words, and conversations of its users as topics."""
    data = folder("doc2dial-val")
    chunks: dict[str, list[str]] = defaultdict(list)
    passages = []
    for doc in rows(data / "documents.jsonl.gz"):
        texts = pieces(doc["text"])
        for part, text in enumerate(texts):
            name = f"{doc['id']}-{part:03d}"
            chunks[doc["id"]].append(name)
            place = ("start", "middle", "end")[3 * part // len(texts)]
            passages.append(
                {
                    "id": name,
                    "title": re.sub(r"#\d+_\d+$", "", doc["title"]),
                    "text": text,
                    "attributes": {"provider": doc["provider"], "part": place},
                }
            )
    held: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for turn in rows(data / "turns.jsonl.gz"):
        held[turn["conversation_id"]].append(turn)
    topics = []
    long = [name for name, turns in held.items() if len(turns) >= TURNS]
    for name in sorted(random.Random(SEED).sample(long, TOPICS)):
        turns = held[name][:TURNS]
        said = [[one["text"] for one in turn["history"] if one["role"] == "user"][-1] for turn in turns]
        useful = [[one for gold in turn["gold_passage_ids"] for one in chunks[gold]] for turn in turns]
        topics.append({"topic": name[:12], "turns": said, "useful": useful})
    _lines(out / "doc2dial-passages.jsonl", passages)
    _lines(out / "doc2dial.jsonl", topics)


def grep_biasir(out: Path) -> None:
    """Write grep-biasir as passages with the gender of their wording, and its queries as topics."""
    data = folder("grep-biasir")
    passages = [
        {
            "id": doc["id"],
            "title": doc["title"],
            "text": doc["text"],
            "attributes": {"group": "female;male" if doc["group"] == "both" else doc["group"]},
        }
        for doc in rows(data / "documents.jsonl.gz")
    ]
    useful: dict[str, list[str]] = defaultdict(list)
    for row in rows(data / "qrels.jsonl.gz"):
        if int(row["relevance"]) > 0:
            useful[row["query_id"]].append(row["doc_id"])
    queries = [one for one in rows(data / "queries.jsonl.gz") if useful[one["id"]]]
    topics = [
        {"topic": one["id"], "question": one["query"], "useful": [useful[one["id"]]] * 2}
        for one in sorted(queries, key=lambda one: int(one["id"][1:]))
    ]
    _lines(out / "grep-biasir-passages.jsonl", passages)
    _lines(out / "grep-biasir.jsonl", topics)


def systems(run: Path) -> tuple[dict[str, list[Transcript]], dict[str, Attribute]]:
    """Return the transcripts of a harvest by system, the deterministic ranking first, and the targets."""
    found = {
        path.name.removesuffix("-trial1.txt"): list(read_conversations(path))
        for path in sorted((run / "transcripts").glob("*-trial1.txt"))
    }
    ordered = dict(sorted(found.items(), key=lambda one: (one[0] != FIXED, one[0])))
    return ordered, dict(read_attributes(run / "attributes.json"))


def measured(name: str, run: Path) -> list[dict[str, str]]:
    """Return a row for each conversation: R and GF."""
    transcripts, attributes = systems(run)
    study = conversation.measure(transcripts, attributes, bootstrap=Bootstrap(num_resamples=100))
    return [
        {
            "data": name,
            "system": row.system,
            "topic": row.topic,
            "relevance": f"{row.relevance:.6g}",
            "group_fairness": f"{row.group_fairness:.6g}",
        }
        for row in study.rows
    ]


def annotated(name: str, run: Path) -> list[dict[str, str]]:
    """Return a row for each rate of errors: how alike two simulated annotators are, and their orders."""
    transcripts, attributes = systems(run)
    rng = np.random.default_rng(SEED)
    found = []
    for rate in NOISE:
        kappas, taus = [], []
        for _ in range(DRAWN):
            pair = [{system: _turned(some, rate, rng) for system, some in transcripts.items()} for _ in "ab"]
            kappas.append(_kappa(*(_labels(one) for one in pair)))
            fair = [_fairness(one, attributes) for one in pair]
            taus.append(float(kendalltau(*fair).statistic))
        found.append(
            {
                "data": name,
                "errors": f"{rate:g}",
                "kappa": f"{np.mean(kappas):.6g}",
                "tau": f"{np.mean(taus):.6g}",
                "tau_low": f"{np.quantile(taus, 0.025):.6g}",
                "tau_high": f"{np.quantile(taus, 0.975):.6g}",
            }
        )
    return found


class Pair(NamedTuple):
    """GF of the same topics by the deterministic ranking and by a dial; 0 where R is 0."""

    fixed: FloatArray
    dial: FloatArray


def split(pair: Pair) -> tuple[float, float]:
    """Return the parts of the difference of mean GF, dial − fixed, by P(R > 0) and by GF where R > 0.

    With p the shares and g the means where R > 0, p₁g₁ − p₀g₀ = (p₁ − p₀)(g₀ + g₁)/2 + (g₁ − g₀)(p₀ + p₁)/2.

    Source: Kitagawa 1955.
    """
    shares = [_share(one) for one in pair]
    means = [float(np.mean(one[one > 0])) if np.any(one > 0) else 0.0 for one in pair]
    by_share = (shares[1] - shares[0]) * (means[0] + means[1]) / 2
    return by_share, (means[1] - means[0]) * (shares[0] + shares[1]) / 2


def levels(found: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return P(R > 0) and GF where R > 0 of each system."""
    cells = []
    for (data, system), fairness in _by_system(found).items():
        relevant = fairness[fairness > 0]
        low, high = wilson_interval(len(relevant), len(fairness))
        interval = student_interval(relevant) if len(relevant) else None
        cells.append(
            {
                "data": data,
                "system": system,
                "conversations": str(len(fairness)),
                "mean GF": f"{np.mean(fairness):.3f}",
                "P(R > 0)": f"{len(relevant) / len(fairness):.3f} [{low:.3f}, {high:.3f}]",
                "GF where R > 0": f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
                if interval
                else "",
            }
        )
    return cells


def differences(found: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return each dial beside the deterministic ranking."""
    scores = _by_system(found)
    cells = []
    for data in SETS:
        dials = {
            system: Pair(scores[data, FIXED], fairness)
            for (of, system), fairness in scores.items()
            if of == data and system != FIXED
        }
        tests = {name: mcnemar(pair.fixed > 0, pair.dial > 0) for name, pair in dials.items()}
        p_values = holm([one.p_value for one in tests.values()]).tolist()
        for (name, pair), p_value in zip(dials.items(), p_values, strict=True):
            test = tests[name]
            low, high = paired_difference_interval(test.only_second, test.only_first, len(pair.fixed))
            both = (pair.fixed > 0) & (pair.dial > 0)
            fair = student_interval((pair.dial - pair.fixed)[both]) if both.sum() > 1 else None
            by_share, by_fairness = split(pair)
            drop = by_share + by_fairness
            cells.append(
                {
                    "data": data,
                    "system": name,
                    "P(R > 0) − ranked": f"{_signed(_share(pair.dial) - _share(pair.fixed))} "
                    f"[{_signed(low)}, {_signed(high)}]",
                    "p, Holm": f"{p_value:.3f}" if p_value >= 0.001 else "< 0.001",
                    "topics relevant in both": str(int(both.sum())),
                    "GF there − ranked": f"{_signed(fair.value)} [{_signed(fair.low)}, {_signed(fair.high)}]"
                    if fair
                    else "",
                    "mean GF − ranked": _signed(drop),
                    "of it by P(R > 0)": _signed(by_share),
                    "by GF": _signed(by_fairness),
                }
            )
    return cells


def agreement(found: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return how alike two simulated annotators are."""
    return [
        {
            "data": row["data"],
            "errors of each": f"{float(row['errors']):.0%}".replace("%", " %"),
            "κ of their labels": f"{float(row['kappa']):.2f}",
            "τ of their orders of the systems": f"{float(row['tau']):.2f} "
            f"[{float(row['tau_low']):.2f}, {float(row['tau_high']):.2f}]",
        }
        for row in found
    ]


def tables() -> dict[str, str]:
    """Return every table of the page by its name there."""
    conversations = csv_rows.read(OUT / "conversations.csv")
    asked = {
        SETS[data]: len(fairness)
        for (data, system), fairness in _by_system(conversations).items()
        if system == FIXED
    }
    return {
        "plan": described(read_plan(OUT / "plan.toml"), asked),
        "levels": table(levels(conversations)),
        "differences": table(differences(conversations)),
        "annotators": table(agreement(csv_rows.read(OUT / "annotators.csv"))),
    }


def _by_system(found: Sequence[Mapping[str, str]]) -> dict[tuple[str, str], FloatArray]:
    """Return GF of the topics of each system, in the order of the topics; 0 where R is 0."""
    gathered: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in found:
        fair = float(row["group_fairness"]) if float(row["relevance"]) > 0 else 0.0
        gathered[row["data"], row["system"]][row["topic"]] = fair
    return {key: np.array([value for _, value in sorted(topics.items())]) for key, topics in gathered.items()}


def _turned(some: Sequence[Transcript], rate: float, rng: np.random.Generator) -> list[Transcript]:
    """Return transcripts whose relevances an annotator gets wrong at a rate: 0 becomes 1, others 0."""
    return [
        replace(
            one,
            turns=tuple(
                replace(
                    turn,
                    annotations=tuple(
                        replace(mark, level=int(mark.level == 0)) if rng.random() < rate else mark
                        for mark in turn.annotations
                    ),
                )
                for turn in one.turns
            ),
        )
        for one in some
    ]


def _labels(by_system: Mapping[str, Sequence[Transcript]]) -> FloatArray:
    return np.array(
        [
            float(mark.level > 0)
            for some in by_system.values()
            for one in some
            for turn in one.turns
            for mark in turn.annotations
        ]
    )


def _kappa(first: FloatArray, second: FloatArray) -> float:
    """Return Cohen's κ of two annotators (Cohen 1960)."""
    agreed = float(np.mean(first == second))
    by_chance = float(first.mean() * second.mean() + (1 - first.mean()) * (1 - second.mean()))
    return (agreed - by_chance) / (1 - by_chance)


def _fairness(
    by_system: Mapping[str, Sequence[Transcript]], attributes: Mapping[str, Attribute]
) -> list[float]:
    """Return the mean GF of each system."""
    return [float(np.mean([_gf(one, attributes) for one in some])) for some in by_system.values()]


def _gf(one: Transcript, attributes: Mapping[str, Attribute]) -> float:
    return gfrc(one.nuggets(), attributes, patience=1250).group_fairness


def _share(fairness: FloatArray) -> float:
    return float(np.mean(fairness > 0))


def _lines(path: Path, found: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(one) + "\n" for one in found), encoding="utf-8")


def _signed(value: float) -> str:
    return f"{value:.3f}".replace("-", "−").replace("−0.000", "0.000")


if __name__ == "__main__":
    main()
