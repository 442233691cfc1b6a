"""What docs/guides/rag-eval.md and docs/guides/lamp.md say of data sets, tasks and options is so."""

import re
from pathlib import Path

from evenmesh.commands import main
from evenmesh_lab.files.lamp import MOST_BYTES, MOST_ITEM_BYTES, MOST_ITEMS, TASKS
from evenmesh_lab.files.questions import DATA_SETS, QuestionRecord

DOCS = Path(__file__).resolve().parents[3] / "docs" / "guides"


def named(text: str) -> set[str]:
    """What stands in back quotes."""
    return set(re.findall(r"`([^`\n]+)`", text))


def test_every_data_set_and_every_column_is_named() -> None:
    page = named((DOCS / "rag-eval.md").read_text())
    assert {name for name in DATA_SETS if not name.startswith("open-qa/")} <= page
    assert set(QuestionRecord.model_fields) <= page


def test_every_option_of_the_page_is_one_of_the_command(capsys: object) -> None:
    text = (DOCS / "rag-eval.md").read_text()
    options = {name for found in named(text) for name in re.findall(r"--[a-z-]+", found)} - {"--without"}
    assert main(["eval", "rag", "--help"]) == 0
    shown = capsys.readouterr().out  # type: ignore[attr-defined]
    assert len(options) > 15
    assert [name for name in sorted(options) if name not in shown] == []


def test_the_table_of_tasks_is_lamps() -> None:
    text = (DOCS / "lamp.md").read_text()
    rows = re.findall(r"^\| (LaMP-\d) [^|]*\|([^|]*)\|([^|]*)\|([^|]*)\|", text, re.MULTILINE)
    assert [row[0] for row in rows] == list(TASKS)
    for name, title, _, searched in rows:
        assert (title.strip() == "–") == (not TASKS[name].title)
        for mark in named(searched):
            assert TASKS[name].query(f"Do it {mark} so") == "so"
    for number in (MOST_ITEMS, MOST_BYTES, MOST_ITEM_BYTES):
        assert f"{number:,}" in text
