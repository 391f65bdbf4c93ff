"""Items of TODO.md as CommonMark has them."""

from __future__ import annotations

import pytest

from app.git.todo import Item, items


def test_items_of_all_kinds_and_what_is_none() -> None:
    text = """# Now
- [ ] First
  more
- [x] done
* Second
+ Third
1. Fourth
   - nested
```
- code
```
> - quoted

    - indented code

## Later
2) Fifth
- First
-
"""
    assert items(text) == [
        Item("First", "more", "Now"),
        Item("Second", "", "Now"),
        Item("Third", "", "Now"),
        Item("Fourth", "- nested", "Now"),
        Item("Fifth", "", "Later"),
    ]


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x85"])
def test_only_line_feeds_and_carriage_returns_end_a_line(mark: str) -> None:
    assert items(f"- one{mark}more\n- two\n") == [Item(f"one{mark}more".strip(), "", ""), Item("two", "", "")]
    assert items("- one\r\n  body\r- two") == [Item("one", "body", ""), Item("two", "", "")]
