"""Retrieval expressions: the notation, the sources it names, and how an ask runs one.

Source: Li et al., "Unraveling and Mitigating Retriever Inconsistencies in Retrieval-Augmented Large Language
Models" (ensemble of retrievers), sections 2.1 and 2.2, appendix C.1.
"""
