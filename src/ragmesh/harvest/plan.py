"""What a harvest asks, cell by cell."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ragmesh.conversation import ConversationOptions, GroupTarget
from ragmesh.harvest.topics import Topic, Topics
from ragmesh.request import AskOptions, Decoding


@dataclass(frozen=True, slots=True)
class System:
    """What is talked with: the mesh at a fairness dial, or a model of another endpoint.

    Attributes:
        name: its name in reports and files.
        alpha: of the mesh; None for the ranking as it is.
        model: of the other endpoint, or the generator's; empty for the mesh's own.
    """

    name: str
    alpha: float | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One conversation: a topic, with a system, for the n-th time, which counts from 1."""

    system: System
    trial: int
    topic: Topic

    @property
    def name(self) -> str:
        """Its name in the journal."""
        return json.dumps([self.system.name, self.trial, self.topic.name], ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class HarvestPlan:
    """Conversations on many topics.

    Attributes:
        topics: what they are about.
        systems: what is talked with, each once.
        trials: how often, from 1.
        seed: of the first trial; each trial after it has the next.
        temperature: of sampled answers; None for greedy ones.
        endpoint: base address of an OpenAI-compatible endpoint; empty for the mesh.
        targets: what is fair.
        conversation: how conversations with the mesh go, but for ``targets``.
        options: how their turns are answered, but for what a cell says.
        timeout: seconds for a turn.
        run_id: run that observations are filed under; empty for one named after the settings.
    """

    topics: Topics
    systems: Sequence[System]
    trials: int = 2
    seed: int = 0
    temperature: float | None = None
    endpoint: str = ""
    targets: Sequence[GroupTarget] = ()
    conversation: ConversationOptions = field(default_factory=ConversationOptions)
    options: AskOptions = field(default_factory=AskOptions)
    timeout: float = 120.0
    run_id: str = ""

    def repeats(self, system: System) -> int:
        """Trials of a system: one where every trial would be the same."""
        varies = bool(self.endpoint) or system.alpha is not None or bool(self.temperature)
        return self.trials if varies else 1

    def cells(self) -> Iterator[Cell]:
        """All conversations; as in the paper all topics once, and then again."""
        for trial in range(1, self.trials + 1):
            for system in self.systems:
                if trial <= self.repeats(system):
                    for topic in self.topics.topics:
                        yield Cell(system, trial, topic)

    def settings(self) -> Mapping[str, Any]:
        """What decides the results, as JSON can say it."""
        options = {name: value for name, value in self.options.items() if value is not None}
        how = {name: value for name, value in self.conversation.items() if value is not None}
        return {
            "topics": hashlib.sha256(self.topics.path.read_bytes()).hexdigest(),
            "systems": [asdict(system) for system in self.systems],
            "trials": self.trials,
            "seed": self.seed,
            "temperature": self.temperature,
            "endpoint": self.endpoint,
            "targets": [asdict(target) for target in self.targets],
            "conversation": json.loads(json.dumps(how)),
            "options": json.loads(json.dumps(options, default=repr)),
        }

    @property
    def digest(self) -> str:
        """A name of what decides the results, 12 characters."""
        return hashlib.sha256(json.dumps(self.settings()).encode()).hexdigest()[:12]

    def ask_options(self, cell: Cell) -> AskOptions:
        """How the turns of a cell are answered by the mesh."""
        options: AskOptions = {**self.options, "run_id": self.run_id or f"harvest-{self.digest}"}
        seed = self.seed + cell.trial - 1
        if cell.system.alpha is not None:
            options["alpha"], options["seed"] = cell.system.alpha, seed
        if cell.system.model:
            options["model"] = cell.system.model
        if self.temperature:
            options["decoding"] = Decoding(num_beams=1, temperature=self.temperature, seed=seed)
        return options

    def conversation_options(self) -> ConversationOptions:
        """How conversations with the mesh go."""
        return {**self.conversation, "targets": self.targets}
