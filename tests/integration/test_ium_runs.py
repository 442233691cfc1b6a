"""``evenmesh train ium`` with the real mesh: agents that are its models, and agents that are functions."""

import json
from pathlib import Path

import pytest

from evenmesh_lab.files.agent_runs import read_agent_runs
from tests.integration.conftest import DEMO, RunningMesh
from tests.support.command_line import Ended, run_here

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(600)]

AGENTS = f"""
[data]
tasks = "tasks.jsonl"
collection = "{DEMO}"
[[agent]]
task_id = "bikes"
model_id = "reader"
model = "evenmesh-pointer"
augmentation = "fid"
passages = 1
[[agent]]
task_id = "bikes"
model_id = "titles"
function = "ium_runs_agents:title"
passages = 1
"""
FUNCTION = """
def title(question, passages):
    return passages[0].title or None
"""
RECIPE = """
name = "tiny"
rounds = 1
depth = 3
k = 2
epochs = 1
batch_size = 4
micro_batch = 4
max_length = 48
frozen_layers = 5
frozen_words = true
bf16 = false
"""
FUSION = """
name = "fused"
learns = "fusion"
retriever = ""
rounds = 1
depth = 5
max_length = 48
"""
QUESTIONS = ("How often should I oil my chain?", "A quiet bike chain costs nothing")
ANSWERS = ["every 200 kilometres", "A quiet bike chain costs nothing"]


def test_a_model_and_a_function_teach_one_reranker(mesh: RunningMesh, tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text(AGENTS)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    module = tmp_path / "ium_runs_agents.py"
    module.write_text(FUNCTION)
    tasks = [
        {"id": f"{split}{at}", "agent": "bikes", "input": asked, "answers": ANSWERS, "split": split}
        for split in ("train", "dev")
        for at, asked in enumerate(QUESTIONS)
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in tasks))
    output = tmp_path / "run"

    def train(*options: str) -> Ended:
        given = ("--output", str(output), "--recipe", str(tmp_path / "recipe.toml"), "--threads", "1")
        return run_here(mesh.home, "train", "ium", str(tmp_path / "agents.toml"), *given, *options)

    ended = train("--json")
    assert ended.status == 0, ended
    assert json.loads(ended.out)["overlap"]["questions"] == 2
    records = read_agent_runs([output / "runs.jsonl"])
    assert {(one.agent, one.query_id, one.iteration) for one in records} == {
        (f"bikes/{agent}", f"dev{at}", number)
        for agent in ("reader", "titles")
        for at in range(2)
        for number in (0, 1)
    }
    of_titles = [one for one in records if one.agent == "bikes/titles"]
    assert all((one.utility == 1.0) is (one.answer == ANSWERS[1]) for one in of_titles)
    feedback = json.loads((output / "together" / "round-1" / "feedback.json").read_text())
    assert feedback["examples"] + feedback["unknown"] == 2 * 2 * 2  # agents, questions and passages
    assert (output / "together" / "round-1" / "model" / "config.json").is_file()

    module.write_text(FUNCTION + "# changed\n")
    ended = train("--baseline", "oracle")
    assert ended.status == 2
    assert "function ium_runs_agents:title was" in ended.err


def test_a_shipped_model_is_fused_for_each_agent(mesh: RunningMesh, tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text(AGENTS.replace("ium_runs_agents", "ium_runs_fused"))
    (tmp_path / "ium_runs_fused.py").write_text(FUNCTION)
    (tmp_path / "recipe.toml").write_text(FUSION)
    tasks = [
        {"id": f"{split}{at}", "agent": "bikes", "input": asked, "answers": ANSWERS, "split": split}
        for split in ("train", "dev")
        for at, asked in enumerate(QUESTIONS)
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in tasks))
    given = ("--output", str(tmp_path / "run"), "--recipe", str(tmp_path / "recipe.toml"), "--threads", "1")
    ended = run_here(
        mesh.home, "train", "ium", str(tmp_path / "agents.toml"), *given, "--start", "bundled", "--json"
    )
    assert ended.status == 0, ended
    fusions = json.loads(ended.out)["fusions"]
    assert set(fusions) == {"bikes/reader", "bikes/titles", "other agents"}
    shipped = json.loads((tmp_path / "run" / "start" / "model" / "config.json").read_text())[
        "evenmesh_fusion"
    ]
    assert fusions["other agents"] == shipped
    after = tmp_path / "run" / "together" / "round-1" / "model"
    assert (after / "model.safetensors").read_bytes() == (
        tmp_path / "run" / "start" / "model" / "model.safetensors"
    ).read_bytes()
    records = read_agent_runs([tmp_path / "run" / "runs.jsonl"])
    assert {(one.agent, one.iteration) for one in records} == {
        (f"bikes/{agent}", number) for agent in ("reader", "titles") for number in (0, 1)
    }
