"""How alike two answers are: with and without a model, behind one port.

``token_f1`` and ``containment_em`` need no model · ``embedding_cosine`` has one that comes with ragmesh ·
``bert_score``, ``nli``, ``nli_question`` and ``answer_equivalence`` need one that is named. A model loads
when it is first used, once; one that is missing is an error that says which setting names it.
"""

from raglab.similarities.catalogue import Similarities, load, names, needs_model, reads_question
from raglab.similarities.models import BUNDLED_EMBEDDING, MissingModel, Models
from raglab.similarities.similarity import PairwiseSimilarity, Similarity

__all__ = [
    "BUNDLED_EMBEDDING",
    "MissingModel",
    "Models",
    "PairwiseSimilarity",
    "Similarities",
    "Similarity",
    "load",
    "names",
    "needs_model",
    "reads_question",
]
