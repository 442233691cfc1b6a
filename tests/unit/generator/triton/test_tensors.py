from dataclasses import replace

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.wire.errors import InvalidField, MeshError, NotFound, Overloaded
from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    Cost,
    Decoding,
    FinishReason,
    GenerationRequest,
    ModelDescription,
    Passage,
    Span,
    Turn,
)
from evenmesh_generator.runtime.statistics import EngineStatistics
from evenmesh_generator.triton.tensors import (
    Tensor,
    answer_tensors,
    description_tensors,
    error_text,
    flag,
    read_answer,
    read_description,
    read_error,
    read_request,
    request_tensors,
    texts,
)

TEXT = st.text(max_size=20)
GREEDY_OR_BEAMS = st.builds(
    Decoding,
    num_beams=st.integers(1, 16),
    max_new_tokens=st.integers(1, 4096),
    stop=st.lists(st.text(min_size=1, max_size=4), max_size=8).map(tuple),
)
SAMPLED = st.builds(
    Decoding,
    temperature=st.floats(0, 10),
    top_p=st.floats(0, 1, exclude_min=True),
    seed=st.integers(0, 2**63 - 1),
)
REQUESTS = st.builds(
    GenerationRequest,
    TEXT,
    st.lists(st.tuples(TEXT, TEXT), max_size=4).map(
        lambda pairs: tuple(Passage(str(at), *pair) for at, pair in enumerate(pairs))
    ),
    augmentation=st.none() | st.sampled_from(Augmentation),
    template=TEXT,
    decoding=GREEDY_OR_BEAMS | SAMPLED,
    turns=st.lists(st.builds(Turn, TEXT, TEXT), max_size=3).map(tuple),
    contextual_question=TEXT,
)


@given(REQUESTS)
def test_a_request_comes_out_as_it_went_in(request: GenerationRequest) -> None:
    assert read_request(request_tensors(request)) == request


def test_what_has_its_default_is_not_sent() -> None:
    assert set(request_tensors(GenerationRequest("q"))) == {"question"}


def test_defaults_of_the_model_count_where_the_request_says_nothing() -> None:
    defaults = Decoding(num_beams=4, max_new_tokens=9)
    assert read_request({"question": texts(["q"])}, defaults).decoding == defaults
    sent = {"question": texts(["q"]), "num_beams": np.array([2], np.int32)}
    assert read_request(sent, defaults).decoding == Decoding(num_beams=2, max_new_tokens=9)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("num_beams", np.array([0], np.int32)),
        ("num_beams", np.array([17], np.int32)),
        ("num_beams", np.array([1, 1], np.int32)),
        ("max_new_tokens", np.array([4097], np.int32)),
        ("temperature", np.array([np.nan])),
        ("temperature", np.array([-0.1])),
        ("top_p", np.array([0.0])),
        ("top_p", np.array([1.5])),
        ("stop[0]", texts([""])),
        ("stop", texts(["a"] * 9)),
        ("seed", np.array([-1], np.int64)),
        ("augmentation", texts(["telepathy"])),
        ("question", texts(["one", "two"])),
        ("question", np.array([b"\xff"], dtype=object)),
        ("passage_texts", texts(["a text without a title"])),
        ("turn_answers", texts(["an answer to no question"])),
    ],
)
def test_values_that_are_not_allowed_are_named(name: str, tensor: Tensor) -> None:
    with pytest.raises(InvalidField) as caught:
        read_request({"question": texts(["q"]), name.partition("[")[0]: tensor})
    assert caught.value.field == name


def test_beams_and_sampling_exclude_each_other() -> None:
    sent = {"question": texts(["q"]), "num_beams": np.array([2], np.int32), "temperature": np.array([1.0])}
    with pytest.raises(InvalidField, match="must be 1"):
        read_request(sent)


def test_an_answer_comes_out_as_it_went_in() -> None:
    answer = Answer(
        "Zürich",
        FinishReason.LENGTH,
        prompt_tokens=7,
        completion_tokens=3,
        log_probability=-1.25,
        dropped_passages=1,
        cut_passages=2,
        dropped_turns=3,
        cut_question=True,
        confidence=0.75,
        span=Span(2, 10, 16),
        model_version="v1",
        cost=Cost(0.5, 1.0, 2.0, 10, 20, 3),
    )
    found = read_answer(answer_tensors(answer))
    assert (found, found.model_version, found.cost) == (answer, "v1", answer.cost)


@pytest.mark.parametrize("missing", sorted(answer_tensors(Answer("", FinishReason.STOP, 0, 0, 0.0))))
def test_a_part_of_an_answer_is_no_answer(missing: str) -> None:
    tensors = answer_tensors(Answer("text", FinishReason.STOP, 1, 1, -1.0))
    del tensors[missing]
    if missing in {"text", "model_version", "grounds"}:
        assert read_answer(tensors).completion_tokens == 1
    else:
        with pytest.raises(InvalidField):
            read_answer(tensors)


def test_an_older_server_says_nothing_of_where_an_answer_stands() -> None:
    tensors = answer_tensors(
        Answer("text", FinishReason.STOP, 1, 1, -1.0, confidence=0.5, span=Span(0, 1, 5))
    )
    del tensors["grounds"]
    answer = read_answer(tensors)
    assert (answer.confidence, answer.span) == (None, None)


@pytest.mark.parametrize("grounds", ["{", "[]", '{"span": 3}', '{"confidence": "x"}'])
def test_grounds_that_are_none_are_an_error(grounds: str) -> None:
    tensors = answer_tensors(Answer("text", FinishReason.STOP, 1, 1, -1.0)) | {"grounds": texts([grounds])}
    with pytest.raises(InvalidField):
        read_answer(tensors)


def test_a_description_comes_out_and_what_is_not_known_of_it_is_left_out() -> None:
    description = ModelDescription(
        "m", "v", "transformers", "T5", "cpu", "float32", True, 512, 100, (Augmentation.IN_PROMPT,)
    )
    statistics = EngineStatistics(steps=3, step_rows=5)
    tensors = description_tensors(description, statistics)
    assert read_description(tensors) == (description, statistics)
    newer = tensors["description"][0].decode().replace('"steps": 3', '"steps": 3, "dreams": 1')
    assert read_description({"description": texts([newer])}) == (description, statistics)
    older = description_tensors(replace(description, reads_context=True), statistics)["description"][
        0
    ].decode()
    older = older.replace(', "reads_context": true', "")
    # An older server would reject the input.
    assert read_description({"description": texts([older])}) == (description, statistics)
    with pytest.raises(InvalidField):
        read_description({"description": texts(["[]"])})


@pytest.mark.parametrize(
    "error",
    [
        InvalidField("question", "is empty"),
        NotFound("template", "no template 'x'"),
        Overloaded("too much", 0.5),
        MeshError(grpc.StatusCode.FAILED_PRECONDITION, "NO_RELEVANCE", 'says "no"'),
    ],
    ids=lambda error: error.code.name,
)
def test_an_error_comes_out_as_it_went_in(error: MeshError) -> None:
    for around in ("{}", "[StatusCode.UNAVAILABLE] {}", "in ensemble 'x', {}"):
        found = read_error(around.replace("{}", error_text(error)))
        assert found is not None
        assert (found.code, found.reason, found.message, found.field, found.retry_after_s) == (
            error.code,
            error.reason,
            error.message,
            error.field,
            error.retry_after_s,
        )
        assert isinstance(found, type(error))


@pytest.mark.parametrize("text", ["", "Stub process 'x' is not healthy.", "{}", '{"code": 1}', "} {"])
def test_triton_s_own_words_are_no_error_of_ours(text: str) -> None:
    assert read_error(text) is None


def test_flags() -> None:
    assert not flag({}, "describe")
    assert not flag({"describe": np.array([False])}, "describe")
    assert flag({"describe": np.array([True])}, "describe")
