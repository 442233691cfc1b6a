"""Data sets by name: ``ir_datasets:NAME`` and ``hf:NAME``, as passages, questions and labels."""
