"""Read the code blocks of a guide and carry them out, in the order in which a reader meets them.

    python -m tests.guide docs/first-run.md     # in an empty folder: the blocks may write files

* `python` blocks run in one namespace. One whose first line is a comment that names a file (`# mine.py`) is written
  there instead, for the blocks that follow.
* A `toml` block is an experiment, or a comparison where it has `methods`, and must pass its check. Where its first
  line is a comment that names a file (`# mine.toml`), it is written there for the blocks that follow.
* In `sh` and `console` blocks every command `coterie …` must parse. In a `console` block the commands are the lines
  after `$ `, the rest is their output. The line before the block says how it is carried out:
    * `<!-- run -->`: as it stands.
    * `<!-- run with: run --rounds 1; compare --seeds 1 -->`: with these options at the end of each command
      `coterie run …` and `coterie compare …`, where they go before the block's own: what takes long is made small.
    * `<!-- run on real data -->`, with or without `with: …`: where COTERIE_DATA names a folder of datasets.
    * `<!-- run by tests/test_site.py -->`, or with a name behind it (`: keys`): by that test, which reads it here.
    * `<!-- not run: reason -->`: not at all.
* The line `<!-- not run: reason -->` before a block of another language passes it over.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import invalidate_caches
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.processes import call, run_apart

SHELL = ("sh", "console")
CHECKED = ("python", "toml", *SHELL)
SHOWN = ("text", "json", "mermaid", "bibtex")
"""Languages of blocks that are only shown."""

_FENCE = re.compile(r"\s*(`{3,}|~{3,})\s*(.*)")
_RUN = r"run(?P<real> on real data)?(?: with:\s*(?P<added>\S.*?))?|run by (?P<test>tests/\S+\.py)(?:: [\w-]+)?"
_MARK = re.compile(rf"\s*<!--\s*({_RUN}|not run:\s*\S.*?)\s*-->\s*")
_FILE_NAME = re.compile(r"#\s*([\w.-]+\.(?:toml|py))\s*")
_OPERATORS = {"|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1"}


class Wrong(Exception):
    """A block that does not do what a guide promises: one sentence, beginning with file and line."""


@dataclass(frozen=True)
class Block:
    """One fenced block of a Markdown file."""

    language: str
    source: str
    line: int
    """The line of the file in which the source begins, counted from 1."""
    mark: str = ""
    """What the comment before it says of how it is carried out, or nothing."""

    @property
    def passed_over(self) -> bool:
        return self.mark.startswith("not run") and self.language not in SHELL

    @property
    def test(self) -> str | None:
        """The file of the test that carries it out in the place of the guide's."""
        marked = re.fullmatch(_RUN, self.mark)
        return marked["test"] if marked else None

    @property
    def commands(self) -> list[str]:
        """The commands of a `sh` or `console` block, each on one line."""
        lines = self.source.replace("\\\n", " ").splitlines()
        if self.language == "console":
            return [line[2:] for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.startswith("#")]

    @property
    def script(self) -> str:
        """What the mark has run of a `sh` or `console` block, here and now; it may be nothing.

        Raises:
            Wrong: options that are for none of the commands.
        """
        marked = re.fullmatch(_RUN, self.mark)
        if marked is None or marked["test"] or (marked["real"] and not os.environ.get("COTERIE_DATA")):
            return ""
        commands = self.commands
        for added in filter(None, (marked["added"] or "").split(";")):
            words = shlex.split(added)
            options = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
            start = ["coterie", *words[:options]]
            split = [shlex.split(command, comments=True) for command in commands]
            if start not in (found := [one[: len(start)] for one in split]):
                raise Wrong(
                    f"no command begins with {shlex.join(start)!r}, so the mark's {added.strip()!r} is for none"
                )
            commands = [
                shlex.join([*split[i], *words[options:]]) if found[i] == start else command
                for i, command in enumerate(commands)
            ]
        return "\n".join(commands)


def blocks(path: Path) -> Iterator[Block]:
    """The fenced blocks of a file, in order.

    Raises:
        Wrong: a block without end, of no known language, or with a mark that would be of no effect; a shell block
            without a mark.
    """
    lines = path.read_text("utf-8").splitlines()
    number, mark = 0, ""
    while number < len(lines):
        fence, marked = _FENCE.fullmatch(lines[number]), _MARK.fullmatch(lines[number])
        number += 1
        if fence is None:
            if mark and lines[number - 1].strip():
                raise Wrong(f"{path}:{number}: the mark {mark!r} must stand right before a block")
            mark = marked[1] if marked else mark
            continue
        start, ends = number, re.compile(rf"\s*{fence[1][0]}{{{len(fence[1])},}}\s*")
        while number < len(lines) and not ends.fullmatch(lines[number]):
            number += 1
        if number == len(lines):
            raise Wrong(f"{path}:{start}: the block has no end")
        language = fence[2].strip()
        if language not in CHECKED + SHOWN:
            known = ", ".join(CHECKED + SHOWN)
            raise Wrong(
                f"{path}:{start}: the block's language {language!r} is not known; it must be one of {known}"
            )
        if mark.startswith("run") and language not in SHELL:
            raise Wrong(f"{path}:{start}: only sh and console blocks need the mark {mark!r}")
        if not mark and language in SHELL:
            raise Wrong(
                f"{path}:{start}: the {language} block has no mark; before it must stand <!-- run -->, another of "
                "the marks of tests/guide.py, or <!-- not run: REASON -->"
            )
        yield Block(language, textwrap.dedent("\n".join(lines[start:number])) + "\n", start + 1, mark)
        number, mark = number + 1, ""


def carry_out(path: Path, guide: Sequence[Block]) -> None:
    """Run, check or pass over each block, in the current folder.

    Raises:
        Wrong: an experiment or a command that is not accepted, or a command that fails.
        Exception: whatever a Python block raises, with the guide's own lines in the traceback.
    """
    # A real module, because dataclasses and type hints look their module up by name.
    module = ModuleType("guide_in_progress")
    sys.modules[module.__name__] = module
    for block in guide:
        where = f"{path}:{block.line}"
        if block.passed_over:
            continue
        if block.language == "python" and (name := _FILE_NAME.fullmatch(block.source.splitlines()[0])):
            Path(name[1]).write_text(block.source, "utf-8")
            if "" not in sys.path:
                sys.path.append("")  # a later block may import it
            invalidate_caches()
        elif block.language == "python":
            padded = "\n" * (block.line - 1) + block.source
            exec(compile(padded, path, "exec", dont_inherit=True), module.__dict__)
        elif block.language == "toml":
            _check_experiment(block, where)
        elif block.language in SHELL:
            _follow(block, where)


def _check_experiment(block: Block, where: str) -> None:
    from coterie.errors import BadInput
    from coterie.runs.schema.experiment import Experiment
    from coterie.studies.compare.spec import Comparison

    if name := _FILE_NAME.fullmatch(block.source.splitlines()[0]):
        Path(name[1]).write_text(block.source, "utf-8")
    try:
        kind = Comparison if "methods" in tomllib.loads(block.source) else Experiment
        kind.from_toml(block.source).check()
    except (BadInput, tomllib.TOMLDecodeError) as problem:
        raise Wrong(f"{where}: {problem}") from None


def _follow(block: Block, where: str) -> None:
    for command in block.commands:
        words = shlex.split(command, comments=True)
        while words and re.match(r"\w+=", words[0]):
            words.pop(0)
        if words and Path(words[0]).name == "coterie":
            end = next((i for i, word in enumerate(words) if word in _OPERATORS), len(words))
            _parse(words[1:end], where)
    try:
        script = block.script
    except Wrong as wrong:
        raise Wrong(f"{where}: {wrong}") from None
    if script and (code := _run_script(script)):
        raise Wrong(f"{where}: the commands ended with status {code}")


def _run_script(script: str) -> int:
    """Run the lines of a script up to the first that fails, and return its status.

    Lines that only call Coterie are carried out in processes that have imported everything already.
    """
    lines = [shlex.split(line, comments=True) for line in script.splitlines()]
    plain = [words and words[0] == "coterie" and not _OPERATORS.intersection(words) for words in lines]
    if all(plain) and "$" not in script:
        return next((code for words in lines if (code := run_apart(call, words[1:], output=None))), 0)
    # The interpreter's own folder first, so that `coterie` is the one under test.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return subprocess.run(
        ["sh", "-ec", script], env={**os.environ, "PATH": path}, stdin=subprocess.DEVNULL
    ).returncode


def follow(path: str) -> None:
    """Carry out a guide as `python -W error -m tests.guide` does."""
    warnings.simplefilter("error")
    try:
        carry_out(Path(path), list(blocks(Path(path))))
    except Wrong as wrong:
        sys.exit(str(wrong))


def _parse(words: list[str], where: str) -> None:
    """Hand the words to each command's own parser, down to the last subcommand, and run nothing."""
    from typer.main import get_command

    from coterie.cli import app

    command: Any = get_command(app.app)
    context: Any = None
    name: str | None = "coterie"
    try:
        while command is not None:
            context = command.make_context(name, list(words), parent=context)
            words = [*context._protected_args, *context.args]
            if not hasattr(command, "resolve_command") or not words:
                return
            name, command, words = command.resolve_command(context, words)
    except Exception as problem:
        # The parser raises an exit with code 0 once it has answered --help or --version.
        if getattr(problem, "exit_code", None) != 0:
            raise Wrong(f"{where}: {getattr(problem, 'message', problem)}") from problem


if __name__ == "__main__":
    follow(sys.argv[1])
