"""Ask the gateway of this machine whether it is ready: ``python -m evenmesh_gateway.ready``; 0 if it is."""

from __future__ import annotations

import http.client
import ssl
import sys
from typing import Final

from evenmesh_gateway.settings import GatewaySettings
from evenmesh_kit.settings import SettingsError, load

_TIMEOUT_S: Final = 4.0
_READY: Final = 200


def main() -> int:
    """Return 0 where it is ready, and else 1 after a line that says why not."""
    try:
        settings = load(GatewaySettings)
        host = "localhost"
        connection = http.client.HTTPConnection(host, settings.port, timeout=_TIMEOUT_S)
        if settings.tls_cert is not None:
            # It asks itself, by whatever name its certificate has.
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.load_cert_chain(settings.tls_cert, settings.tls_key)
            connection = http.client.HTTPSConnection(host, settings.port, timeout=_TIMEOUT_S, context=context)
        connection.request("GET", "/readyz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException, SettingsError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0 if status == _READY else 1


if __name__ == "__main__":
    sys.exit(main())
