"""The command line: the commands in the order of the help, and how each ends.

Each command is a file of this folder whose function `add` adds it. Commands parse, call the library and print.
Whatever takes long to import is imported inside them, so that `coterie --help` is fast.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.clients.open_files import is_there
from coterie.errors import BadInput, print_escaped, unknown
from coterie.plugins import fresh_consent

COMMANDS = (
    "demo",
    "diagnose",
    "auto",
    "run",
    "resume",
    "show",
    "cost",
    "report",
    "watch",
    "explain",
    "compare",
    "choose_k",
    "reproduce",
    "predict",
    "export",
    "list",
    "new",
    "schema",
    "flower",
)
"""The files that hold commands, in the order of the help."""

DONE, BROKEN_PIPE, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
"""Exit codes. A command that ran and found something failed ends with 1, too."""

HELP = """
Clustered and personalised federated learning: find out which clients belong
together, and train for each group.

Begin with [bold]coterie demo[/]: three methods on 20 clients in four hidden groups,
offline.

  coterie diagnose clients.csv     do these clients fall into groups?
  coterie auto clients.csv         choose what to train for whom, and train it
  coterie list methods             all methods; with a name, its settings
  coterie run fesem --name first   train; the run gets a folder, runs/first
  coterie show first               its rounds as a table, or runs compared
  coterie report first             rebuild its page, or save its charts
  coterie watch                    every run on a live page
  coterie new experiment.toml      a file with every setting, to edit
  coterie schema                   the file's JSON Schema, for editors
  coterie explain experiment.toml  the memory, time and bytes it will need
  coterie run experiment.toml      run it
  coterie compare fedavg fesem     methods over several seeds: a table, a page
  coterie reproduce --list         published tables that can be run again
  coterie predict first --data F   use a trained model on other data
  coterie export first --to F      the model as safetensors or ONNX
  coterie flower demo              a server and clients as processes, with TLS

Every command has its own [bold]--help[/].
"""

UsageError: type[Exception] = typer.BadParameter.__mro__[2]
"""`ClickException`. Newer versions of typer have a copy of click inside, older ones need the package."""

app = typer.Typer(
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True, help=HELP)
def coterie(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Print the version, or the help if no command is given."""
    if version:
        from coterie import __version__

        print(f"coterie {__version__}")
        raise typer.Exit(DONE)
    if context.invoked_subcommand is None:
        print(context.get_help())


for name in COMMANDS:
    import_module(f"coterie.cli.{name}").add(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 done, 1 some runs failed, 2 bad input, 3 diverged or 130 interrupted."""
    words = sys.argv[1:] if arguments is None else arguments
    _replace_unprintable_signs()
    try:
        with fresh_consent(words):
            code = app(args=arguments, prog_name="coterie", standalone_mode=False)
        sys.stdout.flush()
        return int(code or DONE)
    except BadInput as error:
        return _refuse(error.problems)
    except UsageError as error:
        return _refuse([_rewrite_usage_error(error, words)])
    except (KeyboardInterrupt, typer.Abort):
        print("coterie: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has gone. Without this, flushing at exit would complain once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        if _was_interrupted(error):
            print("coterie: interrupted", file=sys.stderr)
            return INTERRUPTED
        if (sentence := _say_exhausted(error)) is None:
            raise
        return _refuse([sentence])


def _replace_unprintable_signs() -> None:
    """Write `?` for a sign that standard output has no code for, as a pipe of Windows or the locale C."""
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.encoding.lower().startswith("utf"):
        sys.stdout.reconfigure(errors="replace")


def _was_interrupted(error: Exception) -> bool:
    """Whether Ctrl-C came while compiled code called Python, which then says so with an error of its own."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, KeyboardInterrupt) or KeyboardInterrupt.__name__ in str(found):
            return True
        found = found.__cause__ or found.__context__
    return False


def _say_exhausted(error: Exception) -> str | None:
    """What there is not enough of, or what is not permitted; None for an error of the program."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full; make room and resume, nothing that was finished is lost"
    if isinstance(error, OSError):
        strerror = f"({error.strerror}); name another file or folder"
        return None if error.filename is None else f"{str(error.filename)!r} cannot be used {strerror}"
    if isinstance(error, RecursionError):
        return "the input is nested too deeply; use fewer levels"
    if isinstance(error, OverflowError):
        return f"a number is too large ({error}); take a smaller one"
    if not isinstance(error, MemoryError | RuntimeError):
        return None
    # PyTorch says so with an error of its own on a GPU and a plain one on a CPU.
    asked = re.search(r"tried to allocate ([\d.]+ ?\w+)", str(error), re.IGNORECASE)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or asked:
        wanted = f" ({asked[1]} were asked for at once)" if asked else ""
        return f"there is not enough memory{wanted}; take a smaller network, fewer clients or smaller minibatches"
    return None


MOST_PROBLEMS = 20
"""Sentences that are said at once; a broken file could make thousands."""

MOST_SIGNS = 1000
"""Characters of a sentence that are shown, of a longer one its beginning and its end."""


def _refuse(problems: Sequence[str]) -> int:
    different = list(dict.fromkeys(problems))
    for problem in different[:MOST_PROBLEMS]:
        if len(problem) > MOST_SIGNS:
            problem = f"{problem[: MOST_SIGNS // 2]} … {problem[-MOST_SIGNS // 2 :]}"
        print_escaped(f"coterie: {problem}", file=sys.stderr)
    if len(different) > MOST_PROBLEMS:
        print(f"coterie: there are {len(different) - MOST_PROBLEMS} more problems like these", file=sys.stderr)
    return BAD_INPUT


def _rewrite_usage_error(error: Any, words: Sequence[str]) -> str:
    """Return a usage error in the style of all others: it begins small and ends without a full stop.

    An option that is a key of an experiment is none, and goes behind --set, with the value it has among the words.
    """
    text = " ".join(error.format_message().split()).removesuffix(".")
    context = getattr(error, "ctx", None)
    if context is not None and (match := re.match(r"No such command '(.*?)'", text)):
        return unknown("command", match[1], context.command.list_commands(context))
    text = text[:1].lower() + text[1:]
    extra = re.match(r"got unexpected extra arguments? \(([^\s)]+)", text)
    if extra and is_there(extra[1]) and Path(extra[1]).is_file():
        return f"{text}; to take several files, put them into one folder, a file a client, and name the folder"
    if context is None or not (match := re.match(r"no such option: (--([\w-]+))", text)):
        return text
    option, key = match[1], match[2].replace("-", "_")
    if not any("--set" in parameter.opts for parameter in context.command.params):
        return text
    if (setting := _find_setting(key, words)) is None:
        return text
    after = [*words[words.index(option) + 1 :], ""][0] if option in words else ""
    given = [word.removeprefix(f"{option}=") for word in words if word.startswith(f"{option}=")]
    value = shlex.quote(given[0] if given else "VALUE" if after.startswith("-") else after or "VALUE")
    return f"no such option: {option}; did you mean --set {setting}={value}?"


def _find_setting(key: str, words: Sequence[str]) -> str | None:
    """Return the key as --set takes it, bare or dotted, for a method among the words; None if there is no such."""
    from coterie.runs.schema.names import AUTO, catalog, known_settings, qualify

    if key == "name":
        return None
    for method in [word for word in words if word in catalog("method")] or ["fedavg"]:
        try:
            qualify(key, method, AUTO)
        except BadInput:
            known = known_settings(method, AUTO)
            owners = [f"{title}.{key}" for title in known if any(setting.name == key for setting in known[title])]
            if len(owners) == 1:
                return owners[0]
        else:
            return key
    return None
