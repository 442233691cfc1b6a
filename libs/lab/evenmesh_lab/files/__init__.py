"""Readers of the input of studies, and the journal of a long run.

Errors name file and line. TREC runs and judgements, JSON lines and Parquet, annotated
conversations; plain or gzip. ``docs/guides/eval.md`` shows every format.
"""

from evenmesh_lab.files.agent_runs import AgentRunRecord, agent_run_line, read_agent_runs, write_agent_runs
from evenmesh_lab.files.audits import QueryAudit, Sampling, read_audits
from evenmesh_lab.files.conversations import (
    TurnMarks,
    read_attributes,
    read_conversations,
    read_marks,
    uniform_attributes,
)
from evenmesh_lab.files.ensembles import Ensemble, EnsembleAnswer, EnsembleQuestion, read_ensemble
from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.gains import blank_ids, read_gains, write_labels, write_qrels
from evenmesh_lab.files.journal import Journal, StoredJournal, read_journal
from evenmesh_lab.files.labels import Labels, read_attribute, read_labels
from evenmesh_lab.files.queries import Queries, Query, read_queries
from evenmesh_lab.files.records import (
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
