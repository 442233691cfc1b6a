"""The laboratory: the science of :mod:`evenmesh_core` on files and with models, without a mesh.

``files`` reads runs, judgements, answers and conversations and names file and line of what is wrong ·
``similarities`` are models that judge how alike two answers are · ``studies`` measure what the files hold ·
``figures`` draw it · ``reports`` write one page of it. No gRPC, and nothing of the mesh.
"""
