"""evenmesh: a gRPC mesh for retrieval-augmented generation that measures who gets shown to the model.

The public names of the SDK. Each is loaded when it is first used, so ``import evenmesh`` takes no time::

    import evenmesh

    with evenmesh.Client() as mesh:
        print(mesh.answer("Which flour keeps a loaf soft?", alpha=2, samples=20).text)
"""

from evenmesh.lazy_names import lazy_names

__getattr__, __all__ = lazy_names(__name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
