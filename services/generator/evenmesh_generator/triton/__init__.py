"""A Triton server: its runtime on this machine, its model repository, its process."""
