"""The notebooks in `examples/notebooks`: executes and saves them again, and makes a page of the site of each.

`python -m website.notebooks [NAME ...] [--to FOLDER]` executes those that are named, or all, each in a kernel of
its own that begins in an empty folder. A notebook that raises, or writes to standard error, as warnings do, is not
saved. What is saved has no times and no versions: a notebook that says the same again has the same bytes.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "examples" / "notebooks"

SECONDS = 300
"""What a cell may take on a busy machine."""

COLOURS = 256
"""Colours of a saved picture, which makes it a sixth of its size."""

WARNINGS = "error,ignore::PendingDeprecationWarning:ipykernel.kernelbase"
"""Warnings are errors in a notebook; the kernel has one of its own as it ends."""

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

Notebook = Mapping[str, Any]


def list_notebooks() -> list[Path]:
    """Return the notebooks in the order in which they are read."""
    return sorted(NOTEBOOKS.glob("*.ipynb"))


def execute(path: Path) -> str:
    """Execute a notebook in a fresh kernel and an empty folder, and return it as it is saved.

    Raises:
        CellExecutionError: a cell raised; its traceback is in the message.
        ValueError: a cell wrote to standard error.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder, profile = Path(place, "work"), Path(place, "profile")
        folder.mkdir()
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=SECONDS,
            record_timing=False,
            coalesce_streams=True,
            extra_arguments=["--IPKernelApp.log_level=ERROR"],  # not that it talks over this machine's own TCP
            resources={"metadata": {"path": str(folder)}},
        )
        client.execute(env={**os.environ, "PYTHONWARNINGS": WARNINGS, "IPYTHONDIR": str(profile)})
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                raise ValueError(f"{path.name}, cell {number} wrote to standard error: {output['text']}")
            _shrink(output.get("data", {}))
    for cell in notebook.cells:
        cell["metadata"] = {}
    notebook["metadata"] = METADATA
    return str(nbformat.writes(notebook)).rstrip("\n") + "\n"


def _shrink(shown: dict[str, str]) -> None:
    """Give a picture a palette of its own in the place of four numbers a pixel."""
    if "image/png" in shown:
        from PIL import Image

        picture = Image.open(BytesIO(base64.b64decode(shown["image/png"]))).convert("RGB")
        picture = picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        small = BytesIO()
        picture.save(small, "PNG", optimize=True)
        shown["image/png"] = base64.b64encode(small.getvalue()).decode()


def make_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a saved notebook as a page in Markdown, and its pictures by the names that the page has for them."""
    notebook: Notebook = json.loads(path.read_text("utf-8"))
    pictures: dict[str, bytes] = {}
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(_translate_links(text) if cell["cell_type"] == "markdown" else _fence("python", text))
        for output in cell.get("outputs", ()):
            parts += _show(output, path.stem, pictures)
    about = f"*This page is `examples/notebooks/{path.name}` as it was executed.*"
    return "\n\n".join([parts[0], about, *parts[1:]]) + "\n", pictures


def _translate_links(text: str) -> str:
    """Let links to pages and to other notebooks find the pages of the site."""
    return re.sub(r"\]\(([\w-]+)\.ipynb", r"](\1.md", text.replace("](../../docs/", "](../"))


def _fence(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def _show(output: Mapping[str, Any], name: str, pictures: dict[str, bytes]) -> Iterator[str]:
    """Yield what a cell printed or showed, as Markdown; a picture is put to the others."""
    shown = output.get("data", {"text/plain": output.get("text", "")})
    text = "".join(shown.get("text/markdown", shown["text/plain"]))
    if "image/png" in shown:
        place = f"{name}-{len(pictures) + 1}.png"
        pictures[place] = base64.b64decode("".join(shown["image/png"]))
        width = output["metadata"]["image/png"]["width"]
        yield f'![{" ".join(text.split())}]({place}){{ width="{width}" }}'
    else:
        yield text if "text/markdown" in shown else _fence("text", text)


def main(words: list[str] | None = None) -> int:
    """Execute the notebooks that are named, or all, and save them; say each."""
    parser = argparse.ArgumentParser(prog="python -m website.notebooks", description="Execute the notebooks again.")
    known = {path.stem: path for path in list_notebooks()}
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)}; all if none is named")
    parser.add_argument("--to", type=Path, default=NOTEBOOKS, metavar="FOLDER", help="where they are saved")
    given = parser.parse_args(words)
    if wrong := [name for name in given.names if name not in known]:
        parser.error(f"notebook {wrong[0]!r} is not known; it must be one of {', '.join(known)}")
    for name in given.names or known:
        text = execute(known[name])
        place = given.to / known[name].name
        place.write_text(text, encoding="utf-8", newline="\n")
        print(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
