"""What mkdocs calls as it builds the site: pages that are not in `docs/`, and each page in mkdocs' dialect."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website.commonmark import translate

ROOT = Path(__file__).parents[1]

BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md")
"""Pages that lie beside `docs/`; on the site each is `changelog.md`, `contributing.md`."""

SERVED = {"stylesheets/site.css": "site.css", "javascripts/iframe-worker.js": "iframe-worker.js"}
"""Where on the site files of this folder lie; mkdocs.yml names them."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie beside `docs/`, and the site's style and script."""
    for name in BESIDE:
        text = (ROOT / name).read_text("utf-8")
        files.append(File.generated(config, name.lower(), content=re.sub(r"\]\(docs/", "](", text)))
    for place, name in SERVED.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / "website" / name)))
    return files


def on_page_markdown(markdown: str, /, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Translate a page from the dialect that GitHub reads, and let its links find the pages beside `docs/`."""
    above = relpath(".", dirname(page.file.src_uri) or ".")
    for name in BESIDE:
        markdown = re.sub(rf"\]\((?:\.\./)+{re.escape(name)}", f"]({above}/{name.lower()}", markdown)
    return translate(markdown)
