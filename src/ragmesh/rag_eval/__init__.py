"""Retrieve, rerank and answer many questions through a mesh: the plan, what is wrong with it, the run."""
