"""What mkdocs calls as it builds the site: pages that are not in `docs/`, and each page in mkdocs' dialect.

Those are the changelog, how to contribute, the notebooks, the examples, the API reference of what `public.py`
lists, all settings and commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website.commonmark import translate
from website.notebooks import list_notebooks, make_page
from website.public import Section, list_sections

ROOT = Path(__file__).parents[1]

BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md")
"""Pages that lie beside `docs/`; on the site each is `changelog.md`, `contributing.md`."""

EXAMPLES = ("hospitals", "machines", "phones")
"""Folders of `examples/` whose README is a page, `examples/NAME.md`."""

SERVED = {"stylesheets/site.css": "site.css", "javascripts/iframe-worker.js": "iframe-worker.js"}
"""Where on the site files of this folder lie; mkdocs.yml names them."""


SETTINGS, COMMANDS = "api/settings.md", "api/commands.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of the API reference into the navigation, below the page that mkdocs.yml names."""
    (reference,) = (entry["API"] for entry in config.nav or [] if isinstance(entry, dict) and "API" in entry)
    reference += [{section.title: f"api/{section.file}.md"} for section in list_sections()]
    reference += [{"All settings": SETTINGS}, {"All commands": COMMANDS}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie beside `docs/`, and the site's style and script."""
    for name in BESIDE:
        text = (ROOT / name).read_text("utf-8")
        files.append(File.generated(config, name.lower(), content=re.sub(r"\]\(docs/", "](", text)))
    for name in EXAMPLES:
        text = (ROOT / "examples" / name / "README.md").read_text("utf-8")
        files.append(File.generated(config, f"examples/{name}.md", content=text.replace("](../../docs/", "](../")))
    for path in list_notebooks():
        page, pictures = make_page(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    for section in list_sections():
        files.append(File.generated(config, f"api/{section.file}.md", content=_reference(section)))
    files.append(File.generated(config, SETTINGS, content=_settings()))
    files.append(File.generated(config, COMMANDS, content="\n".join(_commands())))
    for place, name in SERVED.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / "website" / name)))
    return files


def on_page_markdown(markdown: str, /, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Translate a page from the dialect that GitHub reads, and let links find pages outside `docs/`."""
    above = relpath(".", dirname(page.file.src_uri) or ".")
    for name in BESIDE:
        markdown = re.sub(rf"\]\((?:\.\./)+{re.escape(name)}", f"]({above}/{name.lower()}", markdown)
    examples = rf"\]\((?:\.\./)+examples/({'|'.join(EXAMPLES)})/README\.md"
    markdown = re.sub(examples, rf"]({above}/examples/\1.md", markdown)
    markdown = re.sub(r"\]\((?:\.\./)+examples/notebooks/([\w-]+)\.ipynb", rf"]({above}/notebooks/\1.md", markdown)
    return translate(markdown)


def _reference(section: Section) -> str:
    """The page of some names, which mkdocstrings fills with their signatures and docstrings."""
    return "\n\n".join([f"# {section.title}", section.about, *(f"::: {name}" for name in section.names)]) + "\n"


def _settings() -> str:
    """The page of all settings of an experiment, as `coterie new` writes them."""
    from coterie.runs.schema.experiment import Experiment

    about = (
        "What `coterie new experiment.toml` writes: every setting with its meaning and its default. `coterie list "
        "methods NAME` shows the settings of a method, `coterie list networks NAME` those of a network; those of "
        "methods are also on [their page](methods.md)."
    )
    return f"# All settings\n\n{about}\n\n```toml\n{Experiment().commented_toml()}```\n"


def _commands() -> Iterator[str]:
    """The page of all commands, as `--help` shows them."""
    import click
    from rich.text import Text
    from typer.main import get_command

    from coterie.cli.app import app

    yield "# All commands\n\nWhat `coterie --help` and `coterie COMMAND --help` say.\n"

    def walk(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
        yield f"{'#' * level} {context.command_path}\n"
        yield f"```text\n{Text.from_markup(command.help or '').plain.strip()}\n```\n"
        rows = [
            record for parameter in command.get_params(context) if (record := parameter.get_help_record(context))
        ]
        if rows:
            yield "| argument or option | meaning |\n|---|---|"
            for row in rows:
                name, said = (Text.from_markup(cell).plain for cell in row)
                yield f"| `{name}` | {said.replace('|', escaped)} |"
            yield ""
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                if inner is not None and not inner.hidden:
                    yield from walk(inner, click.Context(inner, info_name=name, parent=context), min(level + 1, 4))

    escaped = r"\|"
    top = get_command(app)
    yield from walk(top, click.Context(top, info_name="coterie"), 2)
