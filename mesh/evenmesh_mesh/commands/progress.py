"""Show how the services of a mesh come up."""

import time
from typing import Self

from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from evenmesh.commands.screen import Screen, clean
from evenmesh_mesh.progress import Phase
from evenmesh_mesh.progress import Progress as Step


class StartDisplay:
    """Shows how the services start.

    Args:
        screen: where it is shown.
        services: their names, in display order.
    """

    def __init__(self, screen: Screen, services: tuple[str, ...]) -> None:
        self._screen = screen
        self._steps: dict[str, Step | None] = dict.fromkeys(services)
        self._serving_s: dict[str, float] = {}
        self._began = time.monotonic()
        self._spinner = Spinner("dots", style="cyan")
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._screen.err.is_terminal:
            self._live = Live(
                get_renderable=self._table, console=self._screen.err, transient=True, refresh_per_second=10
            )
            self._live.start()
        else:
            self._screen.note("starting the mesh")
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop showing."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def observe(self, step: Step) -> None:
        """Show one step of the mesh."""
        self._steps[step.service] = step
        if step.phase is Phase.SERVING:
            self._serving_s.setdefault(step.service, time.monotonic() - self._began)
        if self._live is None and step.phase is Phase.SERVING:
            self._screen.note(f"{step.service} serves after {self._serving_s[step.service]:.1f} s")

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 1))
        for service, step in self._steps.items():
            if step is None or step.phase is Phase.STARTING:
                table.add_row(self._spinner, service, Text("starting", style="dim"))
            elif step.phase is Phase.SERVING:
                after = Text(f"serving after {self._serving_s[service]:.1f} s", style="dim")
                table.add_row(Text("✓", style="green"), service, after)
            else:
                what = Text(clean(f"{step.phase} {step.detail}"), style="yellow")
                table.add_row(Text("!", style="yellow"), service, what)
        return table
