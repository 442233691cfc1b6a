"""The training loop: resuming, several processes, batches, logs and checkpoints."""

import contextlib
import csv
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from evenmesh_training.rankrag import checkpoints, loop, record
from evenmesh_training.rankrag.batches import WINDOW, Batches
from evenmesh_training.rankrag.data.blend import Blend
from evenmesh_training.rankrag.learners.pointer_learner import PointerLearner
from evenmesh_training.rankrag.learners.text_learner import TextLearner
from evenmesh_training.rankrag.loop import Trainer
from evenmesh_training.rankrag.recipe import Recipe, RecipeError, Stage
from tests.support import tiny_models

LOSSES = ("answer", "choice", "loss", "verdict", "norm")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.llama(tmp_path_factory.mktemp("llama"))


def pointer_trainer(
    root: Path, recipe: Recipe, output: Path, *, resume: bool = False, **changes: object
) -> Trainer:
    stage = Stage.model_validate(recipe.stage(2).model_dump() | changes)
    reader = tiny_models.pointer()
    return Trainer(
        PointerLearner(reader.model, reader.tokenizer, stage),
        Blend(recipe, root),
        stage,
        output,
        seed=3,
        samples={},
        identity={"recipe": recipe.name},
        resume=resume,
        progress_bar=False,
    )


def log(output: Path) -> list[dict[str, str]]:
    with (output / record.LOG).open(newline="") as stream:
        return list(csv.DictReader(stream))


def weights(output: Path) -> dict[str, torch.Tensor]:
    return torch.load(output / checkpoints.NAME, weights_only=True)["model"]


def losses(output: Path) -> list[tuple[str, ...]]:
    return [tuple(row[name] for name in LOSSES if name in row) for row in log(output)]


def folder(path: Path) -> Path:
    loop.prepare_output(path)
    return path


@pytest.mark.slow
def test_a_resumed_run_repeats_an_uninterrupted_one_exactly(
    squad: Path, recipe: Recipe, tmp_path: Path
) -> None:
    whole, parts = folder(tmp_path / "whole"), folder(tmp_path / "parts")
    done = pointer_trainer(squad, recipe, whole).run()
    assert (done.step, done.complete) == (6, True)
    broken = pointer_trainer(squad, recipe, parts, checkpoint_every=2)
    after = iter(range(10))
    step = broken._step

    def interrupted(number: int) -> dict[str, float]:
        if next(after) == 3:
            raise KeyboardInterrupt  # after the checkpoint of step 2, in the middle of step 4
        return step(number)

    broken._step = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    assert len(log(parts)) == 3  # the log is a step ahead of the checkpoint
    pointer_trainer(squad, recipe, parts, resume=True).run()
    assert [row["step"] for row in log(parts)] == [str(n) for n in range(1, 7)]
    assert losses(parts) == losses(whole)
    assert len({row["loss"] for row in log(whole)}) == 6
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(parts)[name]), name
    saved = [(out / "model" / "model.safetensors").read_bytes() for out in (whole, parts)]
    assert saved[0] == saved[1]


def test_a_signal_ends_in_a_checkpoint_to_go_on_from(squad: Path, recipe: Recipe, tmp_path: Path) -> None:
    whole, parts = folder(tmp_path / "whole"), folder(tmp_path / "parts")
    pointer_trainer(squad, recipe, whole).run()
    said = pointer_trainer(squad, recipe, parts)
    step = said._step

    def signalled(number: int) -> dict[str, float]:
        if number == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(number)

    said._step = signalled  # type: ignore[method-assign]
    before = signal.getsignal(signal.SIGTERM)
    done = said.run()
    assert (done.step, done.complete) == (2, False)
    assert signal.getsignal(signal.SIGTERM) is before
    assert not (parts / loop.MODEL).exists()
    assert pointer_trainer(squad, recipe, parts, resume=True).run().complete
    assert losses(parts) == losses(whole)


@pytest.mark.parametrize("ends", ["at a signal", "within the evaluation", "within the last evaluation"])
def test_a_resumed_run_makes_the_evaluation_that_the_one_before_did_not(
    squad: Path, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(loop.evaluation, "measures", lambda *_: {"made": float(next(numbers))})
    whole, parts, every = folder(tmp_path / "whole"), folder(tmp_path / "parts"), {"checkpoint_every": 2}
    numbers = iter(range(1, 9))
    wanted = pointer_trainer(squad, recipe, whole, evaluate_every=2, **every).run()
    assert wanted.measures == {"made": 3.0}
    numbers = iter(range(1, 9))
    broken = pointer_trainer(squad, recipe, parts, evaluate_every=2, **every)
    step, evaluate = broken._step, broken._evaluate

    def signalled(number: int) -> dict[str, float]:
        if number == 1 and ends == "at a signal":
            broken._stopped = True
        return step(number)

    def killed() -> dict[str, float]:
        if broken._progress.step == {"within the evaluation": 4, "within the last evaluation": 6}.get(ends):
            raise KeyboardInterrupt
        return evaluate()

    broken._step, broken._evaluate = signalled, killed  # type: ignore[method-assign]
    with contextlib.suppress(KeyboardInterrupt):
        assert not broken.run().complete
    for _ in range(2):  # a run that is done has its measures too, and evaluates nothing
        done = pointer_trainer(squad, recipe, parts, resume=True, evaluate_every=2, **every).run()
        assert (done.complete, done.measures) == (True, wanted.measures)
    assert (parts / record.EVALUATIONS).read_text() == (whole / record.EVALUATIONS).read_text()
    assert next(numbers) == 4


def test_training_learns(squad: Path, recipe: Recipe, tmp_path: Path) -> None:
    out = folder(tmp_path / "out")
    pointer_trainer(squad, recipe, out, steps=30, learning_rate=1e-2, decay=0).run()
    found = [float(row["loss"]) for row in log(out)]
    assert sum(found[-5:]) < 0.6 * sum(found[:5])


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_accumulated_gradients_are_those_of_one_batch(
    squad: Path, recipe: Recipe, tmp_path: Path, micro_batch: int
) -> None:
    one, other = folder(tmp_path / "one"), folder(tmp_path / "other")
    pointer_trainer(squad, recipe, one, steps=2).run()
    pointer_trainer(squad, recipe, other, steps=2, micro_batch=micro_batch).run()
    left, right = ([float(row["loss"]) for row in log(out)] for out in (one, other))
    assert left == pytest.approx(right, rel=1e-4)


def test_language_models_resume_too(squad: Path, recipe: Recipe, llama: Path, tmp_path: Path) -> None:
    def trainer(output: Path, *, resume: bool = False) -> Trainer:
        changes = {"max_length": 900, "lora": True, "gradient_checkpointing": True, "checkpoint_every": 3}
        stage = Stage.model_validate(recipe.stage(2).model_dump() | changes)
        learner = TextLearner.load(str(llama), stage)
        return Trainer(
            learner, Blend(recipe, squad), stage, output, seed=3, samples={}, identity={}, resume=resume,
            progress_bar=False,
        )  # fmt: skip

    torch.manual_seed(0)  # draws the adapters
    whole = trainer(folder(tmp_path / "whole"))
    torch.manual_seed(0)
    parts = trainer(folder(tmp_path / "parts"))
    whole.run()
    step = parts._step

    def interrupted(number: int) -> dict[str, float]:
        if number == 4:
            raise KeyboardInterrupt
        return step(number)

    parts._step = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        parts.run()
    trainer(tmp_path / "parts", resume=True).run()
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert len(losses(tmp_path / "whole")) == 6


def test_averages_follow_the_weights(squad: Path, recipe: Recipe, tmp_path: Path) -> None:
    out = folder(tmp_path / "out")
    trainer = pointer_trainer(squad, recipe, out, steps=1, ema=0.5)
    start = {name: value.clone() for name, value in checkpoints.trained(trainer._learner.module).items()}
    trainer.run()
    state = torch.load(out / checkpoints.NAME, weights_only=True)
    for name, value in state["averages"].items():
        # the first step's decay is 1 / 10, as it is under 0.5
        torch.testing.assert_close(value, 0.1 * start[name] + 0.9 * state["model"][name])


def test_another_run_is_not_gone_on_with(squad: Path, recipe: Recipe, tmp_path: Path) -> None:
    out = folder(tmp_path / "out")
    pointer_trainer(squad, recipe, out, steps=1).run()
    with pytest.raises(RecipeError, match="with other learning_rate, warm_up"):
        pointer_trainer(squad, recipe, out, resume=True, learning_rate=0.5, warm_up=1)
    assert pointer_trainer(squad, recipe, out, resume=True, steps=2).run().step == 2


def test_nothing_to_resume_is_reported(squad: Path, recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="nothing to resume"):
        pointer_trainer(squad, recipe, folder(tmp_path / "out"), resume=True)


def test_a_used_output_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RecipeError, match=r"not empty.*--resume"):
        loop.prepare_output(tmp_path)
    with pytest.raises(RecipeError, match="is a file"):
        loop.prepare_output(tmp_path / "file")


def test_the_log_goes_to_tensorboard_too(squad: Path, recipe: Recipe, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = folder(tmp_path / "out")
    pointer_trainer(squad, recipe, out, steps=2).run()
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    logged = [f"{event.value:.4g}" for event in events.Scalars("train/loss")]
    assert logged == [f"{float(row['loss']):.4g}" for row in log(out)]


def test_batches_have_like_costs_and_every_example_once(squad: Path, recipe: Recipe) -> None:
    blend = Blend(recipe, squad)
    batches = Batches(blend, lambda example: len(example.shown), size=4, seed=1)
    found = [list(batches[step]) for step in range(WINDOW)]
    assert sorted(map(repr, (one for batch in found for one in batch))) == sorted(
        repr(blend[index]) for index in range(4 * WINDOW)
    )
    mixed = [batch for batch in found if len({len(one.shown) for one in batch}) > 1]
    assert len(mixed) <= 1  # the one where the costs meet
    again = Batches(blend, lambda example: len(example.shown), size=4, seed=1)
    assert [list(again[step]) for step in (40, 3)] == [list(batches[40]), found[3]]


SCRIPT = """
import sys
from pathlib import Path
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from evenmesh_training.rankrag import evaluation, loop
from evenmesh_training.rankrag.data.blend import Blend
from evenmesh_training.rankrag.learners.pointer_learner import PointerLearner
from evenmesh_training.rankrag.recipe import load
from tests.support import tiny_models

root, recipe, output = map(Path, sys.argv[1:4])

def train():
    made = load(str(recipe))
    reader = tiny_models.pointer()
    stage = made.stage(2)
    trainer = loop.Trainer(
        PointerLearner(reader.model, reader.tokenizer, stage), Blend(made, root), stage, output,
        seed=3, samples=evaluation.samples(made, root, 3), identity={}, progress_bar=False,
    )
    print("done", trainer.run().step, "speaks", trainer.is_main)

if sys.argv[4:] == ["two"]:
    # As torchrun does, but forks of this process need not import all that again.
    config = LaunchConfig(
        1, 1, 2, run_id="two", rdzv_backend="c10d", rdzv_endpoint="localhost:0", start_method="fork", max_restarts=0
    )
    elastic_launch(config, train)()
else:
    train()
"""


@pytest.mark.slow
def test_two_processes_train_as_one(
    squad: Path,
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The one is this process."""
    script, described = tmp_path / "script.py", tmp_path / "recipe.toml"
    script.write_text(SCRIPT)
    described.write_text(
        'name = "two"\n[[source]]\nname = "rich"\ndataset = "squad-open"\nkind = "context-rich-qa"\nratio = 1\n'
        "[stage2]\nsteps = 3\nbatch_size = 4\nmicro_batch = 2\nlearning_rate = 1e-3\nbf16 = false\n"
        'max_length = 100\nmax_target = 12\n[[evaluation]]\ndataset = "squad-open"\n'
    )
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path]),  # the script imports from tests
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    one, two = folder(tmp_path / "one"), folder(tmp_path / "two")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # as the environment says to the others
    monkeypatch.setattr(sys, "argv", [str(script), str(squad), str(described), str(one)])
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.count("True") == 1
    several = [sys.executable, str(script), str(squad), str(described), str(two), "two"]
    done = subprocess.run(several, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("True") == 1  # one process speaks, of however many
    left, right = ([float(row["loss"]) for row in log(out)] for out in (one, two))
    assert left == pytest.approx(right, rel=1e-4)
    assert len(left) == 3
    # the held-out samples were split over the processes and put together again
    said = [(out / record.EVALUATIONS).read_text().splitlines()[-1].split(",") for out in (one, two)]
    assert [float(value) for value in said[0]] == pytest.approx(
        [float(value) for value in said[1]], nan_ok=True, abs=1e-3
    )
    other = weights(two)
    for name, value in weights(one).items():
        # a key's bias moves no attention: its gradient is rounding, which Adam blows up to full steps
        if "key" not in name or not name.endswith("bias"):
            torch.testing.assert_close(value, other[name], atol=2e-4, rtol=1e-2)


@pytest.mark.parametrize(
    ("there", "left"),
    [
        ("step,loss\n1,0.5\n2,0.25\n3,0.125\n", "step,loss\n1,0.5\n2,0.25\n"),
        ("step,loss\n1,0.5\n2", "step,loss\n1,0.5\n"),
        ("step,loss\n", "step,loss\n"),
        ("", None),
        (None, None),
    ],
)
def test_a_log_is_cut_to_what_the_checkpoint_knows(
    tmp_path: Path, there: str | None, left: str | None
) -> None:
    path = tmp_path / record.LOG
    if there is not None:
        path.write_text(there)
    with loop._Log(tmp_path, 2, write=True):
        pass
    assert (path.read_text() if path.exists() else None) == left
