"""Lay out segments and versions on disk, and read them."""
