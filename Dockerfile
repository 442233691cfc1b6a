# syntax=docker/dockerfile:1
# Every image of the mesh. CPU, one service:
#   docker build --build-arg SERVICE=orchestrator --tag evenmesh-orchestrator:dev .
# SERVICE: orchestrator, retriever, reranker, generator, evaluator or gateway.
# With CUDA (the driver is the node's, the rest comes with PyTorch's wheels):
#   docker build --build-arg SERVICE=generator --build-arg VARIANT=cuda --tag evenmesh-generator-cuda:dev .
# What calls the mesh (`evenmesh`; SERVICE client or training), and Triton with what its models need:
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
# The rooms that each needs, the last with the extras that the manifests in k8s/ can switch on. All by path: nothing of
# ours is looked for on the package index.
RUN --mount=type=cache,target=/root/.cache/pip <<'INSTALL'
set -eu
case "$SERVICE" in
  orchestrator) rooms="clients/python libs/core libs/kit orchestrator" extras=telemetry,jwt,redis port=7070 ;;
  retriever) rooms="clients/python libs/core libs/kit models services/retriever" extras=faiss-cpu,milvus,web,triton,telemetry,jwt,redis port=7071 ;;
  reranker) rooms="clients/python libs/core libs/kit models services/reranker" extras=postgres,telemetry,jwt,redis port=7072 ;;
  generator) rooms="clients/python libs/core libs/kit models services/generator" extras=triton,ctranslate2,telemetry,jwt,redis port=7073 ;;
  evaluator) rooms="clients/python libs/core libs/lab libs/kit services/evaluator" extras=postgres,telemetry,jwt,redis port=7074 ;;
  gateway) rooms="clients/python libs/core libs/kit services/gateway" extras=mcp,telemetry,jwt port=7080 ;;
  client) rooms="clients/python libs/core libs/lab studies" extras=openai port=0 ;;
  training) rooms="clients/python libs/core libs/lab libs/kit models services/generator services/reranker training" extras=postgres,telemetry,jwt port=0 ;;
  *) echo "SERVICE=$SERVICE is none of orchestrator, retriever, reranker, generator, evaluator, gateway, client, training" >&2; exit 1 ;;
esac
# PyTorch's wheels on PyPI are those for CUDA, gigabytes larger.
case "$VARIANT" in
  cpu) index="--extra-index-url https://download.pytorch.org/whl/cpu" ;;
  cuda) index= ;;
  *) echo "VARIANT=$VARIANT is neither cpu nor cuda" >&2; exit 1 ;;
esac
python -m venv /opt/venv
if [ "$LOCKED" = yes ]; then
  lock="locks/$SERVICE-$VARIANT.txt"
  [ -f "$lock" ] || lock="locks/$SERVICE-cpu.txt" # without PyTorch there is one
  python -m venv /opt/build
  /opt/build/bin/pip install --require-hashes --requirement locks/build.txt
  /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels $(printf "./%s " $rooms)
  /opt/venv/bin/pip install --no-compile --require-hashes --requirement "$lock" $index
  /opt/venv/bin/pip install --no-compile --no-deps --no-index wheels/*.whl
  /opt/venv/bin/pip check
else
  /opt/venv/bin/pip install --no-compile --constraint constraints.txt $index $(printf "./%s " $rooms | sed "s/ $/[$extras]/")
fi
/opt/venv/bin/pip uninstall --yes pip
printf '#!/bin/sh\nexec python -m evenmesh_%s "$@"\n' "$SERVICE" > /opt/venv/bin/serve
if [ "$SERVICE" = gateway ]; then
  printf '#!/bin/sh\nexec python -m evenmesh_gateway.ready "$@"\n' > /opt/venv/bin/healthy
else
  printf '#!/bin/sh\nexec grpc-health-probe -addr=127.0.0.1:%s "$@"\n' "$port" > /opt/venv/bin/healthy
fi
chmod 755 /opt/venv/bin/serve /opt/venv/bin/healthy
mkdir -p /opt/home/evenmesh
INSTALL

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
    ./clients/python ./libs/core './libs/kit[models]' ./models './services/generator[triton]'

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
