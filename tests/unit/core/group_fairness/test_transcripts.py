import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.group_fairness import (
    Annotation,
    Transcript,
    Turn,
    conversation,
    format_jsonl,
    parse_jsonl,
    parse_transcripts,
)

property_test = settings(derandomize=True, deadline=None, max_examples=60)

SHORT = """\
##### T1 a remark
### U1
one two
### S1 o
three https://four
#L2 # a remark
#G: (1/2,0.5) #fractions and decimals
five
"""


def test_figure_5_word_counts(figure_5):
    (transcript,) = parse_transcripts(figure_5)
    assert transcript.topic == "M002"
    assert [turn.speaker for turn in transcript.turns] == ["user", "system", "user", "system"]
    counts = [[nugget.word_count for nugget in turn] for turn in transcript.nuggets()]
    assert counts == [[35, 39, 43, 46, 51], [91, 96, 99, 104, 107]]
    assert [nugget.gain for nugget in transcript.nuggets()[0]] == [1.0, 1.0, 1.0, 0.5, 1.0]


def test_a_transcript_by_hand():
    (transcript,) = parse_transcripts(SHORT)
    membership = {"G": (Fraction(1, 2), Fraction(1, 2))}
    assert transcript == Transcript(
        "T1 a remark",
        (Turn("user", 2), Turn("system", 3, (Annotation(2, 2, "https://four", membership),))),
    )
    ((nugget,),) = transcript.nuggets()
    assert (nugget.word_count, nugget.gain, nugget.membership) == (4, 1.0, {"G": [0.5, 0.5]})


def test_several_topics_and_windows_line_ends():
    both = parse_transcripts((SHORT + SHORT.replace("T1", "T2")).replace("\n", "\r\n"))
    assert [transcript.topic for transcript in both] == ["T1 a remark", "T2 a remark"]
    assert both[0].turns == both[1].turns


def test_an_unsuccessful_turn_has_no_nuggets():
    first = "##### T\n### U1\nhello there\n### S1 x\nI cannot\n"
    text = first + "### U2\nplease\n### S2 o\nhere: a://b\n#L1\n#G: (0,1)\n"
    turns = parse_transcripts(text)[0].nuggets()
    assert turns[0] == []
    assert turns[1][0].word_count == 2 + 2 + 1 + 2


def test_a_url_named_again_is_the_same_entity(attributes, figure_5):
    again = figure_5 + (
        "Back to the Future again: https://www.imdb.com/title/tt0088763/\n"
        "#L2\n#RATINGS: (1,0,0,0)\n#ORIGIN: (1,0,0,0,0,0,0,0)\n"
    )
    before = conversation(parse_transcripts(figure_5)[0].nuggets(), attributes)
    after = conversation(parse_transcripts(again)[0].nuggets(), attributes)
    assert after.relevance == before.relevance
    assert after.group_fairness == before.group_fairness


def test_a_last_word_that_is_no_url_names_no_entity():
    text = SHORT.replace("https://four", "nice").replace("five\n", "very nice\n#L1\n#G: (0,1)\n")
    assert [annotation.entity for annotation in parse_transcripts(text)[0].turns[1].annotations] == [
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("hello\n", "file:1 is 'hello'; allowed: a topic first"),
        ("##### T\nhello\n", "file:2 is 'hello'; allowed: a turn first"),
        ("##### T\n### S1 o\n", "file:2 is .*turn U1 next"),
        ("##### T\n### U1\nx\n### S2\n", "file:4 is .*turn S1 next"),
        (SHORT + "#M: 3\n", "file:9 is '#M: 3'; allowed: tags"),
        (SHORT + "#L2\n#L2\n", "file:10 is '#L2'; allowed: one level for each nugget"),
        (SHORT + "#G: (0,1)\n", "file:9 is .*below the level of its nugget"),
        (SHORT.replace("five", "#G: (0,1)"), "file:8 is .*one membership in G"),
        ("##### T\n### U1\nx\n#L2\n", "file:4 is '#L2'; allowed: a level below text of a system turn"),
        (SHORT.replace("0.5", "0.6"), r"file:7 is \['1/2', '3/5'\]; allowed: shares from 0 that sum to 1"),
        (SHORT.replace("0.5", "half"), "file:7 is 'half'; allowed: numbers or fractions"),
        (SHORT.replace("1/2", "1/0"), "file:7 is '1/0'"),
        (SHORT.replace("1/2,0.5", "3/2,-0.5"), "file:7 is"),
    ],
)
def test_a_bad_transcript_is_refused_with_file_and_line(text, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        parse_transcripts(text, "file")


def test_a_level_without_a_gain_is_refused():
    (transcript,) = parse_transcripts(SHORT.replace("#L2", "#L3"))
    with pytest.raises(InvalidInput, match="a gain for level 3"):
        transcript.nuggets()
    assert transcript.nuggets({3: 1.0})[0][0].gain == 1.0


# --- JSON lines


@st.composite
def transcripts(draw):
    turns = []
    for place in range(draw(st.integers(0, 5))):
        words = draw(st.integers(0, 20))
        ends = sorted(draw(st.sets(st.integers(1, words), max_size=3))) if words and place % 2 else []
        annotations = []
        for end in ends:
            parts = draw(st.lists(st.integers(0, 5), min_size=2, max_size=4).filter(any))
            shares = tuple(Fraction(part, sum(parts)) for part in parts)
            entity = draw(st.none() | st.text(min_size=1, max_size=5))
            annotations.append(Annotation(end, draw(st.integers(0, 3)), entity, {"G": shares}))
        turns.append(Turn("system" if place % 2 else "user", words, tuple(annotations)))
    return Transcript(draw(st.text(max_size=5)), tuple(turns))


@property_test
@given(st.lists(transcripts(), max_size=3))
def test_json_lines_are_read_as_written(originals):
    assert parse_jsonl(format_jsonl(originals)) == originals


def test_both_forms_say_the_same(figure_5):
    original = parse_transcripts(figure_5)
    assert parse_jsonl(format_jsonl(original)) == original


def test_numbers_and_fractions_in_json():
    annotation = {"end": 1, "level": 2, "membership": {"G": [0.1, "2/5", 0.5]}}
    line = json.dumps(
        {"topic": "T", "turns": [{"speaker": "system", "words": 1, "annotations": [annotation]}]}
    )
    shares = parse_jsonl(line)[0].turns[0].annotations[0].membership["G"]
    assert shares == (Fraction(1, 10), Fraction(2, 5), Fraction(1, 2))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "file:2 is .*a JSON object"),
        ("[]", "file:2 is .*a JSON object"),
        ('{"topic": "T"}', "file:2.turns is None; allowed: a list"),
        ('{"topic": 1, "turns": []}', "file:2.topic is 1; allowed: a str"),
        ('{"topic": "T", "turns": [{"speaker": "bot", "words": 1}]}', r"file:2: turns\[0\].speaker is 'bot'"),
        ('{"topic": "T", "turns": [{"speaker": "user", "words": -1}]}', r"turns\[0\].words is -1"),
        (
            '{"topic": "T", "turns": [{"speaker": "system", "words": 1, "annotations": '
            '[{"end": 2, "level": 1}]}]}',
            r"annotations\[0\].end is 2; allowed: whole numbers from 1 to 1",
        ),
        (
            '{"topic": "T", "turns": [{"speaker": "system", "words": 1, "annotations": '
            '[{"end": 1, "level": 1, "membership": {"G": [0.5, 0.4]}}]}]}',
            r"membership\['G'\] is \['1/2', '2/5'\]; allowed: shares",
        ),
    ],
)
def test_bad_json_lines_are_refused_with_file_and_line(line, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        parse_jsonl('{"topic": "T", "turns": []}\n' + line, "file")
