"""Studies: from records of files to what they show, with intervals over queries.

One module each: ``exposure``, ``utility``, ``conversation``, ``vote``, ``inconsistency``, ``eor``; each has a
pure function ``measure`` and a result that gives its ``tables()``. The formulas are those of
:mod:`evenmesh_core`.
"""

from evenmesh_lab.studies import conversation, eor, exposure, inconsistency, utility, vote
from evenmesh_lab.studies.conversation import ConversationStudy
from evenmesh_lab.studies.eor import EorStudy
from evenmesh_lab.studies.exposure import ExposureStudy
from evenmesh_lab.studies.inconsistency import InconsistencyStudy
from evenmesh_lab.studies.statements import statement
from evenmesh_lab.studies.uncertainty import Bootstrap
from evenmesh_lab.studies.utility import UtilityStudy
from evenmesh_lab.studies.vote import VoteStudy

Study = ExposureStudy | UtilityStudy | ConversationStudy | VoteStudy | InconsistencyStudy | EorStudy

__all__ = [
    "Bootstrap",
    "ConversationStudy",
    "EorStudy",
    "ExposureStudy",
    "InconsistencyStudy",
    "Study",
    "UtilityStudy",
    "VoteStudy",
    "conversation",
    "eor",
    "exposure",
    "inconsistency",
    "statement",
    "utility",
    "vote",
]
