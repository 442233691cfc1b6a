"""What each tenant may take of a service: a TOML file, with what holds for all and what for some."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from meshkit.errors import InvalidField
from meshkit.security.caller import tenant_name

_TOKENS_BURST_S: Final = 60.0
_CALLS_BURST_S: Final = 2.0


class LimitsError(Exception):
    """A file of limits that cannot be used; a line per problem, with the file and the entry."""


class TenantLimits(BaseModel):
    """``[default]`` or one ``[tenants.NAME]`` of the file. What is not set there is not limited."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    calls_per_s: float | None = Field(default=None, gt=0)
    """Calls, and turns of conversations. Per second, (0, inf)."""
    burst: int | None = Field(default=None, ge=1)
    """Calls at once after a pause. [1, inf); default: those of two seconds, at least one."""
    concurrent: int | None = Field(default=None, ge=1)
    """Calls at a time, open streams among them. [1, inf)."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Tokens that models read and write. Per minute, [1, inf)."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the work when several tenants wait. (0, inf)."""

    @property
    def calls_at_once(self) -> float:
        """Size of the bucket of calls; 1 or more."""
        return self.burst or max(1.0, _CALLS_BURST_S * (self.calls_per_s or 0.0))

    @property
    def tokens_per_s(self) -> float:
        """Rate at which tokens come; 0 without a limit."""
        return (self.tokens_per_minute or 0) / _TOKENS_BURST_S


@dataclass(frozen=True, slots=True)
class Limits:
    """A file of limits.

    Attributes:
        default: of tenants that are not named.
        tenants: of those that are, by name.
    """

    default: TenantLimits
    tenants: dict[str, TenantLimits]

    def of(self, tenant: str) -> TenantLimits:
        """What holds for a tenant."""
        return self.tenants.get(tenant, self.default)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a file. What an entry of ``tenants`` does not say is as in ``default``.

        Raises:
            LimitsError: it cannot be used; every problem of it at once.
        """
        try:
            content = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise LimitsError(f"{path}: {why}") from None
        problems = [f"{path}: {key}: is not known" for key in content if key not in ("default", "tenants")]
        default, tenants = content.get("default", {}), content.get("tenants", {})
        for key, value in (("default", default), ("tenants", tenants)):
            if not isinstance(value, dict):
                raise LimitsError(f"{path}: {key}: must be a table")
        general = _entry(default, f"{path}: default", problems)
        named = {}
        for name, entry in tenants.items():
            where = f"{path}: tenants.{name}"
            try:
                tenant_name(name, where)
            except InvalidField as error:
                problems.append(f"{where}: {error.message}")
            if isinstance(entry, dict):
                named[name] = _entry({**default, **entry}, where, problems)
            else:
                problems.append(f"{where}: must be a table")
        if problems:
            raise LimitsError("\n".join(problems))
        return cls(general, named)


def _entry(content: dict[str, Any], where: str, problems: list[str]) -> TenantLimits:
    try:
        return TenantLimits.model_validate(content)
    except ValidationError as error:
        problems += [
            f"{where}.{'.'.join(map(str, one['loc']))}: {one['msg']}"
            for one in error.errors(include_url=False, include_input=False)
        ]
        return TenantLimits()
