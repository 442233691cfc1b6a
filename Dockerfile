# syntax=docker/dockerfile:1
# Every image of the mesh. CPU, one service:
#   docker build --build-arg SERVICE=orchestrator --tag ragmesh-orchestrator:dev .
# SERVICE: orchestrator, retriever, reranker, generator or evaluator.
# With CUDA (the driver is the node's, the rest comes with PyTorch's wheels):
#   docker build --build-arg SERVICE=generator --build-arg VARIANT=cuda --tag ragmesh-generator-cuda:dev .
# What calls the mesh (`ragmesh`; SERVICE client or training), and Triton with what its models need:
#   docker build --target client --build-arg SERVICE=client --tag ragmesh-client:dev .
#   docker build --target triton --tag ragmesh-triton:dev .
# They run as user 10001 and write to /tmp and /var/lib/ragmesh alone: mount something there, and the root read-only.
ARG PYTHON=3.11
ARG HEALTH_PROBE=ghcr.io/grpc-ecosystem/grpc-health-probe:v0.4.37
ARG TRITON=nvcr.io/nvidia/tritonserver:25.08-py3

# checkov:skip=CKV_DOCKER_7: it has a version; checkov does not look up arguments
FROM ${HEALTH_PROBE} AS health-probe

FROM python:${PYTHON}-slim-bookworm AS build
ARG SERVICE
ARG VARIANT=cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY services services
COPY orchestrator orchestrator
# What is installed for each: its own extra, and what the manifests in k8s/ can switch on.
RUN --mount=type=cache,target=/root/.cache/pip <<'INSTALL'
set -eu
module=services.$SERVICE
case "$SERVICE" in
  orchestrator) extras=orchestrator,telemetry,jwt port=7070 module=orchestrator ;;
  retriever) extras=retriever,milvus,web,triton,telemetry,jwt port=7071 ;;
  reranker) extras=reranker,postgres,telemetry,jwt port=7072 ;;
  generator) extras=generator,triton,ctranslate2,telemetry,jwt port=7073 ;;
  evaluator) extras=evaluator,postgres,telemetry,jwt port=7074 ;;
  client) extras=lab,bench port=0 ;;
  training) extras=train,reranker port=0 ;;
  *) echo "SERVICE=$SERVICE is none of orchestrator, retriever, reranker, generator, evaluator, client, training" >&2; exit 1 ;;
esac
# PyTorch's wheels on PyPI are those for CUDA, gigabytes larger.
case "$VARIANT" in
  cpu) index="--extra-index-url https://download.pytorch.org/whl/cpu" ;;
  cuda) index= ;;
  *) echo "VARIANT=$VARIANT is neither cpu nor cuda" >&2; exit 1 ;;
esac
python -m venv /opt/venv
/opt/venv/bin/pip install --no-compile --constraint constraints.txt $index ".[$extras]"
/opt/venv/bin/pip uninstall --yes pip
printf '#!/bin/sh\nexec python -m %s "$@"\n' "$module" > /opt/venv/bin/serve
printf '#!/bin/sh\nexec grpc-health-probe -addr=127.0.0.1:%s "$@"\n' "$port" > /opt/venv/bin/healthy
chmod 755 /opt/venv/bin/serve /opt/venv/bin/healthy
# A service holds its own code alone, and no other's model.
if [ "$port" != 0 ]; then
  services=$(/opt/venv/bin/python -c 'import services; print(services.__path__[0])')
  find "$services" -mindepth 1 -maxdepth 1 -type d ! -name "$SERVICE" -exec rm -rf {} +
fi
mkdir -p /opt/home/ragmesh
INSTALL

FROM python:${PYTHON}-slim-bookworm AS runtime
COPY --from=health-probe /ko-app/grpc-health-probe /usr/local/bin/grpc-health-probe
COPY --from=build /opt/venv /opt/venv
COPY --from=build --chown=10001:10001 /opt/home/ragmesh /var/lib/ragmesh
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    NUMBA_CACHE_DIR=/tmp/numba \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    RAGMESH_HOME=/var/lib/ragmesh
USER 10001:10001
WORKDIR /tmp

# `ragmesh`, for Jobs and people.
FROM runtime AS client
ENTRYPOINT ["ragmesh"]
HEALTHCHECK NONE

# The stock server, and beside it what the models of our repository import, installed by its own Python.
FROM ${TRITON} AS triton-packages
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY services services
COPY orchestrator orchestrator
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m pip install --no-compile --constraint constraints.txt --target /opt/ragmesh/site-packages '.[generator,triton]'

FROM ${TRITON} AS triton
COPY --from=triton-packages /opt/ragmesh/site-packages /opt/ragmesh/site-packages
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
HEALTHCHECK --start-period=15m CMD ["curl", "--fail", "--silent", "http://127.0.0.1:8000/v2/health/ready"]

FROM runtime AS service
ENTRYPOINT ["serve"]
# For engines that look; Kubernetes asks by itself.
HEALTHCHECK --interval=15s --timeout=5s --start-period=10m CMD ["healthy"]
