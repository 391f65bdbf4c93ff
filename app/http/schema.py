"""Requests held against our own OpenAPI documents, the single source of what is allowed.

Rules: `jsonschema-rs` decides (a microsecond or two); only what it refuses is looked at again with `jsonschema`, whose best
match says which field is wrong and why. That takes about 10 us per value, so of a large refused body only the lengths of
arrays and the first fault are looked at. Every validator of a request is compiled once, when the process starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema
import jsonschema_rs
from jsonschema.exceptions import best_match

from app.core.errors import Invalid, Missing
from app.http import schema_params as params
from app.http import schema_refusal as refusal
from app.http.schema_body import decode
from app.http.schema_documents import Api, Described, Documents, Json, load, resolve

__all__ = ["Documents", "Validator", "load"]

JSON = "application/json"

MAX_EXPLAINED = 2_000
"""Values in a body up to which a refusal is explained with the slow validator: 20 ms."""

MAX_LOCATED = 15_000
"""Values up to which the quick validator says where the fault is: it copies the whole value to do so, 20 ms."""


class _Check:
    """One schema, compiled for both validators. `root` is what messages call the whole value."""

    def __init__(self, schema: Json, root: str) -> None:
        self._quick = jsonschema_rs.validator_for(schema, validate_formats=True)
        self._thorough = jsonschema.Draft202012Validator(schema)
        self._schema = schema
        self._root = root

    def __call__(self, value: Any, values: int = 0) -> None:
        """Raises Invalid unless `value`, which holds `values` values, fits."""
        if self._quick.is_valid(value):
            return
        if values <= MAX_EXPLAINED:
            found = best_match(self._thorough.iter_errors(value))
            if found is not None:
                raise refusal.invalid(refusal.from_jsonschema(found), self._root)
        overlong = refusal.too_many_items(self._schema, self._schema, value)
        if overlong is not None:
            raise refusal.invalid(overlong, self._root)
        if values > MAX_LOCATED:
            raise Invalid(f"{self._root}: does not fit its schema, and has too many values ({values}) to say where")
        try:
            self._quick.validate(value)
        except jsonschema_rs.ValidationError as error:
            raise refusal.invalid(refusal.from_rust(error), self._root) from None


class _Group:
    """The parameters of one operation that come by the same way: path, query or header."""

    def __init__(self, documents: Documents, operation: Described, place: str) -> None:
        self._parameters = [p for p in operation.parameters if p["in"] == place]
        self._resolved = {p["name"]: resolve(documents.of(operation.api), p["schema"]) for p in self._parameters}
        self._names = {p["name"].lower(): p["name"] for p in self._parameters}
        self._check = _Check(documents.whole(operation.api, params.schema_of(self._parameters)), place)

    def __call__(self, given: Mapping[str, str | list[str]]) -> Json:
        """The described parameters, coerced, with defaults. Raises Invalid."""
        found = params.collect(self._parameters, given, self._resolved)
        self._check(found)
        return found

    def exact(self, given: Mapping[str, str]) -> dict[str, str]:
        """Those of `given` that are described, whatever the case of their names, under the names of the document."""
        return {self._names[n.lower()]: v for n, v in given.items() if n.lower() in self._names}


class Validator:
    """Checks requests, operation by operation. One instance serves all threads and greenlets of a process.

    An operationId that the documents don't have, and a body for an operation that takes none, are bugs of the caller: KeyError.
    """

    def __init__(self, documents: Documents | None = None) -> None:
        self.documents = documents or load()
        self._bodies: dict[str, _Check] = {}
        self._groups: dict[tuple[str, str], _Group] = {}
        for operation in self.documents.operations.values():
            if JSON in operation.content:
                schema = self.documents.whole(operation.api, operation.content[JSON])
                self._bodies[operation.id] = _Check(schema, "body")
            for place in ("path", "query", "header"):
                self._groups[operation.id, place] = _Group(self.documents, operation, place)

    def content_types(self, operation_id: str) -> tuple[str, ...]:
        """The content types that the operation's body may have; empty if it takes no body."""
        return tuple(self.documents.operations[operation_id].content)

    def check_body(self, operation_id: str, raw: bytes) -> Any:
        """The JSON body, decoded and valid. Raises Invalid, naming the field; TooLarge if it holds too many values."""
        check = self._bodies[operation_id]
        if not raw:
            raise Invalid("a JSON body is needed")
        value, values = decode(raw)
        check(value, values)
        return value

    def check_query(self, operation_id: str, given: Mapping[str, str | list[str]]) -> Json:
        """The query's parameters as their types say, defaults filled in; those that the document doesn't have are left out.

        Raises Invalid, naming the parameter.
        """
        return self._groups[operation_id, "query"](given)

    def check_headers(self, operation_id: str, given: Mapping[str, str]) -> Json:
        """Like `check_query`, for headers. Names count in any case; an empty header counts as not sent, as browsers mean it."""
        group = self._groups[operation_id, "header"]
        return group({name: value for name, value in group.exact(given).items() if value})

    def check_path(self, operation_id: str, given: Mapping[str, str]) -> Json:
        """The path's parameters. Raises Invalid; Missing in the byre contract, where an id has no set form and so can only be
        unknown.
        """
        try:
            return self._groups[operation_id, "path"](given)
        except Invalid as error:
            if self.documents.operations[operation_id].api == "byre":
                raise Missing(f"nothing has this id ({error.field})") from None
            raise

    def response_validator(self, operation_id: str, status: int, content_type: str = JSON) -> jsonschema.Draft202012Validator:
        """For tests: what holds a response body against the document. Raises KeyError if such a response isn't described."""
        operation = self.documents.operations[operation_id]
        response = operation.responses.get(str(status)) or operation.responses["default"]
        return self._validator(operation.api, response["content"][content_type]["schema"])

    def event_data_schema(self, type: str) -> Json:
        """The schema of `data` of a Brain event. Raises KeyError for an unknown type."""
        return self.documents.whole("brain", self.documents.event_schemas("brain")[type])

    def event_payload_schema(self, kind: str) -> Json:
        """The schema of `payload` of a byre event. Raises KeyError for an unknown kind."""
        return self.documents.whole("byre", self.documents.event_schemas("byre")[kind])

    def _validator(self, api: Api, schema: Json) -> jsonschema.Draft202012Validator:
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        return jsonschema.Draft202012Validator(self.documents.whole(api, schema), format_checker=checker)
