"""Whether the arguments of a call fit its tool's `input_schema`, which is a stranger's.

Rules: a schema never makes us fetch anything (`$ref` to an address or a file is an error of the schema), and its patterns are bounded in
memory and in steps. A schema that is none accepts nothing.
"""

from __future__ import annotations

from typing import Any

import jsonschema_rs

from app.core.tools import bounded

_PATTERNS = jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000, size_limit=200_000, dfa_size_limit=200_000)
"""A pattern then costs at most about 40 ms (measured with the worst that we know)."""
SHOWN = 300


def refusal(schema: Any, arguments: Any) -> str | None:
    """Why `arguments` don't fit `schema`; None if they do."""
    if not bounded(arguments):
        return "they have too many levels or values"
    try:
        validator = jsonschema_rs.validator_for(schema, offline=True, pattern_options=_PATTERNS)
        if validator.is_valid(arguments):
            return None
        first = next(validator.iter_errors(arguments), None)
    except ValueError as error:
        return f"the tool's own schema is wrong: {getattr(error, 'message', error)!s:.{SHOWN}}"
    if first is None:
        return "they are refused by the schema"
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first.instance_path)
    return f"{f'${where}'[:SHOWN]}: {first.message[:SHOWN]}"
