"""Readers, on data sets written by hand."""

from pathlib import Path

import pytest

from evenmesh_generator.domain import Turn
from evenmesh_generator.pointer.abstention import ABSTENTION
from evenmesh_training.rankrag.data.datasets import (
    READERS,
    Dataset,
    MissingDataError,
    Request,
    Split,
    hashed_train,
    reader,
)
from evenmesh_training.rankrag.data.examples import Form, Kind
from evenmesh_training.rankrag.recipe import Context, RecipeError
from tests.unit.training.rankrag.towns import TOWNS, Write


def read(
    name: str,
    root: Path,
    *,
    kind: Kind = Kind.CONTEXT_RICH_QA,
    split: Split = Split.TRAIN,
    path: str | None = None,
    context: Context | None = None,
) -> Dataset:
    return reader(name).read(Request(root, split, kind, context or Context(), path))


def tasks(write: Write, **splits: str) -> None:
    write(
        "wiki-multitask/tasks.jsonl.gz",
        [{"id": name, "split": split, "task": "qa", "input": "x"} for name, split in splits.items()],
    )


def test_squad_keeps_to_its_official_split(squad: Path) -> None:
    train = read("squad-open", squad)
    assert [item.id for item in train.items] == [f"q-p-{town}" for town in TOWNS]
    first = train.items[0]
    assert train.passages[first.gold[0]].id == "p-Aarau"
    assert len(read("squad-open", squad, split=Split.HELD_OUT).items) == 4


def test_qed_takes_the_split_of_wiki_multitask_and_leaves_doubtful_answers(root: Path, write: Write) -> None:
    write("nq-passages/passages.jsonl.gz", [{"id": "p", "title": "T", "text": "text"}])
    write(
        "nq-passages/questions.jsonl.gz",
        [
            {
                "id": name,
                "question": name,
                "answers": ["x"],
                "gold_passage_ids": ["p"],
                "explanation_type": kind,
            }
            for name, kind in [
                ("a", "single_sentence"),
                ("b", "none"),
                ("c", "multi_sentence"),
                ("d", "single_sentence"),
            ]
        ],
    )
    tasks(write, a="train", b="train", c="dev")
    assert [item.id for item in read("nq-passages", root).items] == ["a"]
    # what is listed nowhere is held out too
    assert [item.id for item in read("nq-passages", root, split=Split.HELD_OUT).items] == ["b", "c", "d"]


def test_clapnq_is_all_held_out(root: Path, write: Write) -> None:
    write("nq-passages/clapnq_passages.jsonl.gz", [{"id": n, "title": "T", "text": "text"} for n in "pq"])
    write(
        "nq-passages/clapnq_questions.jsonl.gz",
        [
            {
                "id": "a",
                "question": "a",
                "answerable": True,
                "long_answers": ["x y"],
                "gold_passage_ids": ["p"],
                "shown_passage_ids": ["p"],
            },
            {
                "id": "b",
                "question": "b",
                "answerable": False,
                "long_answers": [],
                "gold_passage_ids": [],
                "shown_passage_ids": ["q"],
            },
        ],
    )
    assert read("clapnq", root).items == []
    answerable, not_so = read("clapnq", root, split=Split.HELD_OUT).items
    assert (answerable.answers, answerable.gold, answerable.irrelevant) == (("x y",), (0,), ())
    assert (not_so.answers, not_so.gold, not_so.irrelevant) == ((ABSTENTION,), (), (1,))


def test_only_slots_are_read_from_wiki_multitask_itself(root: Path, write: Write) -> None:
    write("wiki-multitask/passages.jsonl.gz", [{"id": "p", "title": "T", "text": "text"}])
    row = {"answers": ["1760"], "gold_passage_ids": ["p"]}
    write(
        "wiki-multitask/tasks.jsonl.gz",
        [
            {"id": "a", "task": "slot_filling", "input": "Ann [SEP] date of birth", "split": "train", **row},
            {"id": "b", "task": "slot_filling", "input": "Bob [SEP] date of birth", "split": "dev", **row},
            {"id": "c", "task": "qa", "input": "Who?", "split": "train", **row},
        ],
    )
    assert [item.question for item in read("wiki-multitask", root).items] == ["Ann: date of birth"]


def test_a_question_of_several_steps_has_several_gold_passages(root: Path, write: Write) -> None:
    write("multihop-small/passages.jsonl.gz", [{"id": n, "title": "T", "text": "text"} for n in "pqr"])
    write(
        "multihop-small/questions.jsonl.gz",
        [{"id": "a", "question": "a", "answers": ["x"], "gold_passage_ids": ["r", "p"]}],
    )
    tasks(write, a="train")
    assert read("multihop-small", root).items[0].gold == (2, 0)


ANSWER = "the fee is ten francs a year"


def dialogues(write: Write) -> None:
    filler = " ".join(f"word{n}" for n in range(18))
    text = f"{filler} {ANSWER} {' '.join(f'more{n}' for n in range(20))}"
    write("doc2dial-val/documents.jsonl.gz", [{"id": "d", "title": "Fees", "text": text}])
    turns = [
        {"role": "user", "text": "hello"},
        {"role": "user", "text": "i park here"},
        {"role": "agent", "text": "good"},
        {"role": "user", "text": "what is the fee?"},
    ]
    rows = [
        {
            "id": f"c{n}_3",
            "conversation_id": f"c{n}",
            "turn": 3,
            "history": turns,
            "answers": [ANSWER],
            "answer_start": [text.index(ANSWER)],
            "gold_passage_ids": ["d"],
        }
        for n in range(20)
    ]
    write("doc2dial-val/turns.jsonl.gz", rows)


def test_doc2dial_labels_chunks_by_recall_to_rank(root: Path, write: Write) -> None:
    dialogues(write)
    # the answer is words 18 to 24 of 45; chunks of 15: all of it in [1]
    found = read("doc2dial-val", root, kind=Kind.CONTEXT_RANKING, context=Context(chunk_words=15))
    item = found.items[0]
    assert (item.gold, item.irrelevant) == ((1,), (0, 2))
    # chunks of 20: words 20 to 24 in [1], so 2 of its 4 4-grams, which is not above a half
    cut = read("doc2dial-val", root, kind=Kind.CONTEXT_RANKING, context=Context(chunk_words=20))
    assert (cut.items[0].gold, cut.items[0].irrelevant) == ((), (0, 2))


def test_doc2dial_answers_from_the_chunk_where_the_answer_begins(root: Path, write: Write) -> None:
    dialogues(write)
    item = read("doc2dial-val", root, context=Context(chunk_words=30)).items[0]
    assert (item.gold, item.irrelevant) == ((0,), (1,))
    assert item.question == "what is the fee?"
    assert item.turns == (Turn("hello i park here", "good"),)
    cut = read("doc2dial-val", root, context=Context(chunk_words=20)).items[0]
    assert cut.gold == ()  # the chunk where it begins does not hold all of it


def test_doc2dials_conversations_are_split_by_hash(root: Path, write: Write) -> None:
    dialogues(write)
    train = {item.id for item in read("doc2dial-val", root).items}
    kept = {item.id for item in read("doc2dial-val", root, split=Split.HELD_OUT).items}
    assert train == {f"c{n}_3" for n in range(20) if hashed_train(f"c{n}")}
    assert train | kept == {f"c{n}_3" for n in range(20)}
    assert not train & kept


def conversations(write: Write) -> None:
    turns = [
        {"turn": 1, "question": "where is basel", "answer": "UNANSWERABLE", "topic": ""},
        {
            "turn": 2,
            "question": "who rules it",
            "answer": "its mayor is called Baselson Keller",
            "topic": "Basel",
        },
        {"turn": 3, "question": "and rome", "answer": "somebody else rules there now", "topic": "Rome"},
    ]
    write("topiocqa/conversations.train.jsonl.gz", [{"id": "t", "turns": turns}])


def test_topiocqa_as_conversation_leaves_out_what_has_no_answer(squad: Path, write: Write) -> None:
    conversations(write)
    found = read("topiocqa", squad, kind=Kind.SFT).items
    assert [item.id for item in found] == ["t-2", "t-3"]
    assert found[1].turns == (
        Turn("where is basel", ABSTENTION),
        Turn("who rules it", "its mayor is called Baselson Keller"),
    )


def test_topiocqa_ranks_the_articles_of_its_topic(squad: Path, write: Write) -> None:
    conversations(write)
    found = read("topiocqa", squad, kind=Kind.CONTEXT_RANKING)
    by_id = {item.id: item for item in found.items}
    assert [found.passages[place].title for place in by_id["t-2"].gold] == ["Basel"]
    assert by_id["t-3"].gold == ()


def test_claims_have_verdicts_for_answers(root: Path, write: Write) -> None:
    write("fever-symmetric/passages.jsonl.gz", [{"id": "p", "title": "", "text": "text"}])
    write(
        "fever-symmetric/claims.jsonl.gz",
        [
            {"id": n, "claim": n, "label": label, "gold_passage_ids": ["p"]}
            for n, label in [("a", "REFUTES"), ("b", "SUPPORTS")]
        ],
    )
    tasks(write, a="train", b="test")
    (item,) = read("fever-symmetric", root).items
    assert (item.answers, item.form) == (("False",), Form.CLAIM)


def test_climate_fevers_judgements_are_gold_and_known_negatives(root: Path, write: Write) -> None:
    write("climate-fever/passages.jsonl.gz", [{"id": n, "title": "", "text": "text"} for n in "pqr"])
    write(
        "climate-fever/qrels.jsonl.gz",
        [{"query_id": "a", "doc_id": d, "relevance": r} for d, r in [("p", 0), ("r", 1)]],
    )
    write("climate-fever/claims.jsonl.gz", [{"id": "a", "claim": "c", "label": "SUPPORTS"}])
    tasks(write, a="train")
    (item,) = read("climate-fever", root).items
    assert (item.gold, item.irrelevant, item.answers) == ((2,), (0,), ("True",))


def test_files_of_ones_own(root: Path, write: Write) -> None:
    write(
        "mine/qa.jsonl.gz",
        [
            {"question": "q", "answers": ["x"], "passages": [{"text": "only one"}]},
            {
                "question": "r",
                "answers": ["y"],
                "passages": [{"text": "a"}, {"text": "b", "gold": True}],
                "form": "long",
            },
        ],
    )
    one, two = read("qa", root, path="mine/qa.jsonl.gz").items
    assert (one.gold, one.irrelevant) == ((0,), ())
    assert (two.gold, two.irrelevant, two.form) == ((2,), (1,), Form.LONG)
    said = [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    write("mine/chat.jsonl.gz", [{"messages": [{"role": role, "content": text} for role, text in said]}])
    (chat,) = read("chat", root, path="mine/chat.jsonl.gz").items
    assert (chat.turns, chat.question, chat.answers) == ((Turn("a", "b"),), "c", ("d",))


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("qa", {"question": "q", "passages": []}),
        ("qa", {"question": "q", "answers": ["x"], "passages": [{}]}),
        ("chat", {"messages": [{"role": "user", "content": "x"}]}),
        ("chat", {"text": "x"}),
    ],
)
def test_a_malformed_line_is_named(name: str, row: dict[str, object], root: Path, write: Write) -> None:
    write("mine.jsonl.gz", [row])
    with pytest.raises(RecipeError, match=r"mine\.jsonl\.gz, line 1: needs"):
        read(name, root, path="mine.jsonl.gz")


def test_documentation_is_drawn_and_answered_by_one_section_of_a_product(root: Path) -> None:
    drawn = read("documentation", root)
    assert drawn.items == read("documentation", root).items
    assert len(drawn.items) > 5000
    for item in drawn.items:
        (gold,) = item.gold
        assert item.answers[0] in drawn.passages[gold].text
        assert gold not in item.irrelevant
        assert {drawn.passages[place].id.split("#")[0] for place in item.irrelevant} == {
            drawn.passages[gold].id.split("#")[0]
        }
    asked = [(item.id.split("#")[0], item.question) for item in drawn.items]
    assert len(set(asked)) == len(asked)
    others = READERS["documentation"].read(Request(root, Split.HELD_OUT, Kind.CONTEXT_RICH_QA, Context()))
    assert {one.text for one in others.passages}.isdisjoint(one.text for one in drawn.passages)


def test_a_line_that_is_not_json_is_named(root: Path) -> None:
    (root / "mine.jsonl").write_text("\n{,}\n")
    with pytest.raises(RecipeError, match=r"mine\.jsonl, line 2 is not JSON"):
        read("chat", root, path="mine.jsonl")


def test_what_is_not_there_is_named(root: Path) -> None:
    for name in set(READERS) - {"qa", "chat", "documentation"}:
        with pytest.raises(MissingDataError, match=r"\.jsonl\.gz"):
            read(name, root)
    with pytest.raises(RecipeError, match="path"):
        read("qa", root)
    with pytest.raises(RecipeError, match="no reader 'squat'"):
        reader("squat")
