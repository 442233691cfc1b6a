"""Parts of a long run: what is whose, the files of each, and what all of them say together."""

from pathlib import Path
from typing import Any

import pytest

from evenmesh_lab.files import FileError, Journal
from evenmesh_studies.runner.shards import (
    WHOLE,
    Shard,
    journal_path,
    read_shard,
    read_stored,
    same_stems,
    shard_of_folder,
    stem,
)


def settings(shard: Shard, **more: Any) -> dict[str, Any]:
    return {"seed": 0, **more, **shard.settings}


def run(folder: Path, shard: Shard, *units: str, facts: dict[str, str] | None = None, **more: Any) -> None:
    with Journal(journal_path(folder, "kind", shard), settings(shard, **more)) as journal:
        for unit in units:
            journal.add(unit, f"records{shard.suffix}.jsonl", ["{}"], facts)


def test_shards_divide_the_units() -> None:
    parts = [Shard(place, 3).of(range(8)) for place in range(3)]
    assert [list(part) for part in parts] == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert WHOLE.of("abc") == "abc"
    assert Shard(1, 3).all == [Shard(0, 3), Shard(1, 3), Shard(2, 3)]
    assert (WHOLE.suffix, Shard(1, 3).suffix, str(Shard(1, 3))) == ("", "-1-of-3", "1/3")


@pytest.mark.parametrize("text", ["", "1", "1/1", "2/1", "-1/2", "0/0", "a/b", "1/2/3", " 0/2"])
def test_what_is_no_shard(text: str) -> None:
    assert read_shard(text) is None


def test_a_shard_is_read() -> None:
    assert read_shard("0/1") == WHOLE
    assert read_shard("2/12") == Shard(2, 12)


def test_names_of_files_lead_to_no_other_folder() -> None:
    assert [stem(name) for name in ("../x", "a/b", "a b.c", "..", "")] == [
        "_x",
        "a_b",
        "a_b.c",
        "unnamed",
        "unnamed",
    ]
    assert same_stems(["a/b", "a_b", "c", "C"]) == ["C", "a/b", "a_b", "c"]
    assert same_stems(["a", "b", "a"]) == []


def test_shards_are_read_together(tmp_path: Path) -> None:
    # Names of units may hold what Python takes for the end of a line.
    run(tmp_path, Shard(0, 2), "a\u2028\u0085", "c", facts={"model": "7"})
    run(tmp_path, Shard(1, 2), "b", facts={"model": "7", "index": "3"})
    stored = read_stored(tmp_path, "kind", Shard(1, 2), settings)
    assert stored.done == {"a\u2028\u0085", "b", "c"}
    assert stored.facts == {"model": "7", "index": "3"}
    assert stored.settings == {"seed": 0}
    assert read_stored(tmp_path, "kind", Shard(0, 2)) == stored


def test_a_shard_that_is_still_written_counts_as_far_as_it_is(tmp_path: Path) -> None:
    run(tmp_path, Shard(0, 3), "a")
    with journal_path(tmp_path, "kind", Shard(0, 3)).open("ab") as journal:
        journal.write(b'{"piece": "d", "fi')
    assert read_stored(tmp_path, "kind", Shard(0, 3), settings).done == {"a"}


def test_shards_of_other_runs_are_not_mixed_in(tmp_path: Path) -> None:
    run(tmp_path, Shard(0, 2), "a")
    run(tmp_path, Shard(1, 2), "b", seed=1)
    with pytest.raises(FileError, match=r"kind-1-of-2.journal: is of another run: it differs in seed"):
        read_stored(tmp_path, "kind", Shard(0, 2), settings)
    with pytest.raises(FileError, match=r"kind-1-of-2.journal: is of another run: it differs in seed"):
        read_stored(tmp_path, "kind", Shard(0, 2))


def test_shards_made_with_other_models_are_not_mixed(tmp_path: Path) -> None:
    run(tmp_path, Shard(0, 2), "a", facts={"model": "7"})
    run(tmp_path, Shard(1, 2), "b", facts={"model": "8"})
    with pytest.raises(FileError, match="model is '8', in another shard '7'"):
        read_stored(tmp_path, "kind", Shard(0, 2), settings)


def test_a_folder_tells_how_its_run_was_divided(tmp_path: Path) -> None:
    assert shard_of_folder(tmp_path, "kind") == WHOLE
    run(tmp_path, Shard(1, 2), "a")
    assert shard_of_folder(tmp_path, "kind").count == 2
    assert shard_of_folder(tmp_path, "other") == WHOLE
    run(tmp_path, WHOLE, "a")
    with pytest.raises(FileError, match="holds runs of several divisions, into 1, 2 shards"):
        shard_of_folder(tmp_path, "kind")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        read_stored(tmp_path, "kind")
    with pytest.raises(FileError, match="has no journal of 2 shards"):
        read_stored(tmp_path, "kind", Shard(0, 2))
