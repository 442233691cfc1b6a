# syntax=docker/dockerfile:1
# Every image of the mesh. CPU, one service:
#   docker build --build-arg SERVICE=orchestrator --tag evenmesh-orchestrator:dev .
# SERVICE: orchestrator, retriever, reranker, generator, evaluator or gateway.
# With CUDA (the driver is the node's, the rest comes with PyTorch's wheels):
#   docker build --build-arg SERVICE=generator --build-arg VARIANT=cuda --tag evenmesh-generator-cuda:dev .
# and so the retriever, whose FAISS is then the one for GPUs, the reranker and training.
# With models on servers alone (docs/guides/openai-servers.md, docs/guides/remote-ranking.md), without PyTorch and weights:
#   docker build --build-arg SERVICE=generator --build-arg VARIANT=remote --tag evenmesh-generator-remote:dev .
# and so the retriever and the reranker.
# What calls the mesh (`evenmesh`; SERVICE client, documents or training), and Triton with what its models need:
#   docker build --target client --build-arg SERVICE=client --tag evenmesh-client:dev .
#   docker build --target triton --tag evenmesh-triton:dev .
# What is installed is pinned by version and hash, for x86-64 (locks/, make locks). For another platform, where versions alone
# are pinned (constraints.txt): --build-arg LOCKED=no. The images below by digest, as a release should have them:
#   --build-arg BASE=python:3.11-slim-bookworm@sha256:... --build-arg HEALTH_PROBE=...@sha256:... --build-arg TRITON=...@sha256:...
# They run as user 10001 and write to /tmp and /var/lib/evenmesh alone: mount something there, and the root read-only.
ARG BASE=python:3.11-slim-bookworm
ARG HEALTH_PROBE=ghcr.io/grpc-ecosystem/grpc-health-probe:v0.4.37
ARG TRITON=nvcr.io/nvidia/tritonserver:25.08-py3

# checkov:skip=CKV_DOCKER_7: it has a version; checkov does not look up arguments
FROM ${HEALTH_PROBE} AS health-probe

FROM ${BASE} AS build
ARG SERVICE
ARG VARIANT=cpu
ARG LOCKED=yes
# Where PyTorch for processors comes from; empty: from where the rest does.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY constraints.txt ./
COPY locks locks
COPY clients clients
COPY libs libs
COPY models models
COPY services services
COPY orchestrator orchestrator
COPY training training
COPY studies studies
COPY k8s/image/install.sh ./
RUN --mount=type=cache,target=/root/.cache/pip sh install.sh

FROM ${BASE} AS runtime
COPY --from=health-probe /ko-app/grpc-health-probe /usr/local/bin/grpc-health-probe
COPY --from=build /opt/venv /opt/venv
COPY --from=build --chown=10001:10001 /opt/home/evenmesh /var/lib/evenmesh
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    NUMBA_CACHE_DIR=/tmp/numba \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    EVENMESH_HOME=/var/lib/evenmesh
USER 10001:10001
WORKDIR /tmp

# `evenmesh`, for Jobs and people.
FROM runtime AS client
ENTRYPOINT ["evenmesh"]
HEALTHCHECK NONE

# The stock server, and beside it what the models of our repository import, installed by its own Python.
FROM ${TRITON} AS triton-packages
WORKDIR /build
COPY constraints.txt ./
COPY clients clients
COPY libs libs
COPY models models
COPY services services
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m pip install --no-compile --constraint constraints.txt --target /opt/evenmesh/site-packages \
    ./clients/python ./libs/core './libs/kit[models]' ./models './services/generator[triton-server]'

FROM ${TRITON} AS triton
COPY --from=triton-packages /opt/evenmesh/site-packages /opt/evenmesh/site-packages
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
HEALTHCHECK --start-period=15m CMD ["curl", "--fail", "--silent", "http://127.0.0.1:8000/v2/health/ready"]

FROM runtime AS service
ENTRYPOINT ["serve"]
# For engines that look; Kubernetes asks by itself.
HEALTHCHECK --interval=15s --timeout=5s --start-period=10m CMD ["healthy"]
