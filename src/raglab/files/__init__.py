"""Readers of what studies look at; each names file and line of what is wrong with it.

TREC runs and judgements, JSON lines and Parquet, annotated conversations; plain or gzip.
``docs/eval.md`` shows every format.
"""

from raglab.files.audits import QueryAudit, Sampling, read_audits
from raglab.files.conversations import read_attributes, read_conversations, uniform_attributes
from raglab.files.ensembles import Ensemble, EnsembleAnswer, EnsembleQuestion, read_ensemble
from raglab.files.failure import FileError
from raglab.files.labels import Labels, read_attribute, read_labels
from raglab.files.records import AuditRecord, EnsembleRecord, LabelRecord

__all__ = [
    "AuditRecord",
    "Ensemble",
    "EnsembleAnswer",
    "EnsembleQuestion",
    "EnsembleRecord",
    "FileError",
    "LabelRecord",
    "Labels",
    "QueryAudit",
    "Sampling",
    "read_attribute",
    "read_attributes",
    "read_audits",
    "read_conversations",
    "read_ensemble",
    "read_labels",
    "uniform_attributes",
]
