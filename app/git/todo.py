"""The items of a TODO.md, as a Markdown parser sees them (CommonMark).

An item is an item of a top-level list, with any marker, with or without a checkbox; done ones are left out. Its section is the
nearest heading above it. What stands in code blocks, quotes or nested lists is no item of its own.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from markdown_it import MarkdownIt

_MARKER = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?:[ \t]{1,4}(?![ \t])|[ \t]|$)")
_BOX = re.compile(r"\[([ xX])\](?:[ \t]+|$)")


class Item(NamedTuple):
    """`title` is the first line without marker and checkbox, `body` the further lines without the item's indentation."""

    title: str
    body: str
    section: str


def items(text: str) -> list[Item]:
    """The open items in file order. Of two with one title the first is kept; items without a title are left out."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")  # What ends a line in CommonMark; splitlines() knows further ones.
    found: dict[str, Item] = {}
    section = ""
    tokens = MarkdownIt("commonmark").parse(text)
    for i, token in enumerate(tokens):
        if token.type == "heading_open" and token.level == 0:
            section = tokens[i + 1].content.strip()
        elif token.type == "list_item_open" and token.level == 1 and token.map:
            item = _item(lines[token.map[0] : token.map[1]], section)
            if item and item.title:
                found.setdefault(item.title, item)
    return list(found.values())


def _item(lines: list[str], section: str) -> Item | None:
    marker = _MARKER.match(lines[0])
    if not marker:
        return None
    first, width = lines[0][marker.end() :], marker.end()
    box = _BOX.match(first)
    if box:
        if box[1] != " ":
            return None
        first = first[box.end() :]
    body = "\n".join(_without(line, width) for line in lines[1:]).strip("\n")
    return Item(first.strip(), body.rstrip(), section)


def _without(line: str, width: int) -> str:
    """`line` without up to `width` columns of indentation."""
    indent = len(line) - len(line.lstrip(" "))
    return line[min(indent, width) :]
