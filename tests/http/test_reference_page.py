"""The served documents and their page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import falcon
import falcon.testing
import pytest

from app.http import reference
from app.http.reference_page import block
from app.http.schema_documents import load

PATHS = ("/openapi/brain.json", "/openapi/byre.json", "/docs", "/docs/reference.css")


class Page(HTMLParser):
    """Collects what the tests look at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br", "hr", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> doesn't close what was opened"


@pytest.fixture(scope="module")
def client() -> falcon.testing.TestClient:
    app = falcon.App()
    reference.add_routes(app)
    return falcon.testing.TestClient(app)


@pytest.fixture(scope="module")
def page(client: falcon.testing.TestClient) -> str:
    return client.simulate_get("/docs").text


def test_documents_are_served_whole(client: falcon.testing.TestClient) -> None:
    assert client.simulate_get("/openapi/brain.json").json == load().brain
    assert client.simulate_get("/openapi/byre.json").json == load().byre


@pytest.mark.parametrize("path", PATHS)
def test_a_copy_is_good_until_it_changes(client: falcon.testing.TestClient, path: str) -> None:
    first = client.simulate_get(path)
    assert first.status_code == 200 and first.content
    assert first.headers["x-content-type-options"] == "nosniff"
    again = client.simulate_get(path, headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'})
    assert again.status_code == 304 and not again.content
    assert client.simulate_get(path, headers={"If-None-Match": '"other"'}).status_code == 200
    assert client.simulate_head(path).status_code == 200


def test_the_page_needs_nothing_that_its_policy_forbids(client: falcon.testing.TestClient, page: str) -> None:
    policy = client.simulate_get("/docs").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src" not in policy
    for tag, attributes in Page(page).tags:
        assert tag not in ("script", "style", "iframe", "form", "object", "embed")
        assert not any(name == "style" or name.startswith("on") for name in attributes)
        for name in ("href", "src"):
            assert not (attributes.get(name) or "").startswith(("http:", "https:", "//", "javascript:"))


def test_the_page_holds_together(page: str) -> None:
    parsed = Page(page)
    assert parsed.open == []
    anchors = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(anchors) == len(set(anchors))
    links = {
        (attributes.get("href") or "")[1:]
        for tag, attributes in parsed.tags
        if tag == "a" and (attributes.get("href") or "").startswith("#")
    }
    assert links <= set(anchors), links - set(anchors)


def test_the_page_shows_everything(page: str) -> None:
    for operation in load().operations.values():
        assert f'id="{operation.api}-op-{operation.id}"' in page
        assert f"<code>{operation.path}</code>" in page
        for parameter in operation.parameters:
            assert f"<code>{parameter['name']}</code>" in page
    for api in ("brain", "byre"):
        for kind in load().event_schemas(api):
            assert f'id="{api}-event-{kind}"' in page
        for name in load().of(api)["components"]["schemas"]:
            assert name.startswith("Event") or f'id="{api}-{name}"' in page


def test_prose_can_not_bring_its_own_html() -> None:
    assert "<script" not in block("a <script>alert(1)</script> [x](javascript:alert(1))")
    assert "href" not in block("[x](javascript:alert(1))")


def test_the_style_knows_light_and_dark(client: falcon.testing.TestClient, page: str) -> None:
    css = client.simulate_get("/docs/reference.css").text
    assert "prefers-color-scheme: dark" in css and "url(" not in css and "@import" not in css
    used = set(" ".join(re.findall(r'class="([^"]+)"', page)).split()) - {"refused", "answers"}
    assert {name for name in used if f".{name}" not in css} <= {"language-json"}
