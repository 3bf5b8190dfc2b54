"""Which planted groups each method finds by its defaults, on ordinary settings of training.

    python -m benchmarks.planted [--write FILE] [--only METHOD,…] [--data digits,fashion-mnist] [--seeds 1,2,3]
                                 [--advised | --own-network] [--jobs N] [--folder FOLDER] [--kept] [--smoke]

Groups differ by a permutation of their labels, or by a rotation of their images. There are 2 or 4 of the same
size, or 4 of 12, 6, 3 and 1 clients. All clients take part in a round, or 30 % do, for twice as many rounds. A
method that cannot do without the number of groups is told it; all else are defaults, of the method and of
training. Every cell of the table (method, case, seed) is a run of its own in one process, one process a core.
FedAvg is run beside, with every client also scored after an epoch on its own data. With `--advised` methods that
miss some case by their defaults have what their pages say to set; these runs are counted in a table of their own
and stand as *as advised* in the others.

With `--own-network` nothing at all is set but the number of groups where a method needs it: the network is the one
that `auto` means, and 20 or 48 clients in four groups of one size have 40 rounds, with five seeds.

A cell is kept as soon as it has ended, under a key of all its settings and Coterie's version. It is not run
again while its key is the same: a second call goes on where the first one stopped. What is kept of the cells
asked for under another key is dropped. `--kept` runs nothing.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.document_sections import markdown
from benchmarks.kept_cells import fill_marks
from benchmarks.measuring import machine
from benchmarks.smoke import Arguments, pick_two
from coterie.errors import BadInput, count_of, unknown
from coterie.runs.folder.files import write_whole
from coterie.runs.schema.experiment import Experiment
from coterie.studies.compare.spec import key_of
from coterie.studies.rows import write_rows

KEPT = Path(__file__).parents[1] / "docs" / "planted"
"""The rows of each method, in a file of its name."""
PAGE = KEPT.with_suffix(".md")
FEDAVG = "fedavg"
METHODS = (
    "fedtsdp",
    "fesem",
    "fesem-ma",
    "fedcps",
    "layercfl",
    "dcpfl",
    "cfl",
    "adacfl",
    "ifca",
    "flis",
    "clusterfl",
    "robust-tkm",
    "pacfl",
    "fedem",
    "fedrc",
    "fedsoft",
    "em-groups",
    "pooled-groups",
    "flhc",
    "flux",
    "fedgroup",
    "cfl-gp",
    "stocfl",
    "halves",
)
"""Methods that search for groups. By its defaults any other serves one model, or each client its
own."""
TOLD = (
    "fesem",
    "fesem-ma",
    "fedcps",
    "ifca",
    "robust-tkm",
    "fedem",
    "fedrc",
    "fedsoft",
    "em-groups",
    "fedgroup",
    "cfl-gp",
)
"""Methods that cannot do without the number of groups."""
ADVICE: Mapping[str, Mapping[str, Any]] = {
    "fedcps": {"training.epochs": 5},
    "dcpfl": {"training.epochs": 5, "training.lr": 0.02},
    "ifca": {"training.epochs": 5, "method.init": "kmeans"},
    "flis": {"training.epochs": 5, "training.batch_size": 20, "training.lr": 0.1},
    "clusterfl": {"method.alpha": 0.01, "method.beta": 0.005, "method.rho": 0.02, "method.stop": 0},
}
"""Settings that a method's page advises where its defaults miss groups, chosen on seed 0 of either data."""
ENOUGH = 0.9
"""Adjusted Rand index from which on groups count as found."""
SEEDS = (1, 2, 3)
"""Not 0, the seed that defaults were chosen on."""
DATA: Mapping[str, Mapping[str, Any]] = {"digits": {}, "fashion-mnist": {"samples_per_client": 143}}
"""Data with their settings: of 143 images a fifth is for tests, a tenth for validation, and 100 are left."""
NETWORK = "mlp"
"""A perceptron is also what `auto` means for digits; on larger images it is many times as fast as a CNN."""
SKEWS = {"permuted-labels": "permuted labels", "rotated": "rotated images"}
SIZES = ((12, 12), (6, 6, 6, 6), (12, 6, 3, 1))
ROUNDS = {1.0: 40, 0.3: 80}
"""Rounds by participation."""
OWN_METHODS = ("fedtsdp", "fesem", "fesem-ma", "fedcps", "layercfl", "dcpfl", "cfl", "halves")
OWN_SIZES = ((5,) * 4, (12,) * 4)
OWN_SEEDS = (1, 2, 3, 4, 5)
OWN_ENOUGH = 0.95
OWN_ENOUGH_SEEDS = 4
"""What is run with each method's own network, and in how many of its seeds which ARI counts as found."""

SMOKE = {"only": None, "data": "fashion-mnist", "seeds": "1", "jobs": 1, "kept": False}

Row = Mapping[str, Any]
PLACE = ("method", "advised", "data", "split", "participation", "seed", "own_network", "fewer")
"""The keys of a row that say which cell it is of; `own_network` is the number of clients where it is, else 0."""


@dataclass(frozen=True)
class Case:
    """What is planted, in which data, and how many clients take part in a round."""

    data: str
    skew: str
    sizes: tuple[int, ...]
    """Clients in each group."""
    participation: float
    rounds: int
    own_network: bool = False
    """Whether the network is the one that `auto` means for the data."""

    @property
    def split(self) -> str:
        """The split as an experiment has it."""
        groups = len(self.sizes)
        even = len(set(self.sizes)) == 1
        return f"{self.skew}({groups})" if even else f"{self.skew}({groups}, sizes={list(self.sizes)})"

    @property
    def title(self) -> str:
        """The head of its column."""
        if self.own_network:
            return f"{self.data}, {SKEWS[self.skew]}, {sum(self.sizes)} clients"
        even = len(set(self.sizes)) == 1
        groups = f"{len(self.sizes)} groups" if even else "/".join(map(str, self.sizes))
        return groups if self.participation == 1 else f"{groups}, {self.participation:.0%}"


@dataclass(frozen=True)
class Cell:
    """One run."""

    method: str
    case: Case
    seed: int
    advised: bool = False
    """Whether it runs with what `ADVICE` has for its method."""
    fewer: int = 0
    """By how many the number of groups that it is given is too small."""

    def experiment(self) -> Experiment:
        """Return what is run."""
        case = self.case
        told = {"clusters": len(case.sizes) - self.fewer} if self.method in TOLD else {}
        by_default = Experiment(
            data={"name": case.data, "split": case.split, "clients": sum(case.sizes), **DATA[case.data]},
            method={"name": self.method, **told},
            network="auto" if case.own_network or case.data == "digits" else NETWORK,
            evaluation={"every": case.rounds, "adapt": {"epochs": 1} if self.method == FEDAVG else None},
            run={"rounds": case.rounds, "participation": case.participation, "seed": self.seed, "workers": 1},
        )
        return by_default.updated(ADVICE[self.method]) if self.advised else by_default

    @property
    def place(self) -> tuple[Any, ...]:
        """What of its row says which cell it is."""
        case = self.case
        clients = sum(case.sizes) if case.own_network else 0
        return self.method, self.advised, case.data, case.split, case.participation, self.seed, clients, self.fewer


def cases(data: Iterable[str] = tuple(DATA)) -> list[Case]:
    """Return every case of some data, in the order of the page."""
    return [Case(*which, ROUNDS[which[-1]]) for which in product(data, SKEWS, SIZES, ROUNDS)]


def own_cases(data: Iterable[str] = tuple(DATA)) -> list[Case]:
    """Return every case that is run with each method's own network."""
    return [Case(*which, 1.0, ROUNDS[1.0], own_network=True) for which in product(data, SKEWS, OWN_SIZES)]


def own_cells(methods: Sequence[str], data: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """Return the cells with each method's own network; on digits also with one group fewer than there are."""
    wrong = [case for case in own_cases(data) if case.data == "digits" and case.sizes == OWN_SIZES[0]]
    few = product(seeds, wrong, [method for method in methods if method in TOLD])
    return cells(methods, own_cases(data), seeds) + [
        Cell(method, case, seed, fewer=1) for seed, case, method in few
    ]


def cells(methods: Sequence[str], cases: Sequence[Case], seeds: Sequence[int], advised: bool = False) -> list[Cell]:
    """Return the cells, the first seed of everything before the second, so that the table fills evenly."""
    return [Cell(method, case, seed, advised) for seed, case, method in product(seeds, cases, methods)]


def play(cell: Cell) -> Row | None:
    """Run a cell in this process and return its row; None where it was interrupted.

    Raises:
        BadInput: it cannot run.
    """
    import coterie
    from coterie.methods.split_halves import MIXED
    from coterie.runs.folder.run_folder import RunFolder
    from coterie.runtime.threads import one_thread

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, one_thread(blas=True):
        result = coterie.run(cell.experiment().updated({"run.folder": folder}))
        mixed = any(warning.startswith(MIXED) for warning in RunFolder(result.folder).warnings())
    if result.status != "finished":
        return None
    last, ari = result.summary, result.summary["ari"]
    row = dict(zip(PLACE, cell.place, strict=True))
    return row | {
        "key": key_of(cell.experiment()),
        "rounds": cell.case.rounds,
        # Where no client is in any group, none agree.
        "ari": 0.0 if ari is None or math.isnan(ari) else ari,
        "accuracy": last["macro_accuracy"],
        "adapted": last.get("adapted_macro_accuracy"),
        "groups": last["groups"],
        "mixed": mixed,
        "seconds": time.perf_counter() - start,
    }


def attempt(cell: Cell) -> Row | str | None:
    """As `play`, but where the cell fails, return why, for the others are to be run all the same."""
    try:
        return play(cell)
    except Exception as error:  # noqa: BLE001  # whatever becomes of a cell, the others go on
        return f"{type(error).__name__}: {error}"


def played(todo: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, Row | str | None]]:
    """Yield each cell with what came of it, as it ends; `jobs` at a time, each in a process of its own."""
    if jobs == 1:
        yield from ((cell, attempt(cell)) for cell in todo)
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    try:
        of = {pool.submit(attempt, cell): cell for cell in todo}
        for future in as_completed(of):
            yield of[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)


class Kept:
    """The rows of cells that were run, on disk in one file a method."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        files = sorted(folder.glob("*.json")) if folder.is_dir() else []
        rows = [row for file in files for row in json.loads(file.read_text("utf-8"))["rows"]]
        self._rows: dict[tuple[Any, ...], Row] = {place_of(row): row for row in rows}

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def missing(self, wanted: Iterable[Cell]) -> list[Cell]:
        """Return the cells that are not kept; those kept under another key are dropped first."""
        found = [cell for cell in wanted if self._key(cell) != key_of(cell.experiment())]
        stale = {cell.method for cell in found if self._rows.pop(cell.place, None) is not None}
        for method in stale:
            self._write(method)
        return found

    def add(self, row: Row) -> None:
        """Keep a row, also if the process is killed right after."""
        self._rows[place_of(row)] = row
        self._write(row["method"])

    def _key(self, cell: Cell) -> str | None:
        row = self._rows.get(cell.place)
        return None if row is None else row["key"]

    def _write(self, method: str) -> None:
        own = sorted((row for row in self.rows if row["method"] == method), key=place_of)
        self.folder.mkdir(parents=True, exist_ok=True)
        found = {"benchmark": "planted", "machine": machine(), "rows": own}
        write_whole(self.folder / f"{method}.json", write_rows(found, {"rows": 1}).encode())


def place_of(row: Row) -> tuple[Any, ...]:
    """Return which cell a row is of, as `Cell.place`."""
    return tuple(row.get(key, 0) for key in PLACE)


def seconds_left(todo: Iterable[Cell], rows: Sequence[Row], jobs: int) -> float | None:
    """Return about how long cells take, from others of their method, data and settings, else of less of these."""
    if not rows:
        return None

    def usual(cell: Cell) -> float:
        alike = ("data", "advised", "own_network")
        place = dict(zip(PLACE, cell.place, strict=True))
        on = [row for row in rows if all(row.get(key, 0) == place[key] for key in alike)]
        own = [row for row in on if row["method"] == cell.method] or on or rows
        return mean(own, "seconds")

    return sum(map(usual, todo)) / jobs


def page(text: str, rows: Sequence[Row]) -> str:
    """Return the page with its tables made anew, of the rows alone."""
    tables = [part for key in product(DATA, SKEWS) for part in (f"## {key[0]}, {SKEWS[key[1]]}", table(rows, *key))]
    parts = {
        "own network": [own_table(rows)],
        "mixed groups": [mixed_table(rows)],
        "defaults": [overview(rows)],
        "advised": [overview(rows, advised=True)],
        "cases": tables,
    }
    return fill_marks(text, parts)


def overview(rows: Sequence[Row], *, advised: bool = False) -> str:
    """Return a table of how many cases of those that were run have an ARI that is enough; bold where not all.

    Args:
        rows: what was run.
        advised: those with what the pages say to set, of the methods that have such advice; else by the defaults.
    """
    blocks = list(product(DATA, SKEWS))
    lines = []
    for method in ADVICE if advised else METHODS:
        line = [link(method)]
        if advised:
            line.append(", ".join(advice(method)))
        for data, skew in blocks:
            runs = [of_cell(rows, method, case, advised=advised) for case in cases([data]) if case.skew == skew]
            line.append(count_found(list(filter(None, runs))))
        lines.append(line)
    titles = (f"{data}, {SKEWS[skew]}" for data, skew in blocks)
    return markdown(("method", *(["set"] if advised else []), *titles), lines)


def own_table(rows: Sequence[Row]) -> str:
    """Return a table of the cells with each method's own network: a row for each method, a column for each case."""
    lines = []
    for method in OWN_METHODS:
        line = [link(method)]
        for case in own_cases():
            places = {Cell(method, case, seed).place for seed in OWN_SEEDS}
            line.append(seeds_found([row for row in rows if place_of(row) in places]))
        lines.append(line)
    return markdown(("method", *(case.title for case in own_cases())), lines)


def mixed_table(rows: Sequence[Row]) -> str:
    """Return a table of how many runs say that clients of one group differ: of right runs, and of wrong ones."""
    lines = []
    for method in filter(OWN_METHODS.__contains__, TOLD):
        own = [row for row in rows if row["method"] == method and row.get("own_network")]
        right = [row for row in own if not row.get("fewer") and row["ari"] >= OWN_ENOUGH]
        few = [row for row in own if row.get("fewer")]
        lines.append(
            [link(method), *(f"{sum(row['mixed'] for row in some)} of {len(some)}" for some in (right, few))]
        )
    return markdown(("method", "groups as planted", "one group fewer"), lines)


def seeds_found(rows: Sequence[Row]) -> str:
    """Return in how many of a cell's seeds groups are found, and the mean ARI; a dash where none was run."""
    if not rows:
        return "–"
    found = sum(row["ari"] >= OWN_ENOUGH for row in rows)
    text = f"{found} of {len(rows)}"
    return f"{text if found >= OWN_ENOUGH_SEEDS else f'**{text}**'} · {rounded_down(mean(rows, 'ari'))}"


def advice(method: str) -> list[str]:
    """Return what the page of a method says to set, each setting as it says it."""
    return [f"`{key.removeprefix('method.')} = {json.dumps(value)}`" for key, value in ADVICE[method].items()]


def count_found(cases: Sequence[Sequence[Row]]) -> str:
    """Return in how many cases, each given by its rows, groups are found; in bold where not in all."""
    if not cases:
        return "–"
    found = sum(mean(own, "ari") >= ENOUGH for own in cases)
    text = f"{found} of {len(cases)}"
    seeds = min(map(len, cases))
    few = "" if seeds == len(SEEDS) else f" ({count_of(seeds, 'seed')})"
    return (text if found == len(cases) else f"**{text}**") + few


def table(rows: Sequence[Row], data: str, skew: str) -> str:
    """Return the table of some data and skew: a row for each method, a column for each case."""
    columns = [case for case in cases([data]) if case.skew == skew]
    of = {method: [of_cell(rows, method, case) for case in columns] for method in (FEDAVG, *METHODS)}
    if not any(map(any, of.values())):
        return "Not run yet."
    name = link(FEDAVG)
    lines = [
        [name, *(entry(own, lambda rows: f"{mean(rows, 'accuracy'):.1%}") for own in of[FEDAVG])],
        [f"{name}, adapted", *(entry(own, lambda rows: f"{mean(rows, 'adapted'):.1%}") for own in of[FEDAVG])],
    ]
    for method in METHODS:
        lines.append([link(method), *(entry(own, scores) for own in of[method])])
        advised = [of_cell(rows, method, case, advised=True) for case in columns]
        if any(advised):
            lines.append([f"{link(method)}, as advised", *(entry(own, scores) for own in advised)])
    return markdown(("method", *(case.title for case in columns)), lines)


def of_cell(rows: Sequence[Row], method: str, case: Case, *, advised: bool = False) -> list[Row]:
    """Return the rows of a method's cells in a case, of the seeds that count."""
    places = {Cell(method, case, seed, advised).place for seed in SEEDS}
    return [row for row in rows if place_of(row) in places]


def mean(rows: Sequence[Row], measure: str) -> float:
    """Return the mean of a measure over rows, at least one."""
    return float(sum(row[measure] for row in rows) / len(rows))


def scores(rows: Sequence[Row]) -> str:
    """Return ARI and accuracy; the former in bold where it is not enough."""
    ari = mean(rows, "ari")
    text = rounded_down(ari) if ari >= ENOUGH else f"**{rounded_down(ari)}**"
    return f"{text} · {mean(rows, 'accuracy'):.1%}"


def rounded_down(ari: float) -> str:
    """Return two digits, so that 1.00 is 1 and what is not enough looks so."""
    return f"{math.floor(100 * ari + 1e-9) / 100:.2f}"


def entry(rows: Sequence[Row], show: Callable[[Sequence[Row]], str]) -> str:
    """Return what is shown of a cell, with how many seeds were run where not all were; a dash where none was."""
    if not rows:
        return "–"
    text = show(rows)
    return text if len(rows) == len(SEEDS) else f"{text} ({len(rows)} of {len(SEEDS)})"


def link(method: str) -> str:
    """Return a method's name as a link to its page."""
    return f"[`{method}`](methods/{method}.md)"


def asked(parser: ArgumentParser, given: Namespace) -> list[Cell]:
    """Return the cells that were asked for; ends where one cannot be."""
    known = ADVICE if given.advised else OWN_METHODS if given.own_network else (FEDAVG, *METHODS)
    methods = given.only.split(",") if given.only else list(known)
    data = given.data.split(",")
    seeds = given.seeds.split(",") if given.seeds else list(map(str, OWN_SEEDS if given.own_network else SEEDS))
    found = [f"--only: {unknown('method', m, known)}" for m in methods if m not in known]
    found += [f"--data: {unknown('data', name, DATA)}" for name in data if name not in DATA]
    found += [
        f"--seeds = {one!r} is not possible; it must be whole numbers of 0 or more with commas between"
        for one in seeds
        if not one.isdecimal()
    ]
    if given.jobs is not None and given.jobs < 1:
        found.append(f"--jobs = {given.jobs} is not possible; it must be at least 1")
    if found:
        parser.error("\n".join(found))
    numbers = [int(one) for one in seeds]
    if given.own_network:
        return own_cells(methods, data, numbers)
    return cells(methods, cases(data), numbers, given.advised)


def run(todo: Sequence[Cell], kept: Kept, jobs: int) -> list[str]:
    """Run cells, keep each row as it comes, print how it goes; return a sentence for each cell that failed."""
    left, failed = dict.fromkeys(todo), []
    start = time.perf_counter()
    for cell, came in played(todo, jobs):
        del left[cell]
        method, _, *case, seed, clients, fewer = cell.place
        kind = ["as advised"] * cell.advised + [f"with {clients} clients"] * cell.case.own_network
        kind += ["and a group too few"] * fewer
        name = " ".join(map(str, [method, *kind, *case, "seed", seed]))
        if isinstance(came, str):
            failed.append(f"{name}: {came}")
            text = came
        elif came is None:
            raise KeyboardInterrupt
        else:
            kept.add(came)
            text = f"ARI {came['ari']:.2f}, accuracy {came['accuracy']:.1%}, {came['seconds']:.1f} s"
        more = seconds_left(left, kept.rows, jobs)
        ahead = (
            "" if more is None else f", about {more / 60:.0f} min left" if more >= 90 else f", {more:.0f} s left"
        )
        done, passed = len(todo) - len(left), time.perf_counter() - start
        print(f"[{done}/{len(todo)}, {passed:.0f} s{ahead}] {name}: {text}", flush=True)
    return failed


def main() -> None:
    """Run what is missing, and write the page."""
    from coterie.runtime.threads import cores

    parser = Arguments("planted", __doc__, SMOKE)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to be written")
    parser.add_argument("--only", metavar="METHOD", help="names with commas between; without it, all and FedAvg")
    parser.add_argument("--data", default=",".join(DATA), help="digits, fashion-mnist or both with a comma between")
    parser.add_argument("--seeds", help="with commas between; without it, those of the page")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--advised", action="store_true", help="with what the pages say to set, not by the defaults")
    ways.add_argument(
        "--own-network", action="store_true", help="with each method's own network, 20 and 48 clients, five seeds"
    )
    parser.add_argument("--jobs", type=int, help="runs at a time; without it, one a core")
    parser.add_argument("--folder", type=Path, default=KEPT, help="where rows are kept")
    parser.add_argument("--kept", action="store_true", help="run nothing; the page is of what is kept")
    given = parser.read()
    wanted, kept, failed = asked(parser, given), Kept(given.folder), []
    if given.smoke:
        wanted = [replace(cell, case=replace(cell.case, rounds=2)) for cell in pick_two(wanted)]
    if not given.kept:
        todo = kept.missing(wanted)
        try:
            for cell in todo:
                cell.experiment().check()
        except BadInput as error:
            parser.error("\n".join(error.problems))
        print(f"{len(wanted)} cells, of which {len(wanted) - len(todo)} are kept already", flush=True)
        try:
            failed = run(todo, kept, given.jobs or cores())
        except KeyboardInterrupt:
            sys.exit("interrupted; the same command goes on with the next cell")
    if given.write:
        text = (given.write if given.write.exists() else PAGE).read_text("utf-8")
        given.write.write_text(page(text, kept.rows), encoding="utf-8")
        print(given.write)
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
