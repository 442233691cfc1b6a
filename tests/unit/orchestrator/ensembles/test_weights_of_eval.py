"""What `ragmesh eval vote --tune` writes is what an ensemble reads."""

import json
from pathlib import Path

from orchestrator.ensembles.definitions import EnsembleDefinition, Ensembles
from ragmesh.cli import main
from tests.unit.orchestrator.fakes import SOURCES

MEMBERS = ("Wiki@10", "SE@RR@5&Wiki@5@CP", "ReFree")


def test_a_tuned_vote_is_a_file_of_weights(tmp_path: Path) -> None:
    answers, weights = tmp_path / "answers.jsonl", tmp_path / "weights.json"
    said = {"Wiki@10": "Rhine", "SE@RR@5&Wiki@5@CP": "Elbe", "ReFree": "Elbe"}
    answers.write_text(
        "".join(
            json.dumps({"query_id": f"q{i}", "retriever": one, "answer": said[one], "references": ["Rhine"]})
            + "\n"
            for i in range(4)
            for one in MEMBERS
        )
    )
    arguments = ["eval", "vote", str(answers), "--tune", str(answers), "--json", str(weights)]
    assert main([*arguments, "--similarity", "token_f1", "--similarity", "containment_em"]) == 0

    ensembles = Ensembles(
        {"hub": EnsembleDefinition(members=tuple(reversed(MEMBERS)), weights={"qa": weights})}, SOURCES
    )

    written = json.loads(weights.read_text())
    roster = ensembles.get("hub")
    assert roster is not None
    voting = roster.voting("qa")
    assert list(voting.similarities) == ["token_f1", "containment_em"]
    assert voting.member_weights == tuple(reversed(written["retriever_weights"]))
    assert voting.member_weights[-1] == max(voting.member_weights)
