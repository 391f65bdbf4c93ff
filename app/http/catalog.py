"""The tool catalog over HTTP."""

from __future__ import annotations

from app.http.deps import CatalogService, Document
from app.http.requests import Call


class Catalog:
    """Handler of `/catalog`."""

    def __init__(self, catalog: CatalogService) -> None:
        self._catalog = catalog

    def catalog(self, call: Call) -> Document:
        return self._catalog.list(call.caller)
