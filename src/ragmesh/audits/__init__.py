"""Audits of many queries through a mesh: what is asked, all that is wrong with it, and the run."""
