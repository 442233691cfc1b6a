"""Run work off the event loop: executors, micro-batches, model files, devices."""
