from pathlib import Path

import pytest

from evenmesh_core.group_fairness import format_jsonl
from evenmesh_lab.files import (
    FileError,
    TurnMarks,
    read_attributes,
    read_conversations,
    read_marks,
    uniform_attributes,
)

START = ("##### C1", "### U1", "films please", "### S1 o", "One https://films.example/1")


def test_both_forms_hold_the_same(write, examples):
    found = read_conversations(examples / "talker.txt")

    assert [transcript.topic for transcript in found] == ["C1", "C2"]
    assert read_conversations(write("c.jsonl.gz", format_jsonl(found).rstrip())) == found
    assert {name: attribute.gold for name, attribute in uniform_attributes({"talker": found}).items()} == {
        "RATINGS": [1 / 4] * 4,
        "ORIGIN": [1 / 2] * 2,
    }


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((*START, "", "#X2"), ":7: is '#X2'; allowed: tags "),
        (
            (*START, "#L2", "#RATINGS: (1/2,1/4)"),
            ":7: is ['1/2', '1/4']; allowed: shares from 0 that sum to 1",
        ),
        ((*START, "### S2"), ":6: is '### S2'; allowed: turn U2 next"),
        (("films",), ":1: is 'films'; allowed: a topic first"),
    ],
)
def test_what_is_wrong_with_a_transcript_is_said_with_its_line(write, lines: tuple[str, ...], said: str):
    path = write("c.txt", *lines)

    with pytest.raises(FileError) as caught:
        read_conversations(path)

    assert str(caught.value).startswith(f"{path}{said}")


def test_what_is_wrong_within_a_line_of_json_is_said(write):
    bad = '{"topic": "t", "turns": [{"speaker": "system", "words": 2, "annotations": [{"end": 3}]}]}'
    path = write("c.jsonl", '{"topic": "t", "turns": []}', bad)

    with pytest.raises(FileError) as caught:
        read_conversations(path)

    assert (
        str(caught.value) == f"{path}:2: turns[0].annotations[0].end is 3; allowed: whole numbers from 1 to 2"
    )


def test_targets_are_shares_groups_or_weights(write):
    path = write(
        "a.json",
        '{"A": {"gold": ["1/4", 0.75], "divergence": "jsd"}, "B": {"groups": 2},',
        '"C": {"weights": [3, 1]}}',
    )

    found = read_attributes(path)
    assert [(list(one.gold), one.divergence) for one in found.values()] == [
        ([0.25, 0.75], "jsd"),
        ([0.5, 0.5], "rnod"),
        ([0.75, 0.25], "rnod"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"A": {"gold": [0.5, 0.4]}}', "A.gold"),
        ('{"A": {"gold": [1], "groups": 2}}', "A: has gold and groups of gold, groups and weights"),
        ('{"A": {"groups": 1}}', "A.groups: is 1; allowed: whole numbers from 2"),
        ('{"A": {"groups": 2, "divergence": "kl"}}', "A.divergence: is 'kl'; allowed: rnod, nmd, jsd"),
        ('{"A": {"weights": ["x"]}}', "A.weights: is ['x']"),
        ("[]", "must be an object"),
        ("{", ":2: is not JSON"),
    ],
)
def test_targets_that_are_none_are_refused(write, text: str, said: str):
    with pytest.raises(FileError) as caught:
        read_attributes(write("a.json", text))

    assert said in str(caught.value)


def test_marks_are_read_whatever_the_annotations_are(tmp_path: Path) -> None:
    path = tmp_path / "talk.txt"
    path.write_text(
        "##### M001\n### U1\nlist\n### S1 x\nno\n##### M002\n### U1\nlist\n### S1 o\nA: http://a\n#L?\n"
        "#RATINGS: (?)\n### U2\nmore\n### S2\nB\n"
    )
    assert read_marks(path) == [TurnMarks("M001", (False,)), TurnMarks("M002", (True, None))]
    path.write_text("### S1 o\n")
    with pytest.raises(FileError, match=":1: is a turn of no topic"):
        read_marks(path)
    path.write_text("text\n")
    with pytest.raises(FileError, match="has no conversation"):
        read_marks(path)
