"""Run the gateway: ``python -m evenmesh_gateway``."""

from __future__ import annotations

import sys

from evenmesh_gateway.app import Gateway
from evenmesh_gateway.http.server import serve
from evenmesh_gateway.settings import GatewaySettings
from evenmesh_kit.process import arguments
from evenmesh_kit.process.serving import run
from evenmesh_kit.process.start import ServerStartError
from evenmesh_kit.security.listener import ListenerSecurityError
from evenmesh_kit.settings import load
from evenmesh_kit.telemetry import logs
from evenmesh_kit.telemetry.setup import Telemetry


async def main() -> None:
    """Serve until a signal.

    Raises:
        SettingsError: a setting is wrong.
        ServerStartError: the gateway cannot start.
    """
    settings = load(GatewaySettings)
    logs.configure("gateway", settings)
    telemetry = Telemetry.from_settings("gateway", settings)
    try:
        gateway = Gateway(settings, telemetry)
    except ListenerSecurityError as error:
        raise ServerStartError(str(error)) from None
    try:
        await gateway.start()
        await serve(gateway.app, settings, gateway.drain, telemetry)
    finally:
        await gateway.close()
        telemetry.shutdown()


if __name__ == "__main__":
    arguments.refuse("evenmesh_gateway", GatewaySettings)
    sys.exit(run(main))
