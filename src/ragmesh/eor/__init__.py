"""Ensembles of retrievers over question sets: what is asked, all that is wrong with it, the run, findings."""
