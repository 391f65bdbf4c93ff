"""What tools a new session has: its `config.tools` and `config.bindings`, resolved once at creation.

Rules: a tool that doesn't exist, an executor or provider that doesn't, two tools of one name: each is refused by name. What is resolved
is kept with the session, so a later change of the catalog doesn't change a session.
"""

from __future__ import annotations

from typing import Any, Protocol

from app.core.errors import Invalid
from app.core.principal import Principal


class Resolver(Protocol):
    """Turns a CreateSession body into the fields `descriptors` and `credential_bindings` of the session."""

    def resolve(self, principal: Principal, body: dict[str, Any]) -> dict[str, Any]: ...


class NoTools:
    """A deployment without providers: every name is unknown."""

    def resolve(self, principal: Principal, body: dict[str, Any]) -> dict[str, Any]:
        """No descriptors. Raises Invalid for any tool, binding or credential."""
        config = body["config"]
        for i, tool in enumerate(config["tools"]):
            raise Invalid(f"config.tools[{i}]: there is no tool {tool[:80]!r} in the catalog", f"config.tools[{i}]")
        for i, binding in enumerate(config.get("bindings", [])):
            what = "executor" if "executor" in binding else "provider"
            raise Invalid(
                f"config.bindings[{i}].{what}: there is no {what} {str(binding.get(what, ''))[:80]!r}", f"config.bindings[{i}]"
            )
        for i, credential in enumerate(body.get("credentials", [])):
            raise Invalid(f"credentials[{i}].binding: no binding {credential['binding'][:80]!r}", f"credentials[{i}].binding")
        return {"descriptors": [], "credential_bindings": []}
