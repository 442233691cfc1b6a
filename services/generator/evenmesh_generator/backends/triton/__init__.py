"""Models served by NVIDIA Triton, over ``tritonclient.grpc.aio``."""
