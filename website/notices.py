"""What others wrote: `python -m website.notices [--modules FOLDER] [--write]`.

`docs/third-party.md` lists the packages that Coterie asks for and their licences, as these packages say them.
`src/coterie/report/templates/notices.txt` stands in every page, before the libraries that draw its charts:
vl-convert bundles them, and their licences ask for it. It is made of a folder `node_modules` with the versions that
it names:

    npm install --omit=dev --ignore-scripts vega@6.2.0 vega-lite@6.4.3 vega-embed@7.0.2

The command names the files that are not what the packages say today, and with `--write` renews them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from coterie.report.drawing.saving import language_version

ROOT = Path(__file__).parents[1]
LIST = ROOT / "docs" / "third-party.md"
NOTICES = ROOT / "src" / "coterie" / "report" / "templates" / "notices.txt"

DRAWN_BY = ("vega", "vega-lite", "vega-embed")
"""What a page calls; they bring the others."""
NO_PART = ("yargs", "commander", "iconv-lite", "rw")
"""What these are asked for by command lines alone, which no page has."""
TOOLS = ("dev", "docs", "test")
"""Extras of whoever works on Coterie."""

ABOUT = """\
# What others wrote

Coterie is under the [Apache License 2.0](https://www.apache.org/licenses/LICENSE-2.0). Every report embeds
Vega, Vega-Lite, Vega-Embed and the libraries that these need, to draw its charts. Their notices stand in the page
before them, so you may pass a page on. [The data sets](data.md#terms-of-the-data-sets) have terms of their own.

Coterie needs these packages, which pip installs. The licence is what each package says of itself:

| package | for | licence |
|---|---|---|
"""


def main() -> int:
    """Compare the files with what is installed, or write them."""
    parser = argparse.ArgumentParser(prog="python -m website.notices", description=__doc__.partition("\n")[0])
    parser.add_argument("--modules", type=Path, help="a folder node_modules, of which the notices are made")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    texts = {LIST: list_packages()}
    if asked.modules is not None:
        texts[NOTICES] = collect_notices(asked.modules)
    differing = [path for path, text in texts.items() if not path.is_file() or path.read_text("utf-8") != text]
    for path in differing:
        print(path.relative_to(ROOT))
        if asked.write:
            path.write_text(texts[path], "utf-8")
    return int(bool(differing) and not asked.write)


def list_packages() -> str:
    """Return the page that lists what Coterie asks for, without the tools of whoever works on it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = [(line, "everything") for line in project["dependencies"]]
    for extra, lines in project["optional-dependencies"].items():
        asked += [(line, f"`coterie[{extra}]`") for line in lines if extra not in TOOLS]
    rows = [
        f"| {name} | {use} | {find_licence(name)} |" for name, use in ((_name(line), use) for line, use in asked)
    ]
    return ABOUT + "\n".join(rows) + "\n"


def find_licence(package: str) -> str:
    """Return what an installed package says of its licence, in a few words."""
    try:
        told = metadata(package)
    except PackageNotFoundError:
        return "not installed where this list was made"
    classified = [
        line.rpartition(" :: ")[2] for line in told.get_all("Classifier") or [] if line.startswith("License")
    ]
    free = (told["License"] or "").strip().split("\n", 1)[0]
    return told["License-Expression"] or ", ".join(classified) or free or "not said"


def collect_notices(modules: Path) -> str:
    """Return the notices of all modules that a page embeds, each text of a licence once.

    Raises:
        FileNotFoundError: one comes without a licence.
    """
    alike: dict[str, list[tuple[str, list[str]]]] = defaultdict(list)
    for name in sorted(_reach(modules)):
        folder = modules / name
        about = json.loads((folder / "package.json").read_text("utf-8"))
        text = _read_licence(folder, str(about.get("license", "")))
        head, holders, rest = _part(text)
        alike[f"{head}\n\n{rest}".strip()].append((name, holders))
    parts = [f"This page embeds {describe_bundle()}, and libraries that these need. Their licences:"]
    for text, packages in alike.items():
        lines = [f"{name}: {'; '.join(holders) or 'no holder is named'}" for name, holders in packages]
        parts.append("\n".join(lines) + "\n\n" + text)
    found = f"\n\n{'-' * 60}\n\n".join(parts) + "\n"
    if "*/" in found or "</" in found:
        raise ValueError("the notices would close the comment that they stand in")
    return found


def describe_bundle() -> str:
    """Return the names and versions of what the installed vl-convert puts into a page."""
    import vl_convert

    versions = (vl_convert.get_vega_version(), language_version(), vl_convert.get_vega_embed_version())
    return ", ".join(f"{name} {version}" for name, version in zip(DRAWN_BY, versions, strict=True))


def _part(text: str) -> tuple[str, list[str], str]:
    """Part a licence into what stands before its first holders, these, and the rest."""
    lines = [line.rstrip() for line in text.strip().splitlines()]
    found = [bool(re.match(r"\s*copyright (\(c\)|\d)", line, re.IGNORECASE)) for line in lines]
    begin = found.index(True) if True in found else 0
    end = begin
    while end < len(lines) and found[end]:
        end += 1
    head, rest = ("\n".join(some).strip() for some in (lines[:begin], lines[end:]))
    return head, [line.strip() for line in lines[begin:end]], rest


def _reach(modules: Path) -> set[str]:
    """Return the names of the modules that a page embeds."""
    found: set[str] = set()
    ahead = list(DRAWN_BY)
    while ahead:
        name = ahead.pop()
        if name not in found and name not in NO_PART:
            found.add(name)
            ahead += json.loads((modules / name / "package.json").read_text("utf-8")).get("dependencies", {})
    return {name for name in found if not name.startswith("@types/")}


def _read_licence(folder: Path, said: str) -> str:
    for path in _licences(folder):
        return path.read_text("utf-8")
    raise FileNotFoundError(f"{folder} says {said!r} and has no text of a licence")


def _licences(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.name.upper().startswith(("LICENSE", "LICENCE")))


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


if __name__ == "__main__":
    sys.exit(main())
