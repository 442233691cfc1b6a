"""Generate requests from the gateway's OpenAPI document and send them to a real mesh: ``make schemathesis``.

    python -m tests.openapi_cases --examples 1000

Schemathesis generates valid and invalid requests for every operation, and checks that no response is a fault of the
server, that each has a status and a media type that the document states, and that replies fit their schemas. A deadline
of its own making would be one that nothing meets. At the end the statuses are counted: an operation that answered no
request was tested with refused ones alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final

from evenmesh import Addresses, Client
from evenmesh_mesh import MeshSettings, launch, stop
from evenmesh_studies import demo
from tests.support.gateway_process import GatewayProcess

CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


def main() -> int:
    """Run it; the exit status is that of Schemathesis."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=1000, help="cases for each operation")
    parser.add_argument("--include", default="", help="regular expression of the paths to test")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        state = launch(MeshSettings(home=home, port=0, start_s=600))
        try:
            addresses = Addresses(**state.addresses)
            with Client(addresses) as client:
                client.ingest(demo.passages(), "demo")
                client.until_embedded("demo")
            with GatewayProcess(Path(folder), addresses) as gateway:
                chosen = ["--include-path-regex", given.include] if given.include else []
                command = [
                    *(
                        str(Path(sys.executable).with_name("schemathesis")),
                        "run",
                        f"{gateway.url}/openapi.json",
                    ),
                    *(
                        "--checks",
                        ",".join(CHECKS),
                        "--max-examples",
                        str(given.examples),
                        "--phases",
                        "fuzzing",
                    ),
                    *("--continue-on-failure", "--generation-database", "none", "--no-color", *chosen),
                    *("--header", "X-Request-Timeout: 60"),
                ]
                hooks = {"SCHEMATHESIS_HOOKS": str(Path(__file__).with_name("openapi_hooks.py"))}
                done = subprocess.run(command, cwd=folder, env=os.environ | hooks, check=False)
            sys.stdout.write(counted(gateway.log))
        finally:
            stop(home)
    return done.returncode


def counted(log: Path) -> str:
    """Return how many requests of each route had which status, from the access log of a gateway."""
    found: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for line in log.read_text(encoding="utf-8").splitlines():
        if '"evenmesh.gateway.access"' in line:
            said = json.loads(line)
            found[said["route"]][said["status"]] += 1
    return "".join(
        f"{route}: {', '.join(f'{number} x {status}' for status, number in sorted(statuses.items()))}\n"
        for route, statuses in sorted(found.items())
    )


if __name__ == "__main__":
    sys.exit(main())
