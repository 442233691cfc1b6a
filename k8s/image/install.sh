#!/bin/sh
# Install one service, or what calls them, into /opt/venv: what the Dockerfile runs in its stage `build`.
# Reads SERVICE, VARIANT, LOCKED and TORCH_INDEX; see the Dockerfile.
set -eu
# The rooms that each needs, the last with the extras that the manifests in k8s/ can switch on. All by path: nothing of ours is
# looked for on the package index.
case "$SERVICE" in
  orchestrator) rooms="clients/python libs/core libs/kit orchestrator" extras=postgres,telemetry,jwt,redis port=7070 ;;
  retriever) rooms="clients/python libs/core libs/kit models services/retriever" extras=models,faiss-cpu,milvus,web,triton,telemetry,jwt,redis port=7071 ;;
  reranker) rooms="clients/python libs/core libs/kit models services/reranker" extras=models,postgres,s3,telemetry,jwt,redis port=7072 ;;
  generator) rooms="clients/python libs/core libs/kit models services/generator" extras=models,triton,ctranslate2,gpu,telemetry,jwt,redis port=7073 ;;
  evaluator) rooms="clients/python libs/core libs/lab libs/kit services/evaluator" extras=postgres,telemetry,jwt,redis port=7074 ;;
  gateway) rooms="clients/python libs/core libs/documents libs/kit services/gateway" extras=documents,mcp,telemetry,jwt port=7080 ;;
  client) rooms="clients/python libs/core libs/lab studies" extras=openai port=0 ;;
  documents) rooms="clients/python libs/documents" extras=parquet,hub,s3,sites,tokenizers port=0 ;;
  training) rooms="clients/python libs/core libs/lab libs/kit models services/generator services/reranker training" extras=postgres,s3,telemetry,jwt port=0 ;;
  *) echo "SERVICE=$SERVICE is none of orchestrator, retriever, reranker, generator, evaluator, gateway, client, documents, training" >&2; exit 1 ;;
esac
case "$VARIANT" in
  cpu) ;;
  cuda) extras=$(printf %s "$extras" | sed s/faiss-cpu/faiss-gpu/) ;; # both are the module faiss: one of them
  remote) # models are on servers: no library that computes one, and no weights
    extras=$(printf %s "$extras" | sed -E 's/(^|,)(models|ctranslate2|gpu)(,|$)/\1/g; s/(^|,)(models|ctranslate2|gpu)(,|$)/\1/g')
    rooms=$(printf %s "$rooms" | sed 's/ models / /') ;;
  *) echo "VARIANT=$VARIANT is none of cpu, cuda, remote" >&2; exit 1 ;;
esac
lock="locks/$SERVICE-$VARIANT.txt"
[ -f "$lock" ] || lock="locks/$SERVICE-cpu.txt" # without PyTorch there is one
python3 -m venv /opt/venv
# PyTorch's wheels on PyPI are those for CUDA, gigabytes larger. Those for processors come from an index of their own, which
# is asked for nothing else.
if [ "$VARIANT" = cpu ] && [ -n "$TORCH_INDEX" ] && grep -q '^torch==' "$lock"; then
  if [ "$LOCKED" = yes ]; then
    awk '/^torch==/ { on = 1 } on { print; if (!/\\$/) exit }' "$lock" > torch.txt
    /opt/venv/bin/pip install --no-compile --no-deps --require-hashes --requirement torch.txt --index-url "$TORCH_INDEX"
  else
    /opt/venv/bin/pip install --no-compile --no-deps --constraint constraints.txt --index-url "$TORCH_INDEX" torch
  fi
fi
if [ "$LOCKED" = yes ]; then
  python3 -m venv /opt/build
  /opt/build/bin/pip install --require-hashes --requirement locks/build.txt
  /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels $(printf "./%s " $rooms)
  /opt/venv/bin/pip install --no-compile --require-hashes --requirement "$lock"
  /opt/venv/bin/pip install --no-compile --no-deps --no-index wheels/*.whl
  /opt/venv/bin/pip check
else
  /opt/venv/bin/pip install --no-compile --constraint constraints.txt $(printf "./%s " $rooms | sed "s/ $/[$extras]/")
fi
# What nothing imports when it runs: installers, unless something asks for one, tests of libraries, and sources of what is compiled.
grep -q '^setuptools==' "$lock" || /opt/venv/bin/pip uninstall --yes setuptools
/opt/venv/bin/pip uninstall --yes pip
for package in numpy scipy nltk joblib regex greenlet uvloop asyncpg sqlalchemy; do
  find /opt/venv/lib/python3*/site-packages/$package -depth -type d \( -name tests -o -name test \) -exec rm -r {} + 2> /dev/null || true
  find /opt/venv/lib/python3*/site-packages/$package -name '*.pyx' -delete 2> /dev/null || true
done
# And what debuggers alone read: 31 MiB of an orchestrator's image. Only of packages whose wheels have no libraries of others
# in them: `strip` may damage what was made to find those.
command -v strip > /dev/null || { apt-get update -qq && apt-get install -qq --yes --no-install-recommends binutils; } > /dev/null ||
  echo "no binutils from the system's packages: the image keeps what debuggers read" >&2
if command -v strip > /dev/null; then
  for package in uvloop asyncpg sqlalchemy regex greenlet; do
    find /opt/venv/lib/python3*/site-packages/$package -name '*.so' -exec strip --strip-debug {} + 2> /dev/null || true
  done
fi
printf '#!/bin/sh\nexec python -m evenmesh_%s "$@"\n' "$SERVICE" > /opt/venv/bin/serve
if [ "$SERVICE" = gateway ]; then
  printf '#!/bin/sh\nexec python -m evenmesh_gateway.ready "$@"\n' > /opt/venv/bin/healthy
else
  printf '#!/bin/sh\nexec grpc-health-probe -addr="127.0.0.1:${EVENMESH_%s_HEALTH_PORT:-%s}" "$@"\n' \
    "$(printf %s "$SERVICE" | tr a-z A-Z)" "$port" > /opt/venv/bin/healthy
fi
chmod 755 /opt/venv/bin/serve /opt/venv/bin/healthy
mkdir -p /opt/home/evenmesh
