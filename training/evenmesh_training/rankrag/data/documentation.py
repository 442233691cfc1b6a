"""Make pages of documentation of products that do not exist, and questions that they answer.

No data set with a licence for shipped weights asks about documentation. These pages have what such pages
have and encyclopaedias have not: tables of settings, lists, commands, and words explained in a line. Facts,
names and numbers are drawn; sentences and questions come from a few dozen forms, so a model learns to read
such pages from them, and nothing about any product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")

PRODUCTS: Final = 220
"""Products documented: 1,760 sections with 11,600 questions."""


def _listed(text: str, separator: str = " ") -> list[str]:
    return text.split(separator)


_SYLLABLES: Final = _listed(
    "ba cor dan el far gri hol jen kas lum mor nex or pli quo rin sol tar ul vex wil zan"
)
_COMPONENTS: Final = _listed(
    "scheduler importer gateway worker indexer mailer broker exporter archiver collector dispatcher "
    "monitor renderer planner balancer registry recorder translator uploader watcher"
)
_ROLES: Final = (
    ("starts jobs in order", "start jobs in order"),
    ("reads files of other systems", "read files of other systems"),
    ("takes requests from outside", "take requests from outside"),
    ("sends letters to customers", "send letters to customers"),
    ("keeps old records", "keep old records"),
    ("writes reports", "write reports"),
    ("checks signatures", "check signatures"),
    ("draws maps and pictures", "draw maps and pictures"),
    ("counts visits of a page", "count visits of a page"),
    ("spreads load over machines", "spread load over machines"),
    ("finds duplicate entries", "find duplicate entries"),
    ("translates messages", "translate messages"),
    ("copies data to a second site", "copy data to a second site"),
    ("removes files that nobody needs", "remove files that nobody needs"),
    ("refreshes prices", "refresh prices"),
    ("renews certificates", "renew certificates"),
    ("measures the temperature of disks", "measure the temperature of disks"),
    ("publishes new versions", "publish new versions"),
)
_THINGS: Final = _listed(
    "session job report profile message token connection backup ticket project document channel folder "
    "comment payment template device label record note contract lock picture shipment"
)
_OWNERS: Final = _listed("user team customer company machine caller workspace group site")
_DATABASES: Final = _listed("PostgreSQL MySQL MariaDB MongoDB Redis Cassandra CouchDB Oracle DuckDB etcd S3")
_FORMATS: Final = _listed("JSON|CSV|XML|YAML|Parquet|Avro|PDF|Markdown|plain text|TOML", "|")
_TOOLS: Final = _listed("Docker Node.js Java Go Ruby Terraform Git Ansible Rust PHP .NET Bash CMake nginx")
_STATUSES: Final = _listed(
    "NOT_FOUND PERMISSION_DENIED ALREADY_EXISTS UNAVAILABLE ABORTED DATA_LOSS OUT_OF_RANGE 404 409 423 "
    "503 429"
)
_COLOURS: Final = _listed("strict fast silent compact legacy verbose lazy secure shared local partial full")
_KINDS: Final = (
    "list of jobs that wait|jobs|file with the rights of every user|rights",
    "copy of a page that is shown while the real one is made|pages",
    "number that says how old an entry is|entries",
    "queue between two services|messages",
    "record of who changed what and when|changes",
    "name that stands for several machines|machines",
    "share of calls that ended well|calls",
    "time between a request and its first byte|requests",
    "set of tests that run before a release|releases",
    "person who may read everything and change nothing|rights",
    "promise of how often a service answers|services",
    "group of machines in one building|machines",
    "place where old messages are kept until somebody reads them|messages",
    "token that a program sends instead of a password|programs",
    "step that makes one file of many|files",
)
_TERMS: Final = _listed(
    "backlog snapshot shard ledger quorum lease rollout sandbox digest fallback checkpoint envelope "
    "replica manifest tombstone watermark canary blueprint heartbeat mirror"
)
_SECONDS: Final = (
    "5 s",
    "30 s",
    "90 s",
    "2 minutes",
    "10 minutes",
    "15 seconds",
    "0.5 s",
    "3 hours",
    "45 s",
    "200 ms",
)
_SIZES: Final = ("64 MiB", "2 GB", "512 KiB", "10 MB", "1 GiB", "250 MB", "16 KiB", "8 GB", "about 3 GB")
_WORDS_OF_NUMBERS: Final = ("two", "three", "four", "six", "ten", "twelve", "twenty")


class Fact(NamedTuple):
    """A question and the words of the section that answer it."""

    question: str
    answer: str


class Section(NamedTuple):
    """A section of a page: its title, its Markdown, and what can be asked about it."""

    title: str
    text: str
    facts: tuple[Fact, ...]


class _Setting(NamedTuple):
    """A setting: its name, its value, what it means, and questions whose answer is the value."""

    name: str
    value: str
    meaning: str
    questions: tuple[str, ...]


class _Author:
    """Writes the sections of one product."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        name = "".join(self._some(_SYLLABLES, 3 if rng.random() < 0.5 else 2))
        self.name = name.capitalize()
        self._upper = name.upper()
        self._number = int(rng.integers(1000, 9000))
        self._asked: set[str] = set()
        self._meant: set[str] = set()

    def sections(self) -> Iterator[Section]:
        """Yield sections, each of one kind."""
        kinds: list[Callable[[], Section]] = [
            self._settings,
            self._settings,
            self._components,
            self._words,
            self._needs,
            self._commands,
            self._storage,
            self._rules,
        ]
        for kind in kinds:
            section = kind()
            # Nothing is asked that two sections answer.
            facts = tuple(
                {one.question: one for one in section.facts if one.question not in self._asked}.values()
            )
            self._asked.update(one.question for one in facts)
            if facts:
                yield section._replace(facts=facts)

    def _one(self, of: Sequence[T]) -> T:
        return of[int(self._rng.integers(len(of)))]

    def _some(self, of: Sequence[T], count: int) -> list[T]:
        return [of[int(at)] for at in self._rng.permutation(len(of))[:count]]

    def _count(self) -> str:
        if self._rng.random() < 0.25:
            return self._one(_WORDS_OF_NUMBERS)
        number = int(self._rng.integers(1, 20)) * int(10 ** self._rng.integers(0, 5))
        return f"{number:,}" if self._rng.random() < 0.6 else str(number)

    def _code(self, text: str) -> str:
        return f"`{text}`" if self._rng.random() < 0.7 else text

    def _bold(self, text: str) -> str:
        return f"**{text}**" if self._rng.random() < 0.5 else self._code(text)

    def _table(self, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        lines = [heads, ["---"] * len(heads), *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def _lead(self) -> str:
        return self._one(
            (
                f"{self.name} reads these when it starts.",
                "All values can be changed while it runs.",
                f"The following holds for {self.name} {self._number % 9}.{self._number % 7} and later.",
                "An unknown name is an error that says which names there are.",
                "",
            )
        )

    def _setting(self) -> _Setting:
        thing, owner = self._one(_THINGS), self._one(_OWNERS)
        verb = self._one(("live", "wait", "stay open", "take"))
        longest, most, size = self._one(_SECONDS), self._count(), self._one(_SIZES)
        percent = f"{int(self._rng.integers(1, 100))} %"
        days = str(self._one((7, 14, 30, 60, 90, 180, 400)))
        mode = self._one(_COLOURS)
        forms = (
            _Setting(
                f"{thing}_TIMEOUT",
                longest,
                self._one((f"longest time that a {thing} may {verb}", f"how long a {thing} may {verb}")),
                (f"How long may a {thing} {verb}?", f"What is the longest time that a {thing} may {verb}?"),
            ),
            _Setting(
                f"MAX_{thing}S",
                most,
                self._one((f"{thing}s of one {owner}", f"most {thing}s that a {owner} may have")),
                (
                    f"How many {thing}s may a {owner} have?",
                    f"What is the largest number of {thing}s of a {owner}?",
                    f"How many {thing}s can one {owner} have at a time?",
                ),
            ),
            _Setting(
                f"{thing}_SIZE",
                size,
                self._one((f"largest {thing} that is taken", f"how large a {thing} may be")),
                (f"How large may a {thing} be?", f"What is the largest {thing} that is accepted?"),
            ),
            _Setting(
                f"{owner}_SHARE",
                percent,
                f"share of the {thing}s that one {owner} may hold",
                (
                    f"What share of the {thing}s may one {owner} hold?",
                    f"How much of all {thing}s may a {owner} hold?",
                ),
            ),
            _Setting(
                f"KEEP_{thing}S",
                days,
                self._one((f"days that a {thing} is kept", f"how long {thing}s are kept, in days")),
                (f"How many days is a {thing} kept by default?", f"For how many days are {thing}s kept?"),
            ),
            _Setting(
                f"{thing}_MODE",
                mode,
                f"how {thing}s are checked",
                (f"In which mode are {thing}s checked by default?", f"What is the default mode of {thing}s?"),
            ),
        )
        found = self._one(forms)
        return found._replace(name=f"{self._upper}_{found.name.upper()}")

    def _settings(self) -> Section:
        drawn = {one.questions[0]: one for one in (self._setting() for _ in range(12))}
        settings = [one for asked, one in drawn.items() if asked not in self._meant]
        settings = settings[: int(self._rng.integers(3, 9))]
        self._meant.update(one.questions[0] for one in settings)
        facts = []
        for one in settings:
            facts.append(Fact(self._one(one.questions), one.value))
            if self._rng.random() < 0.4:
                asked = self._one(("What is the default of {}?", "Which value has {} by default?"))
                facts.append(Fact(asked.format(one.name), one.value))
            if self._rng.random() < 0.5:
                asked = self._one(
                    ("Which variable {}?", "Which setting {}?", "What is the option called that {}?")
                )
                what = one.meaning if one.meaning.startswith("how") else f"the {one.meaning}"
                verb = "says" if one.meaning.startswith("how") else "sets"
                facts.append(Fact(asked.format(f"{verb} {what}"), one.name))
        names = self._one(("Setting", "Variable", "Option", "Name", "Key", "Environment variable"))
        values = self._one(("Default", "Default value", "Value", "If not set", "Initial"))
        meanings = self._one(("Meaning", "Description", "What it is", "Bounds", "Purpose"))
        if self._rng.random() < 0.75:
            order = self._one(((0, 1, 2), (0, 2, 1), (2, 0, 1), (2, 1, 0)))
            heads = (names, values, meanings)
            rows = [(self._code(one.name), self._code(one.value), one.meaning) for one in settings]
            body = self._table([heads[at] for at in order], [[row[at] for at in order] for row in rows])
        else:
            form = self._one(("- {0} ({1}): {2}", "* {0}: {2}; {1} by default", "- {0}={1}: {2}."))
            body = "\n".join(form.format(self._code(one.name), one.value, one.meaning) for one in settings)
        title = self._one(("Settings", "Limits", "Configuration", "Options", f"Bounds of {self.name}"))
        return Section(f"{self.name}: {title}", f"{self._lead()}\n\n{body}".strip(), tuple(facts))

    def _components(self) -> Section:
        names = self._some(_COMPONENTS, int(self._rng.integers(3, 7)))
        roles = self._some(_ROLES, len(names))
        ports = self._rng.permutation(40)[: len(names)] + self._number
        facts = []
        rows = []
        for name, (does, _), port in zip(names, roles, ports, strict=True):
            rows.append((self._bold(name), str(port), does))
            asked = (
                "Which port does the {} listen on?",
                "On which port is the {}?",
                "What is the port of the {}?",
            )
            facts.append(Fact(self._one(asked).format(name), str(port)))
            if self._rng.random() < 0.5:
                facts.append(
                    Fact(self._one(("What does the {} do?", "What is the {} for?")).format(name), does)
                )
            if self._rng.random() < 0.5:
                facts.append(Fact(f"Which {self._one(('part', 'service', 'component'))} {does}?", name))
        if self._rng.random() < 0.7:
            heads = (
                self._one(("Service", "Component", "Part", "Process")),
                self._one(("Port", "Listens on", "TCP port")),
                self._one(("What it does", "Role", "Task")),
            )
            body = self._table(heads, rows)
        else:
            form = self._one(("- The {0} {2}; it listens on port {1}.", "* {0}, port {1}: {2}"))
            body = "\n".join(form.format(*row) for row in rows)
        return Section(f"{self.name}: {self._one(('Operate', 'Services', 'Ports'))}", body, tuple(facts))

    def _words(self) -> Section:
        terms = self._some(_TERMS, int(self._rng.integers(3, 8)))
        kinds = [one.split("|")[0] for one in self._some(_KINDS, len(terms))]
        asked = ("What is a {}?", "What does {} mean?", "What is the {}?", "What is meant by {}?")
        facts = tuple(
            Fact(self._one(asked).format(one), kind) for one, kind in zip(terms, kinds, strict=True)
        )
        if self._rng.random() < 0.5:
            body = self._table(
                ("Word", "Meaning"), [(self._bold(t), k) for t, k in zip(terms, kinds, strict=True)]
            )
        else:
            form = self._one(("- **{0}**: {1}", "- {0}: {1}.", "**{0}** is a {1}.\n", "A {0} is a {1}.\n"))
            body = "\n".join(form.format(t, k) for t, k in zip(terms, kinds, strict=True))
        return Section(f"{self.name}: {self._one(('Words', 'Glossary', 'Terms'))}", body, facts)

    def _needs(self) -> Section:
        tools = self._some(_TOOLS, int(self._rng.integers(2, 5)))
        newer = self._one(("or newer", "or later", "or higher"))
        versions = [
            f"{int(self._rng.integers(1, 25))}.{int(self._rng.integers(0, 20))} {newer}" for _ in tools
        ]
        memory, disk = self._some(_SIZES, 2)
        what = self._one(("machine", "node", "container", "server"))
        facts = [
            Fact(self._one(("Which version of {} is needed?", "Which {} do I need?")).format(tool), version)
            for tool, version in zip(tools, versions, strict=True)
        ]
        facts.append(Fact(f"How much memory does the {what} need?", memory))
        facts.append(Fact(f"How much disk does {self.name} take?", disk))
        needed = [f"{tool} {version}" for tool, version in zip(tools, versions, strict=True)]
        rest = f"The {what} needs {memory} of memory, and {self.name} takes {disk} of disk."
        if self._rng.random() < 0.5:
            text = "You need:\n\n" + "\n".join(f"- {one}" for one in needed) + f"\n\n{rest}"
        else:
            text = f"You need {', '.join(needed[:-1])} and {needed[-1]}. {rest}"
        return Section(
            f"{self.name}: {self._one(('Requirements', 'Before you begin', 'Install'))}", text, tuple(facts)
        )

    def _commands(self) -> Section:
        tool = self._one(("make", self.name.lower(), "npm run", "./run"))
        verbs = self._some(
            ("serve", "start", "check", "clean", "import", "deploy", "watch", "seed", "bench"), 4
        )
        roles = self._some(_ROLES, len(verbs))
        facts = []
        lines = []
        form = self._one(("`{0}` {1}.", "- `{0}`: {1}", "| `{0}` | {1} |", "Run `{0}`: it {1}."))
        for verb, (does, _) in zip(verbs, roles, strict=True):
            lines.append(form.format(f"{tool} {verb}", does))
            facts.append(Fact(f"Which command {does}?", f"{tool} {verb}"))
        if form.startswith("|"):
            lines = ["| Command | What it does |", "|---|---|", *lines]
        return Section(
            f"{self.name}: {self._one(('Commands', 'Use', 'First steps'))}", "\n".join(lines), tuple(facts)
        )

    def _storage(self) -> Section:
        thing, other = self._some(_THINGS, 2)
        database, backup = self._some(_DATABASES, 2)
        given = self._one(_FORMATS)
        days = self._count()
        seconds = self._one(_SECONDS)
        component = self._one(_COMPONENTS)
        sentences = [
            (
                f"By default {thing}s are stored in {database}.",
                f"In which database are {thing}s stored?",
                database,
            ),
            (f"Backups of them go to {backup}.", f"Where do backups of {thing}s go?", backup),
            (f"Each {other} is written as {given}.", f"In which format is a {other} written?", given),
            (f"A {thing} is removed after {days} days.", f"After how many days is a {thing} removed?", days),
            (
                f"The {component} writes them to disk every {seconds}.",
                f"How often does the {component} write {thing}s to disk?",
                f"every {seconds}",
            ),
        ]
        chosen = self._some(sentences, int(self._rng.integers(3, 6)))
        facts = tuple(Fact(question, answer) for _, question, answer in chosen)
        title = self._one(("Storage", "Where data lies", "Data"))
        return Section(f"{self.name}: {title}", " ".join(one[0] for one in chosen), facts)

    def _rules(self) -> Section:
        facts = []
        lines = []
        things = self._some(_THINGS, 10)
        for thing, other in zip(things[:5:1], things[5:], strict=True):
            owner = self._one(_OWNERS)
            does, do = self._one(_ROLES)
            component, status = self._one(_COMPONENTS), self._one(_STATUSES)
            number, seconds = self._count(), self._one(_SECONDS)
            line, question, answer = self._one(
                (
                    (
                        f"While a {thing} has no {other}, calls fail with {self._code(status)}.",
                        f"With which status do calls fail while a {thing} has no {other}?",
                        status,
                    ),
                    (
                        f"A {owner} may send at most {number} {thing}s a day.",
                        f"How many {thing}s may a {owner} send per day?",
                        number,
                    ),
                    (
                        f"Every {seconds} the {component} {does}.",
                        f"How often does the {component} {do}?",
                        f"Every {seconds}",
                    ),
                    (
                        f"A {thing} without a {other} is refused; one with several {other}s is split.",
                        f"What happens to a {thing} without a {other}?",
                        "refused",
                    ),
                    (
                        f"A {thing} counts as slow after {seconds}.",
                        f"After what time does a {thing} count as slow?",
                        seconds,
                    ),
                    (
                        f"The field {self._code(f'{other}_id')} of a {thing} names its {other}.",
                        f"Which field of a {thing} names its {other}?",
                        f"{other}_id",
                    ),
                )
            )
            lines.append(line)
            facts.append(Fact(question, answer))
        form = self._one(("{}", "- {}"))
        separator = "\n" if form.startswith("-") else " "
        title = self._one(("Rules", "How it works", "Details", "Behaviour"))
        return Section(
            f"{self.name}: {title}", separator.join(form.format(one) for one in lines), tuple(facts)
        )


def products(seed: int) -> Iterator[tuple[Section, ...]]:
    """Yield the sections of each of :data:`PRODUCTS` products, drawn from ``seed``."""
    for number in range(PRODUCTS):
        yield tuple(_Author(np.random.default_rng([seed, number])).sections())
