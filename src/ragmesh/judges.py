"""A mesh as offline training asks it: candidates from its retriever, answers from its agents, patiently."""

from collections.abc import Callable, Sequence
from typing import Final

from meshkit.errors import MeshError, Unavailable
from ragmesh.aio import AsyncClient
from ragmesh.events import Failed
from ragmesh.generation import LARGEST_BATCH, Generation
from ragmesh.passage import Passage
from ragmesh.patience import PASSING, Waits, patiently
from ragmesh.request import Augmentation, Decoding

AUGMENTATIONS: Final[dict[str, Augmentation | None]] = {
    "fid": "fusion_in_decoder",
    "in-prompt": "in_prompt",
    "": None,
}
"""What an agents' file calls the ways of handing over passages."""

Note = Callable[[str, str], None]
"""Is told what results are made with, by name: versions of models and of the index. It may raise."""


class Judges:
    """Asks one collection and the models of a mesh.

    Args:
        client: finds candidates.
        generation: answers.
        collection: where candidates come from.
        note: told what results are made with.
        watcher: told of every pause.
        batch: answers of one call, 1 to 256.
        timeout: seconds a call may take.
        patience_s: how long the mesh may fail one call before it is given up. Seconds.
    """

    def __init__(
        self,
        client: AsyncClient,
        generation: Generation,
        collection: str,
        *,
        note: Note,
        watcher: Waits,
        batch: int = 32,
        timeout: float = 600.0,
        patience_s: float = 600.0,
    ) -> None:
        self._client = client
        self._generation = generation
        self._collection = collection
        self._note = note
        self._watcher = watcher
        self._batch = min(batch, LARGEST_BATCH)
        self._timeout = timeout
        self._patience_s = patience_s

    async def candidates(self, question: str, *, retriever: str, depth: int) -> list[Passage]:
        """A retriever's best passages for a question, best first.

        Raises:
            MeshError: it refuses, or was away for too long.
        """

        async def ask() -> list[Passage]:
            found = await self._client.retrieve(
                question,
                collection=self._collection,
                retriever=retriever,
                depth=depth,
                k=depth,
                timeout=self._timeout,
            )
            self._note(f"index of {retriever}", found.index_version)
            return [found.passages[at] for at in found.rankings[0]]

        return await patiently(ask, f"query {question!r}", self._watcher, patience_s=self._patience_s)

    async def answers(
        self,
        question: str,
        contexts: Sequence[Sequence[Passage]],
        *,
        model: str,
        augmentation: str = "",
        template: str = "",
        beams: int = 1,
    ) -> list[str | None]:
        """An agent's answer from each context; None where it refuses that one alone.

        Args:
            question: what it is asked.
            contexts: passages for each answer.
            model: who answers, by name.
            augmentation: a key of :data:`AUGMENTATIONS`.
            template: prompt by name; empty: the model's default.
            beams: 1 is greedy.

        Raises:
            MeshError: it refuses all of them, or was away for too long.
        """
        found: list[str | None] = []
        for begin in range(0, len(contexts), self._batch):
            part = contexts[begin : begin + self._batch]

            async def ask(part: Sequence[Sequence[Passage]] = part) -> list[str | None]:
                outcomes = await self._generation.answers(
                    question,
                    part,
                    model=model,
                    augmentation=AUGMENTATIONS[augmentation],
                    template=template or None,
                    decoding=Decoding(num_beams=beams),
                    timeout=self._timeout,
                )
                if len(outcomes) != len(part):
                    raise Unavailable("CUT_OFF", "the generator did not answer everything")
                texts: list[str | None] = []
                for outcome in outcomes:
                    if isinstance(outcome, Failed):
                        if outcome.code in PASSING:
                            raise Unavailable("NO_ANSWER", outcome.message)
                        texts.append(None)
                        continue
                    self._note(f"version of {outcome.model}", outcome.model_version)
                    texts.append(outcome.text)
                return texts

            what = f"query {question!r} for {model}"
            found += await patiently(ask, what, self._watcher, patience_s=self._patience_s)
        return found


async def problems(judges: Judges, question: str, agents: Sequence[tuple[str, str, str]]) -> list[str]:
    """What of a mesh would refuse a run, a line each, found by asking each agent once.

    Args:
        judges: the mesh.
        question: one that a run would ask.
        agents: model, augmentation and template of each.

    Raises:
        MeshError: the mesh does not answer.
    """
    try:
        found = await judges.candidates(question, retriever="bm25", depth=1)
    except MeshError as error:
        if error.code.name in PASSING:
            raise
        return [str(error)]
    wrong = []
    for model, augmentation, template in dict.fromkeys(agents):
        try:
            await judges.answers(question, [found], model=model, augmentation=augmentation, template=template)
        except MeshError as error:
            if error.code.name in PASSING:
                raise
            wrong.append(f"model {model}: {error.message}")
    return wrong
