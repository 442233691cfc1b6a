"""Run a mesh on this machine: its services as processes that are started, watched and stopped together.

``async with Mesh(settings) as mesh`` runs one for the duration of the block. :func:`launch` and :func:`stop`
run one in the background, as ``evenmesh up --detach`` and ``evenmesh down`` do.
"""

from evenmesh.lazy_names import lazy_names

__getattr__, __all__ = lazy_names(__name__)
