"""Read the data sets: their training splits (and the rest, for checks) in one form.

Data sets without an official split take that of wiki-multitask, 60/20/20 by a hash of the id; what is not
listed there, and doc2dial's conversations, are split the same way by SHA-256 here.
"""

import gzip
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from evenmesh_core.text_metrics import contains_answer
from evenmesh_generator.domain import Passage, Turn
from evenmesh_generator.pointer.abstention import ABSTENTION
from evenmesh_training.rankrag.data import documentation
from evenmesh_training.rankrag.data.chunks import Label, chunks, label
from evenmesh_training.rankrag.data.examples import Form, Kind
from evenmesh_training.rankrag.recipe import Context, RecipeError

_TRAIN_SHARE = 0.6


class MissingDataError(FileNotFoundError):
    """Raised when a data set is missing; the message names the file."""


class Split(Enum):
    """Which part of a data set."""

    TRAIN = "train"
    HELD_OUT = "held out"


@dataclass(frozen=True, slots=True)
class Item:
    """A question, claim or turn. ``gold`` and ``irrelevant`` are places in the data set's passages.

    ``irrelevant``: known negatives; where there are none, BM25 finds them.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    gold: tuple[int, ...] = ()
    irrelevant: tuple[int, ...] = ()
    turns: tuple[Turn, ...] = ()
    form: Form = Form.SHORT


@dataclass(frozen=True)
class Dataset:
    """A data set as read: its passages (also what BM25 searches), its items, how it was split."""

    name: str
    split: str
    passages: Sequence[Passage]
    items: Sequence[Item]


@dataclass(frozen=True)
class Request:
    """What a reader is asked for: files below ``root`` (``path`` for the general readers), for which kind."""

    root: Path
    split: Split
    kind: Kind
    context: Context
    path: str | None = None


@dataclass(frozen=True)
class Reader:
    """How a data set is read; ``by_kind``: the items differ with the kind of example they are for."""

    read: Callable[[Request], Dataset]
    licence: str
    by_kind: bool = False


def default_data() -> Path:
    """Return the folder of the data sets: ``EVENMESH_SHARED_DATA``, or ``../shared/data`` by the
    repository.
    """
    named = os.environ.get("EVENMESH_SHARED_DATA")
    return Path(named) if named else Path(__file__).resolve().parents[5] / "shared" / "data"


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON-lines file, gzipped or not.

    Raises:
        MissingDataError: there is no such file.
        RecipeError: a line is no JSON object.
    """
    if not path.is_file():
        raise MissingDataError(str(path))
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode())
            except (ValueError, RecursionError) as error:
                raise RecipeError(f"{path}, line {number} is not JSON: {error}") from None
            if not isinstance(row, dict):
                raise RecipeError(f"{path}, line {number} is not an object")
            yield row


def reader(name: str) -> Reader:
    """Return the reader of the data set ``name``.

    Raises:
        RecipeError: there is none.
    """
    try:
        return READERS[name]
    except KeyError:
        raise RecipeError(
            f"dataset: no reader {name!r}; there are {', '.join(sorted(READERS))} "
            "(qa and chat read files of your own, named by path)"
        ) from None


def hashed_train(name: str) -> bool:
    """Return whether ``name`` falls into the training 60 % by its SHA-256."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64 < _TRAIN_SHARE


def _wanted(request: Request, train: bool) -> bool:
    return train is (request.split is Split.TRAIN)


def _splits(root: Path) -> dict[str, bool]:
    """Return wiki-multitask's split: whether each id is training data."""
    return {row["id"]: row["split"] == "train" for row in rows(root / "wiki-multitask" / "tasks.jsonl.gz")}


def _passages(path: Path) -> list[Passage]:
    return [Passage(row["id"], row["title"], row["text"]) for row in rows(path)]


def _places(passages: Sequence[Passage]) -> dict[str, int]:
    return {passage.id: place for place, passage in enumerate(passages)}


def _annotated(
    name: str,
    split: str,
    passages: Sequence[Passage],
    questions: Iterable[dict[str, Any]],
    *,
    question: str = "question",
    answers: Callable[[dict[str, Any]], tuple[str, ...]] = lambda row: tuple(row["answers"]),
    form: Form = Form.SHORT,
) -> Dataset:
    """Return a data set whose questions name their gold passages by id."""
    place = _places(passages)
    items = [
        Item(
            row["id"],
            row[question],
            answers(row),
            tuple(place[g] for g in row["gold_passage_ids"]),
            form=form,
        )
        for row in questions
    ]
    return Dataset(name, split, passages, items)


def _squad(request: Request) -> Dataset:
    split = "train" if request.split is Split.TRAIN else "dev"
    folder = request.root / "squad-open"
    return _annotated(
        "squad-open",
        f"official {split}",
        _passages(folder / f"passages.{split}.jsonl.gz"),
        rows(folder / f"questions.{split}.jsonl.gz"),
    )


def _qed(request: Request) -> Dataset:
    folder = request.root / "nq-passages"
    passages = _passages(folder / "passages.jsonl.gz")
    splits = _splits(request.root)
    # "none": QED's annotators found the answer wrong; such questions train nothing and test nothing
    questions = (
        row
        for row in rows(folder / "questions.jsonl.gz")
        if _wanted(request, row["explanation_type"] != "none" and splits.get(row["id"], False))
    )
    return _annotated("nq-passages", "QED questions in wiki-multitask's train", passages, questions)


def _clapnq(request: Request) -> Dataset:
    folder = request.root / "nq-passages"
    passages = _passages(folder / "clapnq_passages.jsonl.gz")
    place = _places(passages)
    items = [
        Item(
            row["id"],
            row["question"],
            tuple(row["long_answers"]) or (ABSTENTION,),
            tuple(place[g] for g in row["gold_passage_ids"]),
            () if row["answerable"] else tuple(place[g] for g in row["shown_passage_ids"]),
            form=Form.LONG,
        )
        for row in rows(folder / "clapnq_questions.jsonl.gz")
        if _wanted(request, False)
    ]
    return Dataset("clapnq", "dev, all held out", passages, items)


def _slots(request: Request) -> Dataset:
    folder = request.root / "wiki-multitask"
    passages = _passages(folder / "passages.jsonl.gz")
    place = _places(passages)
    items = []
    for row in rows(folder / "tasks.jsonl.gz"):
        if not _wanted(request, row["split"] == "train") or row["task"] != "slot_filling":
            continue  # the other tasks are read from their own data sets
        entity, slot = row["input"].split(" [SEP] ")
        gold = tuple(place[g] for g in row["gold_passage_ids"])
        items.append(Item(row["id"], f"{entity}: {slot}", tuple(row["answers"]), gold))
    return Dataset("wiki-multitask", "slot filling, its train", passages, items)


def _multihop(request: Request) -> Dataset:
    folder = request.root / "multihop-small"
    passages = _passages(folder / "passages.jsonl.gz")
    splits = _splits(request.root)
    questions = (
        row for row in rows(folder / "questions.jsonl.gz") if _wanted(request, splits.get(row["id"], False))
    )
    return _annotated("multihop-small", "wiki-multitask's train", passages, questions)


def _label_chunks(
    texts: Sequence[tuple[int, str]], answer: str, context: Context
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the places of the chunks that 4-gram recall calls relevant, and of those it calls irrelevant."""
    labels = [
        (place, label(text, answer, above=context.relevant_above, below=context.irrelevant_below))
        for place, text in texts
    ]
    return (
        tuple(place for place, found in labels if found is Label.RELEVANT),
        tuple(place for place, found in labels if found is Label.IRRELEVANT),
    )


def _doc2dial(request: Request) -> Dataset:
    """Read doc2dial: 4-gram recall labels contexts for ranking; answers take the chunk at
    ``answer_start``.
    """
    folder = request.root / "doc2dial-val"
    passages: list[Passage] = []
    begins: list[int] = []
    cut: dict[str, range] = {}
    for row in rows(folder / "documents.jsonl.gz"):
        first = len(passages)
        for number, (begin, text) in enumerate(chunks(row["text"], request.context.chunk_words)):
            passages.append(Passage(f"{row['id']}#{number}", row["title"], text))
            begins.append(begin)
        cut[row["id"]] = range(first, len(passages))
    items = []
    for row in rows(folder / "turns.jsonl.gz"):
        if not _wanted(request, hashed_train(row["conversation_id"])):
            continue
        own = cut[row["gold_passage_ids"][0]]
        answer = row["answers"][0]
        if request.kind.ranks:
            gold, irrelevant = _label_chunks(
                [(place, passages[place].text) for place in own], answer, request.context
            )
        else:
            start = row["answer_start"][0]
            before = [place for place in own if begins[place] <= start]
            gold = tuple(p for p in before[-1:] if contains_answer(passages[p].text, answer))
            irrelevant = tuple(p for p in own if not contains_answer(passages[p].text, answer))
        turns, question = _dialogue(row["history"])
        items.append(Item(row["id"], question, (answer,), gold, irrelevant, turns, Form.LONG))
    return Dataset("doc2dial-val", "60 % of the conversations by hash", passages, items)


def _dialogue(history: Sequence[Mapping[str, str]]) -> tuple[tuple[Turn, ...], str]:
    """Return the turns and the user's last utterance; join a speaker's consecutive utterances."""
    said: list[tuple[str, str]] = []
    for one in history:
        if said and said[-1][0] == one["role"]:
            said[-1] = (one["role"], f"{said[-1][1]} {one['text']}")
        else:
            said.append((one["role"], one["text"]))
    question = said.pop()[1]
    if said and said[0][0] != "user":
        said.insert(0, ("user", ""))
    pairs = zip(said[::2], said[1::2], strict=False)
    return tuple(Turn(asked[1], answered[1]) for asked, answered in pairs), question


def _topiocqa(request: Request) -> Dataset:
    """Read TopiOCQA; it ships no passages, so ranking uses squad-open's articles of the topic's title."""
    split = "train" if request.split is Split.TRAIN else "dev"
    passages: list[Passage] = []
    articles: dict[str, list[int]] = defaultdict(list)
    if request.kind is not Kind.SFT:
        texts: dict[str, list[str]] = defaultdict(list)
        for row in rows(request.root / "squad-open" / f"passages.{split}.jsonl.gz"):
            texts[row["title"]].append(row["text"])
        for title, found in texts.items():
            for number, (_, text) in enumerate(chunks("\n".join(found), request.context.chunk_words)):
                articles[title].append(len(passages))
                passages.append(Passage(f"{title}#{number}", title, text))
    items = []
    for row in rows(request.root / "topiocqa" / f"conversations.{split}.jsonl.gz"):
        turns: list[Turn] = []
        for turn in row["turns"]:
            unanswered = turn["answer"] == "UNANSWERABLE"
            answer = ABSTENTION if unanswered else turn["answer"]
            gold: tuple[int, ...] = ()
            irrelevant: tuple[int, ...] = ()
            if not unanswered and articles.get(turn["topic"]):
                own = [(place, passages[place].text) for place in articles[turn["topic"]]]
                gold, irrelevant = _label_chunks(own, answer, request.context)
            # without passages "not in the passages" would be false: such turns serve as context only
            if not unanswered:
                name = f"{row['id']}-{turn['turn']}"
                asked = turn["question"]
                items.append(Item(name, asked, (answer,), gold, irrelevant, tuple(turns), Form.LONG))
            turns.append(Turn(turn["question"], answer))
    return Dataset("topiocqa", f"official {split}", passages, items)


_VERDICTS = {"SUPPORTS": ("True",), "REFUTES": ("False",)}


def _climate(request: Request) -> Dataset:
    folder = request.root / "climate-fever"
    passages = _passages(folder / "passages.jsonl.gz")
    place = _places(passages)
    splits = _splits(request.root)
    judged: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in rows(folder / "qrels.jsonl.gz"):
        judged[row["query_id"]].append((place[row["doc_id"]], row["relevance"]))
    items = []
    for row in rows(folder / "claims.jsonl.gz"):
        if not _wanted(request, splits.get(row["id"], hashed_train(row["id"]))):
            continue
        gold = tuple(p for p, relevance in judged[row["id"]] if relevance > 0)
        irrelevant = tuple(p for p, relevance in judged[row["id"]] if relevance == 0)
        answers = _VERDICTS.get(row["label"], (ABSTENTION,))
        items.append(Item(row["id"], row["claim"], answers, gold, irrelevant, form=Form.CLAIM))
    return Dataset("climate-fever", "wiki-multitask's train, the rest by hash", passages, items)


def _fever(request: Request) -> Dataset:
    folder = request.root / "fever-symmetric"
    passages = _passages(folder / "passages.jsonl.gz")
    splits = _splits(request.root)
    return _annotated(
        "fever-symmetric",
        "wiki-multitask's train",
        passages,
        (row for row in rows(folder / "claims.jsonl.gz") if _wanted(request, splits.get(row["id"], False))),
        question="claim",
        answers=lambda row: _VERDICTS[row["label"]],
        form=Form.CLAIM,
    )


def _own_path(request: Request) -> Path:
    if request.path is None:
        raise RecipeError("path: the qa and chat readers need the path of a JSON-lines file")
    return request.root / request.path


def _qa(request: Request) -> Dataset:
    """Read lines ``{id?, question, answers, passages: [{title?, text, gold?}], turns?, form?}``."""
    path = _own_path(request)
    passages: list[Passage] = []
    place: dict[tuple[str, str], int] = {}
    items = []
    for number, row in enumerate(rows(path), start=1):
        try:
            found: dict[bool, list[int]] = {True: [], False: []}
            for one in row.get("passages", []):
                key = (one.get("title", ""), one["text"])
                if key not in place:
                    place[key] = len(passages)
                    passages.append(Passage(f"{request.path}#{len(passages)}", *key))
                found[bool(one.get("gold", len(row["passages"]) == 1))].append(place[key])
            items.append(
                Item(
                    str(row.get("id", number)),
                    row["question"],
                    tuple(row["answers"]),
                    tuple(found[True]),
                    tuple(found[False]),
                    tuple(Turn(turn["question"], turn["answer"]) for turn in row.get("turns", [])),
                    Form(row.get("form", Form.SHORT)),
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RecipeError(
                f"{path}, line {number}: needs question, answers and passages of {{title?, text, gold?}} "
                f"({type(error).__name__}: {error})"
            ) from None
    return Dataset(str(request.path), "all of the file", passages, items)


def _chat(request: Request) -> Dataset:
    """Read lines ``{id?, messages: [{role: user or assistant, content}]}``, the assistant's last."""
    path = _own_path(request)
    items = []
    for number, row in enumerate(rows(path), start=1):
        try:
            said = [
                {"role": one["role"], "text": one["content"]}
                for one in row["messages"]
                if one["role"] != "system"
            ]
            if len(said) < 2 or said[-1]["role"] != "assistant":
                raise ValueError("the last message must be the assistant's answer to the user")
            turns, question = _dialogue(said[:-1])
        except (KeyError, TypeError, ValueError) as error:
            raise RecipeError(
                f"{path}, line {number}: needs messages of {{role, content}} "
                f"({type(error).__name__}: {error})"
            ) from None
        answer = said[-1]["text"]
        items.append(Item(str(row.get("id", number)), question, (answer,), turns=turns, form=Form.LONG))
    return Dataset(str(request.path), "all of the file", (), items)


def _documentation(request: Request) -> Dataset:
    """Draw pages of documentation, and others to hold out; the other sections of a product do not answer."""
    passages: list[Passage] = []
    items = []
    seed = 0 if request.split is Split.TRAIN else 1
    for number, sections in enumerate(documentation.products(seed)):
        first = len(passages)
        passages += [Passage(f"{seed}/{number}#{at}", one.title, one.text) for at, one in enumerate(sections)]
        for at, one in enumerate(sections):
            others = tuple(first + place for place in range(len(sections)) if place != at)
            items += [
                Item(
                    f"{passages[first + at].id}/{asked}", fact.question, (fact.answer,), (first + at,), others
                )
                for asked, fact in enumerate(one.facts)
            ]
    return Dataset("documentation", f"drawn from seed {seed}", passages, items)


READERS: dict[str, Reader] = {
    "squad-open": Reader(_squad, "attribution"),
    "nq-passages": Reader(_qed, "attribution"),
    "clapnq": Reader(_clapnq, "attribution"),
    "wiki-multitask": Reader(_slots, "unstated"),
    "multihop-small": Reader(_multihop, "attribution"),
    "topiocqa": Reader(_topiocqa, "non-commercial", by_kind=True),
    "doc2dial-val": Reader(_doc2dial, "unstated", by_kind=True),
    "climate-fever": Reader(_climate, "unstated"),
    "fever-symmetric": Reader(_fever, "attribution"),
    "documentation": Reader(_documentation, "own"),
    "qa": Reader(_qa, "own"),
    "chat": Reader(_chat, "own"),
}
"""Readers by the name a recipe gives; licences are the classes of the data folder's README."""
