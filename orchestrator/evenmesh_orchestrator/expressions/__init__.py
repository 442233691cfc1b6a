"""Retrieval expressions: the notation, the sources it names, and their evaluation for an ask.

Source: Li et al. (2024), "Unraveling and Mitigating Retriever Inconsistencies in Retrieval-Augmented Large
Language Models", sections 2.1 and 2.2, appendix C.1.
"""
