"""Reports of observations: mergeable aggregates, windows, summaries."""
