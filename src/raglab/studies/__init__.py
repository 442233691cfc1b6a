"""Studies: from records of files to what they show, with intervals over queries.

One module each: ``exposure``, ``utility``, ``conversation``, ``vote``, ``inconsistency``, ``eor``; each has a
pure function ``measure`` and a result that gives its ``tables()``. The formulas are those of :mod:`ragcore`.
"""

from raglab.studies import conversation, eor, exposure, inconsistency, utility, vote
from raglab.studies.conversation import ConversationStudy
from raglab.studies.eor import EorStudy
from raglab.studies.exposure import ExposureStudy
from raglab.studies.inconsistency import InconsistencyStudy
from raglab.studies.statements import statement
from raglab.studies.uncertainty import Bootstrap
from raglab.studies.utility import UtilityStudy
from raglab.studies.vote import VoteStudy

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
