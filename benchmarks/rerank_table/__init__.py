"""What rerankers are worth: every reranker beside the first stages, on many data sets."""
