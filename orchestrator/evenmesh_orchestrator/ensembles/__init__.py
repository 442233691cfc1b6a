"""Ensembles: answers to one question from several expressions, which vote (Li et al., 2024, section 4)."""
