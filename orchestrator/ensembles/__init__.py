"""Ensembles: one question, several expressions, answers that vote (Li et al., ensemble of retrievers, 4)."""
