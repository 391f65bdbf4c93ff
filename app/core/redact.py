"""Masking of known secrets in what is about to be shown or kept.

Rules: a secret is masked wherever it stands as a whole, also inside a longer text and as JSON escapes it; secrets shorter than
`SHORTEST` characters aren't masked, for they would mask ordinary words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

MASK = "[secret]"
SHORTEST = 8


class Redactor:
    """Masks a fixed set of secrets."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for s in secrets if len(s) >= SHORTEST for form in (s, json.dumps(s)[1:-1])}
        ordered = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._forms = ordered

    def text(self, text: str) -> str:
        """`text` with every secret masked."""
        return self._pattern.sub(MASK, text) if self._pattern else text

    def held(self, text: str) -> int:
        """How many characters at the end of `text` may be the beginning of a secret, so that text which goes on is masked whole."""
        for length in range(min(len(text), len(self._forms[0]) - 1) if self._forms else 0, 0, -1):
            end = text[-length:]
            if any(form.startswith(end) for form in self._forms if len(form) > length):
                return length
        return 0

    def value(self, value: Any) -> Any:
        """A JSON value with every secret masked, in keys too."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(k): self.value(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.value(v) for v in value]
        return value
