"""What is made of the catalogues: `python -m website.methods [--write]`.

A page in `docs/methods/` is written by hand, but for the table below its heading "Settings": that is made of the
method's dataclass. What `coterie list` shows is read from `src/coterie/cli/listing.json`, which is made of all
catalogues. The command names the files that are not what the code says today, and with `--write` renews them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from coterie.catalogue import Entry, Setting, plain
from coterie.cli.list import KINDS, gather
from coterie.methods import METHODS
from coterie.runs.schema.toml import literal

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "methods"
LISTING = ROOT / "src" / "coterie" / "cli" / "listing.json"

HEADINGS = (
    "Algorithm",
    "Decisions",
    "Settings",
    "Properties",
    "Cost",
    "What the server sees",
    "Planted groups",
    "When to use it",
)
"""What every page says, in this order; a page may have more headings between them."""

HEAD = "| setting | default | meaning |\n|---|---|---|\n"
TABLE = re.compile(re.escape(HEAD) + r"(?:\|.*\n)*")
DECISION = re.compile(r"^(?:\* \*\*|\| )(D\d+)\b")


def own_methods() -> list[Entry]:
    """Return the methods of the package itself, without those that plugins or tests have added."""
    return [entry for entry in METHODS if entry.target.__module__.startswith("coterie.methods.")]


def find_page(method: Entry) -> Path:
    """Return where a method's page lies."""
    return PAGES / f"{method.name}.md"


def read_headings(text: str) -> list[str]:
    """Return the headings of the second level, as they are written."""
    return re.findall(r"^## (.+)$", text, re.MULTILINE)


def renew_table(text: str, method: Entry) -> str:
    """Return a page with the table of settings that the code has today.

    Raises:
        ValueError: the page has no such table, or more than one.
    """
    if not method.settings:
        return TABLE.sub("", text)
    table = HEAD + "".join(_write_row(setting, text) for setting in method.settings)
    renewed, found = TABLE.subn(lambda _: table, text)
    if found != 1:
        raise ValueError(f"the page of {method.name} has {found} tables that begin with {HEAD!r}; it must have one")
    return renewed


def find_stale() -> Iterator[tuple[Path, str]]:
    """Yield the pages whose table is not that of the code, with what they should say."""
    for method in own_methods():
        page = find_page(method)
        text = page.read_text("utf-8")
        renewed = renew_table(text, method)
        if renewed != text:
            yield page, renewed


def find_stale_listing() -> Iterator[tuple[Path, str]]:
    """Yield the file of what `coterie list` shows, with what it should say, where that is not what it says."""
    text = json.dumps({kind: gather(kind) for kind in KINDS}, indent=1, ensure_ascii=False) + "\n"
    if not LISTING.exists() or LISTING.read_text("utf-8") != text:
        yield LISTING, text


def _write_row(setting: Setting, page: str) -> str:
    default = "not set" if setting.default is None else f"`{literal(plain(setting.default))}`"
    meaning = setting.help
    if setting.choices:
        listed = ", ".join(f"`{choice}`" for choice in setting.choices)
        meaning += f"; one of {listed}" if len(setting.choices) > 1 else f"; or {listed}"
    about = _find_decisions_on(setting.name, page)
    meaning += f" ({', '.join(about)})" if about else ""
    return f"| `{setting.name}` | {default} | {meaning.replace('|', chr(92) + '|')} |\n"


def _find_decisions_on(name: str, page: str) -> list[str]:
    """Return the decisions of a page that write the setting as code, alone or with a value.

    A decision is an item of a list or a row of a table, with what is indented below it.
    """
    found, decision = [], ""
    written = re.compile(rf"`(?:[^`]*, )?{name}(?: = [^`]*)?`")
    for block in re.split(r"\n\n|\n(?=\* |\|)", page):
        mark = DECISION.match(block)
        decision = mark[1] if mark else decision if block.startswith(" ") else ""
        if decision and decision not in found and written.search(block.replace("\n", " ")):
            found.append(decision)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Say which files are stale, or renew them; 1 where some were and nothing was written."""
    parser = argparse.ArgumentParser(prog="python -m website.methods", description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew the files")
    write = parser.parse_args(arguments).write
    stale = [*find_stale(), *find_stale_listing()]
    for page, text in stale:
        print(f"{page.name}: {'written' if write else 'it is not what the code says today'}")
        if write:
            page.write_text(text, "utf-8")
    return int(bool(stale) and not write)


if __name__ == "__main__":
    sys.exit(main())
