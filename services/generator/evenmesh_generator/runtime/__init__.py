"""Compute answers: networks, and the engine that runs many requests of one model together.

Shared by the in-process backend and by the models of the Triton model repository; knows neither gRPC nor
Triton.
"""
