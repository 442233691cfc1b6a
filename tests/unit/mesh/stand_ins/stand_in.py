"""A service without a model, for a supervisor to run: ``python -m stand_in`` with a service's environment.

``STAND_IN_<SERVICE>`` says how it behaves: nothing, ``refuse`` (ends with a line as settings errors do),
``break`` (ends with a stack trace), ``never`` (runs and never serves) or ``stubborn`` (ignores SIGTERM).
"""

import asyncio
import os
import signal
import sys

from pydantic_settings import SettingsConfigDict

from evenmesh_kit.process.serving import run, serve
from evenmesh_kit.rpc.server import Service
from evenmesh_kit.settings import ServiceSettings, load
from evenmesh_kit.telemetry.setup import Telemetry

[PREFIX] = [name.removesuffix("PARENT_PID") for name in os.environ if name.endswith("_PARENT_PID")]
NAME = PREFIX.removeprefix("EVENMESH_").rstrip("_").lower()
BEHAVIOUR = os.environ.get(f"STAND_IN_{NAME.upper()}", "")


class Settings(ServiceSettings):
    """Those every service has."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")


class StandIn(Service):
    """Serves at once, unless reported not to."""

    async def start(self) -> None:
        """Behaves."""
        if BEHAVIOUR == "never":
            await asyncio.Event().wait()
        if BEHAVIOUR == "break":
            raise RuntimeError("the model is no model")
        if BEHAVIOUR == "stubborn":
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    async def stop(self) -> None:
        """Nothing to let go of."""


async def main() -> None:
    """Runs it."""
    if BEHAVIOUR == "refuse":
        sys.stderr.write("EVENMESH_GENERATOR_MODEL='none': there is no such model\n")
        sys.exit(2)
    await serve(NAME, load(Settings), StandIn(), telemetry=Telemetry.disabled())


if __name__ == "__main__":
    sys.exit(run(main))
