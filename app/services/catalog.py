"""Tools that the deployment offers, as `GET /catalog` lists them. No provider can be configured yet, so there are none."""

from __future__ import annotations

from typing import Any

from app.core.principal import Principal


class Catalog:
    """The catalog of a deployment."""

    def list(self, principal: Principal) -> dict[str, Any]:
        """The descriptors that `principal`'s tenant may use."""
        return {"tools": []}

    def providers(self, tenant: str) -> dict[str, Any]:
        """The providers that `tenant` may use, by name."""
        return {}
