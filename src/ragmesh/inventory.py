"""What a mesh has to offer, by name."""

from dataclasses import dataclass
from typing import Final, cast

import grpc

from meshkit.channel import connect_sync
from ragmesh import codec
from ragmesh.addresses import Addresses
from ragmesh.generator.v1 import generator_service_pb2 as generator_pb2
from ragmesh.generator.v1 import generator_service_pb2_grpc as generator_grpc
from ragmesh.request import AUGMENTATIONS, Augmentation

_GENERATOR: Final = "ragmesh.generator.v1.GeneratorService"
_NAMES: Final = {number: cast("Augmentation", name) for name, number in AUGMENTATIONS.items()}


@dataclass(frozen=True, slots=True)
class GeneratorModel:
    """A model that answers: its name, the number type it computes in, such as ``bfloat16``, the ways that it
    can be handed passages, its default first, and whether it can answer now."""

    name: str
    dtype: str
    augmentations: tuple[Augmentation, ...] = ()
    available: bool = True


def models(addresses: Addresses, *, timeout: float = 30.0) -> list[GeneratorModel]:
    """The generator's models, the default first.

    Args:
        addresses: where the services are.
        timeout: seconds the call may take.

    Raises:
        MeshError: it does not tell.
    """
    channel = connect_sync(addresses.generator, service=_GENERATOR, idempotent=("ListModels",))
    try:
        reply = generator_grpc.GeneratorServiceStub(channel).ListModels(
            generator_pb2.ListModelsRequest(), timeout=timeout
        )
    except grpc.RpcError as exc:
        raise codec.error(exc, service="generator", address=addresses.generator) from exc
    finally:
        channel.close()
    return [
        GeneratorModel(
            model.name,
            model.dtype,
            tuple(_NAMES[one] for one in model.augmentations if one in _NAMES),
            not model.unavailable,
        )
        for model in reply.models
    ]
