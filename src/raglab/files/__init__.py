"""Readers of what studies look at, and the journal of what a long run writes.

Each names file and line of what is wrong with it. TREC runs and judgements, JSON lines and Parquet, annotated
conversations; plain or gzip. ``docs/eval.md`` shows every format.
"""

from raglab.files.agent_runs import (
    AgentRunRecord,
    agent_run_line,
    read_agent_runs,
    write_agent_runs,
)
from raglab.files.audits import QueryAudit, Sampling, read_audits
from raglab.files.conversations import (
    TurnMarks,
    read_attributes,
    read_conversations,
    read_marks,
    uniform_attributes,
)
from raglab.files.ensembles import Ensemble, EnsembleAnswer, EnsembleQuestion, read_ensemble
from raglab.files.failure import FileError
from raglab.files.gains import blank_ids, read_gains, write_labels, write_qrels
from raglab.files.journal import Journal, StoredJournal, read_journal
from raglab.files.labels import Labels, read_attribute, read_labels
from raglab.files.queries import Queries, Query, read_queries
from raglab.files.records import (
    AuditRecord,
    EnsembleRecord,
    GainRecord,
    LabelRecord,
    PassageRecord,
    QueryRecord,
)

__all__ = [
    "AgentRunRecord",
    "AuditRecord",
    "Ensemble",
    "EnsembleAnswer",
    "EnsembleQuestion",
    "EnsembleRecord",
    "FileError",
    "GainRecord",
    "Journal",
    "LabelRecord",
    "Labels",
    "PassageRecord",
    "Queries",
    "Query",
    "QueryAudit",
    "QueryRecord",
    "Sampling",
    "StoredJournal",
    "TurnMarks",
    "agent_run_line",
    "blank_ids",
    "read_agent_runs",
    "read_attribute",
    "read_attributes",
    "read_audits",
    "read_conversations",
    "read_ensemble",
    "read_gains",
    "read_journal",
    "read_labels",
    "read_marks",
    "read_queries",
    "uniform_attributes",
    "write_agent_runs",
    "write_labels",
    "write_qrels",
]
