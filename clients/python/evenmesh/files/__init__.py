"""Read and write files of passages and feedback."""
