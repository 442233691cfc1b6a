"""The tables of the pages in docs/studies that were measured before plans: fair-rag, eor, ium and rag.

``python -m benchmarks.study_pages fair-rag`` computes intervals and p-values again from the stored records
and writes the tables into the page; a test compares them. No model is run.
"""
