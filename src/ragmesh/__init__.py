"""ragmesh: a gRPC mesh for retrieval-augmented generation that measures who gets shown to the model."""
