"""The documentation site: built strictly, read from a folder without a network, and like the pages on GitHub."""

from __future__ import annotations

import ast
import os
import re
import shlex
import struct
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import griffe
import markdown
import pytest
from markdown_it import MarkdownIt

from tests.browser import CHROMIUM, Browser
from website.commonmark import translate
from website.fields import DescribedFields
from website.notebooks import list_notebooks, make_page
from website.pages import EXAMPLES
from website.pictures import PICTURES, TAKEN, find_blocks
from website.public import list_sections

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
EXTENSIONS = ["tables", "sane_lists", "attr_list", "md_in_html", "pymdownx.superfences"]
KINDS = ("ul", "ol", "li", "table", "tr", "td", "h2", "h3", "em", "strong", "a", "img", "details", "blockquote")

FOR_THE_FILE = ("model_config", "title")
"""Attributes of sections that say how a file is read and written."""


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Build the site into a folder, as `make docs` does."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert {path.name: found for path in pages if (found := loads.findall(path.read_text("utf-8")))} == {}


@pytest.mark.slow
def test_a_broken_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Start\n\n[gone](gone.md), [nowhere](#nowhere)\n")
    own = f"INHERIT: {ROOT / 'mkdocs.yml'}\nnav: [index.md]\nhooks: []\nextra: {{polyfills: [iframe-worker]}}\n"
    (tmp_path / "mkdocs.yml").write_text(own)
    done = build(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
    assert done.returncode != 0
    assert "'gone.md'" in done.stderr
    assert "'#nowhere'" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser")
def test_the_site_is_read_and_searched_from_a_folder(site: Path, tmp_path: Path) -> None:
    with Browser(tmp_path) as browser:
        browser.open((site / "methods/fesem.html").as_uri())
        assert browser.wait("document.querySelector('h1')?.innerText").startswith("FeSEM")
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        browser.evaluate("document.querySelector('.md-search__input').focus()")
        browser.wait("document.querySelector('.md-search-result__meta').textContent.includes('Type to start')")
        browser.send("Input.insertText", text="Hopkins statistic")
        browser.send("Input.dispatchKeyEvent", type="keyUp", key="c")
        found = "[...document.querySelectorAll('.md-search-result__link')]"
        browser.wait(f"{found}.some(a => a.href.includes('fedtsdp'))")
        assert browser.complaints == []


@pytest.mark.slow
def test_every_public_name_is_on_the_page_that_lists_it(site: Path) -> None:
    for section in list_sections():
        page = (site / f"api/{section.file}.html").read_text("utf-8")
        assert [name for name in section.names if f'id="{name}"' not in page] == []


@pytest.mark.slow
def test_settings_say_what_they_mean(site: Path) -> None:
    page = (site / "api/methods.html").read_text("utf-8")
    assert re.search(r'id="coterie\.methods\.IFCA\.clusters".*?K \(≥ 1\)', page, re.DOTALL)
    assert "Field(" not in page


@pytest.mark.medium
def test_what_pages_and_plugins_import_is_public() -> None:
    listed = [name for section in list_sections() for name in section.names]
    public = {id(getattr(import_module(home), name)) for home, _, name in (name.rpartition(".") for name in listed)}
    assert len(public) > 300
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md"), *ROOT.glob("examples/**/*.py")]
    text = "\n".join(
        [*(page.read_text("utf-8") for page in pages), *(make_page(path)[0] for path in list_notebooks())]
    )
    found = re.findall(r"^ *from (coterie[\w.]*) import (?:\(([^)]*)\)|(.*))$", text, re.MULTILINE)
    named = {
        (home, name)
        for home, several, one in found
        for name in re.findall(r"(\w+)(?: as \w+)?(?:,|$)", re.sub(r"#.*|\s+", "", several or one))
    }
    assert len(named) > 20
    assert {pair for pair in named if id(getattr(import_module(pair[0]), pair[1])) not in public} == set()


@pytest.fixture(scope="module")
def source() -> griffe.ModulesCollection:
    extensions = griffe.load_extensions(DescribedFields())
    places = [str(ROOT / "src")]
    loader = griffe.GriffeLoader(search_paths=places, docstring_parser="google", extensions=extensions)
    loader.load("coterie")
    loader.resolve_aliases(implicit=True)
    return loader.modules_collection


def public_objects(source: griffe.ModulesCollection) -> Iterator[tuple[griffe.Object, str]]:
    """Yield every public name, every member of a public class, and what is said of it or of what it overrides."""
    for name in (name for section in list_sections() for name in section.names):
        found = source[name].final_target if source[name].is_alias else source[name]
        yield found, found.docstring.value if found.docstring else ""
        if isinstance(found, griffe.Class):
            for member in found.members.values():
                if isinstance(member, griffe.Function | griffe.Attribute) and member.name[0] != "_":
                    same = (base.members.get(member.name) for base in [found, *found.mro()])
                    said = (one.docstring.value for one in same if one and not one.is_alias and one.docstring)
                    yield member, "\n".join([*said, *sentences_on(member, found)])


def sentences_on(member: griffe.Object, parent: griffe.Class) -> list[str]:
    """What a class says of an attribute in its own docstring, by name."""
    texts = [one.docstring.value for one in [parent, *parent.mro()] if one.docstring]
    return [
        text for text in texts if isinstance(member, griffe.Attribute) and re.search(rf"\b{member.name}\b", text)
    ]


@pytest.mark.slow
def test_every_public_name_says_what_it_is_with_shapes_and_errors(source: griffe.ModulesCollection) -> None:
    silent, shapeless, unsaid = set(), set(), set()
    for found, said in public_objects(source):
        if not said and found.name not in FOR_THE_FILE:
            silent.add(found.path)
        if isinstance(found, griffe.Function) and said:
            types = " ".join(map(str, [found.returns, *(one.annotation for one in found.parameters)]))
            if re.search(r"\b(Tensor|NDArray)\b", types) and "[" not in said:
                shapeless.add(found.path)
            body = ast.walk(ast.parse(textwrap.dedent(found.source)))
            if any(isinstance(node, ast.Raise) and node.exc for node in body) and "Raises:" not in said:
                unsaid.add(found.path)
    assert (silent, shapeless, unsaid) == (set(), set(), set())


def test_every_screenshot_has_what_takes_it() -> None:
    assert {path.stem for path in PICTURES.glob("*.png")} == set(TAKEN)
    assert len(find_blocks("docs/comparing.md", "--charts pictures")) == 1
    assert [len(find_blocks(f"examples/{name}/README.md", "coterie run")) for name in EXAMPLES] == [1, 1, 1]
    data, commands = find_blocks("docs/diagnose.md", "clinics.csv")
    assert data.language == "python"
    assert commands.commands[0].endswith("--page clinics.html --write clinics.toml")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser")
def test_a_screenshot_is_taken(tmp_path: Path) -> None:
    (block,) = find_blocks("CONTRIBUTING.md", "website.pictures")
    (line,) = block.commands
    command = [sys.executable, *shlex.split(line)[1:], "--to", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert struct.unpack(">II", (tmp_path / "watch.png").read_bytes()[16:24]) == (1280, 1250)


class Shown(HTMLParser):
    """Counts the elements of a page, and reads its text without spaces."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.counts[tag] += tag in KINDS

    def handle_data(self, data: str) -> None:
        self.text += "".join(data.split())


def show(text: str) -> tuple[Shown, Shown]:
    """Return a page as GitHub shows it, and as the site does."""
    github = MarkdownIt("commonmark").enable("table").render(text)
    ours = markdown.markdown(translate(text), extensions=EXTENSIONS)
    return Shown(github), Shown(ours)


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_pages_show_what_github_shows(path: Path) -> None:
    github, ours = show(path.read_text("utf-8"))
    assert ours.counts == github.counts
    assert ours.text == github.text
