"""Similarities of two answers, with and without a model, behind one interface.

``token_f1`` and ``containment_em`` need no model · ``embedding_cosine`` has one that comes with evenmesh ·
``bert_score``, ``nli``, ``nli_question`` and ``answer_equivalence`` need one that is named. A model loads
when it is first used, once; one that is missing is an error that says which setting names it.
"""

from evenmesh_lab.similarities.catalogue import Similarities, load, names, needs_model, reads_question
from evenmesh_lab.similarities.models import MissingModel, Models
from evenmesh_lab.similarities.similarity import Similarity

__all__ = [
    "MissingModel",
    "Models",
    "Similarities",
    "Similarity",
    "load",
    "names",
    "needs_model",
    "reads_question",
]
