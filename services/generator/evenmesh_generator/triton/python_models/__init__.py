"""Run inside Triton's Python back-end: the models of the repository."""
