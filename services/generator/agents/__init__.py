"""Agents of our own: encoder–decoders fine-tuned to do one task from retrieved passages.

Source: Salemi & Zamani, iterative utility maximisation, section 5.1 and appendix B.
"""
