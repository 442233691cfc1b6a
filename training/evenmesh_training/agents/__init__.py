"""Agents of our own: encoder–decoders fine-tuned to do one task from retrieved passages.

Source: Salemi and Zamani (2025), section 5.1 and appendix B.
"""
