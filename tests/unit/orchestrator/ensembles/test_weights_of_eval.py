"""What `evenmesh eval vote --tune` writes is what an ensemble reads."""

import json
from pathlib import Path

from evenmesh.commands import main
from evenmesh_orchestrator.ensembles.definitions import EnsembleDefinition, read_ensembles
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

    ensembles = read_ensembles(
        {"hub": EnsembleDefinition(members=tuple(reversed(MEMBERS)), weights={"qa": weights})}, SOURCES
    )

    written = json.loads(weights.read_text())
    ensemble = ensembles["hub"]
    vote = ensemble.vote("qa")
    assert list(vote.similarities) == ["token_f1", "containment_em"]
    assert list(vote.retriever_weights) == list(reversed(written["retriever_weights"]))
    assert vote.retriever_weights[-1] == max(vote.retriever_weights)
