"""Pages are written as GitHub reads them (CommonMark); mkdocs reads an older dialect of Markdown."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt

_PARSER = MarkdownIt("commonmark").enable("table")
_MARKER = re.compile(r"( *)([-*+]|\d+[.)])( +|$)")
_CODE = re.compile(r"(`[^`]+`)")
_NO_TAG = re.compile(r"\\?<(?!/?(?:details|summary)\b|!--|https?:)")
_INDENT = " " * 4
"""What Python-Markdown asks in front of all that belongs to an item of a list."""


def translate(text: str) -> str:
    """Return a page in the dialect of Python-Markdown, which shows it as CommonMark has it.

    Lists within lists, and blocks in them, are indented by four spaces an item; a list or table has a blank line
    before it; Markdown inside `<details>` is read; a `<` that begins no tag, and a `|` in code, are characters.
    """
    lines = text.splitlines()
    depths, widths = [0] * len(lines), [0] * len(lines)
    markers, begins, code = set(), set(), set[int]()
    for token in _PARSER.parse(text):
        if token.map is None:
            continue
        first, last = token.map
        if token.type == "list_item_open":
            found = _MARKER.match(lines[first], widths[first])
            if found is None:  # an item that begins on the line of another
                continue
            markers.add(first)
            spaces = len(found[3]) if 1 <= len(found[3]) <= 4 else 1
            for number in range(first, last):
                depths[number] += 1
                widths[number] = found.start() + len(found[1]) + len(found[2]) + spaces
        elif token.type in ("fence", "code_block"):
            code |= set(range(first, last))
        elif token.type in ("bullet_list_open", "ordered_list_open", "table_open") and token.level == 0:
            begins.add(first)
    whole: list[str] = []
    in_one_block = True  # whether the item before has no blank line in it
    for number, line in enumerate(lines):
        follows = number in begins or (number in markers and not in_one_block)
        if follows and whole and whole[-1].strip():
            whole.append("")
        in_one_block = number in markers or (in_one_block and bool(line.strip()))
        if number in markers:
            found = _MARKER.search(line)
            assert found is not None
            line = f"{_INDENT * (depths[number] - 1)}{found[2]} {line[found.end() :]}"
        elif depths[number] and line.strip():
            own = min(widths[number], len(line) - len(line.lstrip(" ")))
            line = _INDENT * depths[number] + line[own:]
        if number not in code:
            line = "".join(_translate_words(part, in_table=line.lstrip()[:1] == "|") for part in _CODE.split(line))
        whole.append(line)
    return "\n".join(whole) + "\n"


def _translate_words(part: str, in_table: bool) -> str:
    """Translate a part of a line that is code as a whole, or has none."""
    if part.startswith("`"):
        return part.replace(r"\|", "|") if in_table else part
    return _NO_TAG.sub("&lt;", part).replace("<details>", '<details markdown="1">')
