"""List what a mesh can answer with."""

from dataclasses import dataclass
from functools import partial
from typing import Final, get_args

from evenmesh._sync.calls import Calls
from evenmesh.addresses import Addresses
from evenmesh.codec.mapping import decode, word
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb2
from evenmesh.types.request import Augmentation

_KNOWN: Final = get_args(Augmentation)
_word: Final = partial(word, generator_pb2.Augmentation.DESCRIPTOR)


@dataclass(frozen=True, slots=True)
class GeneratorModel:
    """A model that writes answers.

    Attributes:
        name: its name.
        dtype: number type that it computes in, such as ``bfloat16``.
        augmentations: ways in which it takes passages, its default first.
        available: whether it can answer now.
    """

    name: str
    dtype: str
    augmentations: tuple[Augmentation, ...] = ()
    available: bool = True


def models(addresses: Addresses, *, timeout: float = 30.0) -> list[GeneratorModel]:
    """Return the generator's models, the default first.

    Args:
        addresses: where the services are.
        timeout: seconds the call may take.

    Raises:
        MeshError: the call failed.
    """
    with _Models(addresses) as mesh:
        reply = mesh.listed(timeout)
    return [
        decode(
            GeneratorModel,
            model,
            augmentations=tuple(one for one in map(_word, model.augmentations) if one in _KNOWN),
            available=not model.unavailable,
        )
        for model in reply.models
    ]


class _Models(Calls):
    def listed(self, timeout: float) -> generator_pb2.ListModelsResponse:
        return self._call("generator", self._generator.ListModels, generator_pb2.ListModelsRequest(), timeout)
