"""What a study of conversations asks."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final

from evenmesh.types.conversation import ConversationOptions, GroupTarget
from evenmesh.types.request import AskOptions, Decoding
from evenmesh_studies.conversations.topics import Topic, Topics
from evenmesh_studies.runner import WHOLE, Shard
from evenmesh_studies.runner.queries import file_digest

RECORDS: Final = "conversations"
"""Name of the file of conversations as they were held."""


@dataclass(frozen=True, slots=True)
class SystemSettings:
    """A system under test: the mesh at a fairness dial, or a model of another endpoint.

    Attributes:
        name: in reports and files.
        alpha: of the mesh; None for the ranking as it is.
        model: of the other endpoint, or the generator's; empty for the mesh's own.
    """

    name: str
    alpha: float | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class ConversationUnit:
    """One conversation: a topic with a system in a trial, counted from 1."""

    system: SystemSettings
    trial: int
    topic: Topic

    @property
    def name(self) -> str:
        """Name in the journal."""
        return json.dumps([self.system.name, self.trial, self.topic.name], ensure_ascii=False)

    @property
    def title(self) -> str:
        """Name in messages."""
        return f"topic {self.topic.name!r} with {self.system.name}, trial {self.trial}"

    @property
    def records(self) -> str:
        """Name of the file of conversations."""
        return RECORDS


@dataclass(frozen=True, slots=True)
class ConversationPlan:
    """Conversations on many topics, several times.

    Attributes:
        topics: what they are about.
        systems: under test, each once.
        trials: conversations of each system on each topic, from 1.
        seed: of the first trial; each later trial has the next.
        temperature: of sampled answers; None for greedy ones.
        endpoint: base address of an OpenAI-compatible endpoint; empty for the mesh.
        targets: group shares to be fair to.
        conversation: options of conversations with the mesh, without ``targets``.
        options: options of their turns, without those of a unit.
        timeout: seconds for one turn.
        run_id: run that observations are filed under; empty for one derived from the settings.
    """

    kind: ClassVar[str] = "harvest"

    topics: Topics
    systems: Sequence[SystemSettings]
    trials: int = 2
    seed: int = 0
    temperature: float | None = None
    endpoint: str = ""
    targets: Sequence[GroupTarget] = ()
    conversation: ConversationOptions = field(default_factory=ConversationOptions)
    options: AskOptions = field(default_factory=AskOptions)
    timeout: float = 120.0
    run_id: str = ""

    def repeats(self, system: SystemSettings) -> int:
        """Return the number of trials of a system: one if all would be equal."""
        varies = bool(self.endpoint) or system.alpha is not None or bool(self.temperature)
        return self.trials if varies else 1

    def units(self, shard: Shard = WHOLE) -> Iterator[ConversationUnit]:
        """Return the conversations of a shard: as in the paper, all topics of a trial before the next."""
        for trial in range(1, self.trials + 1):
            for system in self.systems:
                if trial <= self.repeats(system):
                    for topic in shard.of(self.topics.topics):
                        yield ConversationUnit(system, trial, topic)

    def settings(self, shard: Shard = WHOLE) -> dict[str, Any]:
        """Return everything that decides the results of a shard, as JSON values."""
        options = {name: value for name, value in self.options.items() if value is not None}
        how = {name: value for name, value in self.conversation.items() if value is not None}
        return {
            "topics": file_digest(self.topics.path),
            "systems": [asdict(system) for system in self.systems],
            "trials": self.trials,
            "seed": self.seed,
            "temperature": self.temperature,
            "endpoint": self.endpoint,
            "targets": [asdict(target) for target in self.targets],
            "conversation": json.loads(json.dumps(how)),
            "options": json.loads(json.dumps(options, default=repr)),
            **shard.settings,
        }

    @property
    def digest(self) -> str:
        """Digest of the settings, 12 characters."""
        return hashlib.sha256(json.dumps(self.settings()).encode()).hexdigest()[:12]

    def ask_options(self, unit: ConversationUnit) -> AskOptions:
        """Return the options of a unit's turns."""
        options: AskOptions = {**self.options, "run_id": self.run_id or f"harvest-{self.digest}"}
        seed = self.seed + unit.trial - 1
        if unit.system.alpha is not None:
            options["alpha"], options["seed"] = unit.system.alpha, seed
        if unit.system.model:
            options["model"] = unit.system.model
        if self.temperature:
            options["decoding"] = Decoding(num_beams=1, temperature=self.temperature, seed=seed)
        return options

    def conversation_options(self) -> ConversationOptions:
        """Return the options of conversations with the mesh."""
        return {**self.conversation, "targets": self.targets}
