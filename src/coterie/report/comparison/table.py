"""The summary of a comparison as tables for a terminal, for Markdown and for LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl
from rich.console import Group
from rich.text import Text

from coterie.errors import count_of
from coterie.report import tables
from coterie.report.comparison.view import View
from coterie.report.gains import write_interval
from coterie.report.numbers import MISSING, alike, capital, decimals, significant
from coterie.report.tables import Table, escape_markdown, fit
from coterie.runs.folder.metrics import ADAPTED, CLASSIFICATION, MACRO, Metric, RunMetrics
from coterie.runs.folder.reading import MEGABYTE
from coterie.studies.compare.measures import NEWCOMERS

if TYPE_CHECKING:
    from coterie.studies.compare.spec import Comparison

MOMENTS = ("on arrival", "adapted")
"""When newcomers are scored, for the columns `NEWCOMERS`."""

Row = Mapping[str, Any]
"""A row of a comparison's summary (`coterie.studies.compare.table.summary_schema`)."""

Columns = Mapping[str, tuple[str, Callable[[Row], str]]]
"""Each column's title, and the function from a row to its text."""

LEAST = (
    *("effort", "down", "groups", "volume", "wins", "up", "rank", "newcomers_adapted", "newcomers"),
    *("worst10", "ari", "way", "rounds", "passes", "difference"),
)
"""Columns that are dropped on a narrow terminal, the least important one first."""


def to_rich(summary: pl.DataFrame, width: int | None = None, metrics: RunMetrics = CLASSIFICATION) -> Group:
    """Lay out one table a setting and a line on the numbers for a terminal; the best mean of the measure is bold.

    Where tables are wider than `width` characters, they go without the least important columns, which are named.
    """
    columns = columns_of(summary, metrics)
    least = [columns[key][0] for key in _least(columns)]
    fitted = fit(tabulate(summary, columns, metrics), least, width)
    dropped = [title for title, _ in columns.values() if title not in fitted.header]
    room = f" Without room here, but in table.md: {', '.join(dropped)}." if dropped else ""
    columns = {key: column for key, column in columns.items() if column[0] in fitted.header}
    parts: list[Any] = []
    for setting, rows in _settings(summary):
        drawn = tables.to_rich(tabulate(rows, columns, metrics))
        if setting:
            drawn.title, drawn.title_justify = Text(setting), "left"
        parts.append(drawn)
    return Group(*parts, Text(note(summary, columns, metrics) + room))


def to_markdown(
    summary: pl.DataFrame,
    comparison: Comparison,
    metrics: RunMetrics = CLASSIFICATION,
    notes: Sequence[str] = (),
) -> str:
    """Write one table a setting, a line on the numbers and a list of notes; the best mean is bold."""
    columns = columns_of(summary, metrics)
    blocks = [f"# {escape_markdown(comparison.name)}"]
    for setting, rows in _settings(summary):
        if setting:
            blocks.append(f"## {escape_markdown(setting)}")
        blocks.append(tables.to_markdown(tabulate(rows, columns, metrics, minus="−")))
    blocks.append(escape_markdown(note(summary, columns, metrics)))
    blocks += ["\n".join(f"- {escape_markdown(sentence)}" for sentence in notes)] if notes else []
    return "\n\n".join(blocks) + "\n"


def to_latex(summary: pl.DataFrame, comparison: Comparison, metrics: RunMetrics = CLASSIFICATION) -> str:
    """Write one float a setting, with a line on the numbers below; it needs the package `booktabs`."""
    columns = columns_of(summary, metrics)
    floats = [
        r"% \usepackage{booktabs}; a table that is too wide for the page goes without columns, or on its side"
    ]
    for setting, rows in _settings(summary):
        caption = f"{comparison.name}: {setting}" if setting else comparison.name
        floats.append(
            tables.to_latex(tabulate(rows, columns, metrics, minus="−"), caption, note(summary, columns, metrics))
        )
    return "\n\n".join(floats) + "\n"


def tabulate(
    summary: pl.DataFrame, columns: Columns, metrics: RunMetrics = CLASSIFICATION, minus: str = "-"
) -> Table:
    """Make a table of the rows of a summary; the best means are in bold, and numbers have this minus."""
    rows = summary.to_dicts()
    lines = [
        [text(row) if key == "method" else text(row).replace("-", minus) for key, (_, text) in columns.items()]
        for row in rows
    ]
    names = [*columns]
    strong = {(number, names.index("measure")) for number, row in enumerate(rows) if row["best"]}
    if "adapted" in names:
        strong = {
            (number, names.index(column))
            for column, value in (("measure", _mean_before), ("adapted", _mean_after))
            for number in _find_best([value(row) for row in rows], metrics.measures[rows[0]["measure"]])
        }
    return Table([title for title, _ in columns.values()], lines, strong=strong)


def with_worst_tenth(view: View) -> pl.DataFrame:
    """Return the summary of a setting with `worst10_low` and `worst10_high`, between which each `worst10` lies."""
    ends = [view.worst_tenth.get(method, (None, None)) for method in view.summary["method"]]
    low, high = ([end[i] for end in ends] for i in (0, 1))
    return view.summary.with_columns(
        pl.Series("worst10_low", low, pl.Float64), pl.Series("worst10_high", high, pl.Float64)
    )


def explain_worst_tenth(parts: Sequence[View]) -> str:
    """Say what the intervals are between which the worst tenth lies; nothing where no setting has one."""
    if not any(view.worst_tenth for view in parts):
        return ""
    several = any(len(view.seeds) > 1 for view in parts)
    return (
        " In round brackets below the worst 10 %: a 95 % interval from the clients' own test samples"
        + (", averaged over the seeds" if several else "")
        + ". Some clients come last only by bad luck on few samples. The interval allows for that, so it may lie "
        "above the value."
    )


def _settings(summary: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """Split the summary into settings, in order."""
    parts = summary.partition_by("setting", maintain_order=True)
    return [(part["setting"][0], part) for part in parts]


def columns_of(summary: pl.DataFrame, metrics: RunMetrics = CLASSIFICATION) -> Columns:
    """Choose the columns that say something in at least one row of the summary."""
    name = summary["measure"][0]
    measures = metrics.measures
    measure, worst = measures[name], measures["worst10"]
    further = {f"{MACRO}{metric.name}": measures[f"{MACRO}{metric.name}"] for metric in metrics.further}
    before = _title(measure).replace(measure.title, f"{measure.title} before adaptation")
    adapted: Columns = {
        "measure": (before, lambda row: _before(row, measure)),
        "adapted": (_title(measures.get(f"{ADAPTED}{name}", measure)), lambda row: _after(row, measure)),
    }
    columns: dict[str, tuple[str, Callable[[Row], str]]] = {
        "method": ("method", _method),
        "seeds": ("seeds", lambda row: f"{row['n']} of {row['seeds']}"),
        "measure": (_title(measure), lambda row: mean_and_sd(row, measure)),
        **(adapted if shows_adaptation(summary) else {}),
        "difference": ("difference", lambda row: _difference(row, measure)),
        "wins": ("wins", lambda row: _or_missing(row["wins"], lambda v: f"{v} of {row['pairs']}")),
        "rank": ("rank", lambda row: _or_missing(row["rank"], lambda v: decimals(v, 1))),
        "worst10": (_title(worst), lambda row: _worst_tenth(row, worst)),
        **{key: _further_column(key, other) for key, other in further.items() if key != name},
        **{key: _newcomers_column(key, when, metrics) for key, when in zip(NEWCOMERS, MOMENTS, strict=True)},
        "ari": ("ARI", lambda row: _or_missing(row["ari_mean"], decimals)),
        "groups": ("groups", lambda row: _or_missing(row["groups_mean"], significant)),
        "rounds": ("rounds", lambda row: _or_missing(row["rounds_mean"], significant)),
        "passes": ("local passes", lambda row: _or_missing(row["passes_mean"], significant)),
        "up": ("MB up", lambda row: _or_missing(row["up_bytes_mean"], _megabytes)),
        "down": ("MB down", lambda row: _or_missing(row["down_bytes_mean"], _megabytes)),
        "way": ("rounds to target", _rounds_to_target),
        "volume": ("MB to target", lambda row: _or_missing(row["bytes_to_target_median"], _megabytes)),
        "effort": ("passes to target", lambda row: _or_missing(row["passes_to_target_median"], significant)),
    }
    if summary["n"].eq(summary["seeds"]).all():
        del columns["seeds"]
    if name == "worst10":
        del columns["worst10"]
    known = summary.drop_nulls("rounds_mean")
    if known.filter(pl.col("rounds_mean").n_unique().over("setting") > 1).is_empty():
        del columns["rounds"]
    rows = summary.to_dicts()
    needless = {
        key for key, (_, text) in columns.items() if all(text(row) in (MISSING, "baseline") for row in rows)
    }
    return {key: column for key, column in columns.items() if key not in needless - {"method", "measure"}}


def shows_adaptation(summary: pl.DataFrame) -> bool:
    """Return whether methods are shown before and after adaptation, and not only FedAvg in a row of its own."""
    measure = f"{ADAPTED}{summary['measure'][0]}_mean"
    if measure not in summary.columns:  # what is compared is itself after adaptation
        return False
    bases = summary["adapted_from"].drop_nulls().unique().implode()
    others = summary.filter(~pl.col("method").is_in(bases) & pl.col("adapted_from").is_null())
    return bool(others[measure].count())


def _least(columns: Columns) -> list[str]:
    """Return the columns that a narrow terminal goes without, the least important one first."""
    further = [key for key in columns if key.startswith(MACRO)]
    return [key for key in (*LEAST[:-3], *further, *LEAST[-3:]) if key in columns]


def _further_column(key: str, measure: Metric) -> tuple[str, Callable[[Row], str]]:
    """Return the title and the text of another metric's column."""
    return _title(measure), lambda row: _or_missing(row[f"{key}_mean"], lambda v: _number(v, measure))


def _newcomers_column(key: str, when: str, metrics: RunMetrics) -> tuple[str, Callable[[Row], str]]:
    """Return the title and the text of a column on newcomers, by the first metric."""
    measure = metrics.measures[metrics.headline]
    return (
        _title(measure).replace(measure.title, f"unseen clients {when}"),
        lambda row: _or_missing(row.get(f"{key}_mean"), lambda v: _number(v, measure)),
    )


def _title(measure: Metric) -> str:
    is_plain = "%" in measure.title or not measure.is_share
    return measure.title if is_plain else f"{measure.title}, %"


def _or_missing(value: Any, form: Callable[[Any], str]) -> str:
    return MISSING if value is None else form(value)


def _method(row: Row) -> str:
    """Write a method, and where training diverged in some of its runs, in how many."""
    if not (diverged := row["diverged"]):
        return str(row["method"])
    often = "" if diverged == row["finished"] else f" in {diverged} of {row['finished']}"
    return f"{row['method']} (diverged{often})"


def _number(value: float, measure: Metric) -> str:
    if measure.is_share:
        return decimals(100 * value)
    return alike(value)[0] if measure.decimals is None else decimals(value, measure.decimals)


def _megabytes(count: float) -> str:
    return significant(count / MEGABYTE)


def _worst_tenth(row: Row, measure: Metric) -> str:
    return _or_missing(row["worst10_mean"], lambda v: _number(v, measure)) + _bracket_worst_tenth(row, measure)


def _bracket_worst_tenth(row: Row, measure: Metric) -> str:
    """Write between what the mean of the worst tenth lies, where the row says it."""
    low, high = row.get("worst10_low"), row.get("worst10_high")
    if low is None or high is None:
        return ""
    ends = [f"{100 * end:.0f}" for end in (low, high)] if measure.is_share else _numbers([low, high], measure)
    return f" {write_interval(*ends)}"


def mean_and_sd(row: Row, measure: Metric, of: str = "") -> str:
    """Write the mean of the comparison's measure and its deviation over the seeds, with equally many decimals."""
    mean, sd = (row.get(f"{of}{row['measure']}_{end}") for end in ("mean", "sd"))
    if mean is None or sd is None:
        text = _or_missing(mean, lambda v: _number(v, measure))
    else:
        text = " ± ".join(_numbers([mean, sd], measure))
    return text + (_bracket_worst_tenth(row, measure) if row["measure"] == "worst10" and not of else "")


def _numbers(values: Sequence[float], measure: Metric) -> list[str]:
    """Write values that belong together, with equally many decimals."""
    if measure.is_share or measure.decimals is not None:
        return [_number(value, measure) for value in values]
    return alike(*values)


def _mean_before(row: Row) -> float | None:
    return None if row["adapted_from"] is not None else row[f"{row['measure']}_mean"]


def _mean_after(row: Row) -> float | None:
    value: float | None = row[f"{'' if row['adapted_from'] is not None else ADAPTED}{row['measure']}_mean"]
    return value


def _find_best(values: Sequence[float | None], measure: Metric) -> list[int]:
    """Return the places of the best of the values that are known."""
    known = [value for value in values if value is not None]
    best = (min if measure.less_is_better else max)(known, default=None)
    return [place for place, value in enumerate(values) if value is not None and value == best]


def _before(row: Row, measure: Metric) -> str:
    return MISSING if row["adapted_from"] is not None else mean_and_sd(row, measure)


def _after(row: Row, measure: Metric) -> str:
    """Write the measure after adaptation; a row that is there for that has it as its measure."""
    return mean_and_sd(row, measure, "" if row["adapted_from"] is not None else ADAPTED)


def _difference(row: Row, measure: Metric) -> str:
    if row["method"] == row["baseline"]:
        return "baseline"
    if row["difference"] is None:
        return MISSING
    known = [row[key] for key in ("difference", "difference_low", "difference_high") if row[key] is not None]
    middle, *ends = _numbers(known, measure)
    signed = middle if middle.startswith("-") else f"+{middle}"
    return f"{signed} [{', '.join(ends)}]" if ends else signed


def _rounds_to_target(row: Row) -> str:
    if not row["aimed"]:
        return MISSING
    if not row["reached"]:
        return "never"
    median = significant(row["rounds_to_target_median"])
    return median if row["reached"] == row["aimed"] else f"{median} ({row['reached']} of {row['aimed']})"


def note(summary: pl.DataFrame, shown: Iterable[str] | None = None, metrics: RunMetrics = CLASSIFICATION) -> str:
    """Explain the numbers in one line: those of the columns `shown`, or of all that say something."""
    columns = set(columns_of(summary, metrics) if shown is None else shown)
    first: Row = summary.row(0, named=True)
    measure, baseline, several = metrics.measures[first["measure"]], first["baseline"], first["seeds"] > 1
    unit, points = (", in per cent", " in percentage points") if measure.is_share else ("", "")
    unit += "; less is better" if measure.less_is_better and measure.decimals is None else ""
    over = "one seed"
    if several:
        over = f"mean ± standard deviation over {count_of(first['seeds'], 'seed')}"
        over += " (or as many as the column of seeds says)" if "seeds" in columns else ""
    clients = "mean over clients in the " if first["measure"].startswith(MACRO) else ""
    parts = [f"{capital(measure.title)}: {clients}last evaluated round{unit}; {over}; the best is bold."]
    if "adapted" in columns:
        parts.append(
            "Before adaptation: clients use the model that the method serves; differences, wins and ranks compare "
            "these scores. After: every client has trained a copy of it on its own data. A method with an "
            "adaptation of its own uses that instead; its score before is that of the model from which it starts."
        )
    if rows := list(dict.fromkeys(summary.drop_nulls("adapted_from").select("method", "adapted_from").iter_rows())):
        parts += [f"{row}: {method} after adaptation, from the same runs." for row, method in rows]
    if "difference" in columns:
        paired = ", paired by seed, with the 95 % interval by Student's t, not corrected for the number of methods"
        parts.append(f"Difference: to {baseline}{points}{paired if several else ''}.")
    if "wins" in columns:
        parts.append(f"Wins: seeds in which it is better than {baseline}.")
    if "rank" in columns:
        parts.append("Rank: mean over seeds, 1 the best.")
    if {*NEWCOMERS} & columns:
        title = metrics.measures[metrics.headline].title
        parts.append(
            f"Unseen clients: mean {title} of clients who were held out of training, with the model that the "
            "method gives them, and after they have adapted it."
        )
    if "passes" in columns:
        parts.append(
            "Local passes: how many times a client trained on all of its samples, as a mean over clients; warm-ups "
            "and a method's own trials count, tuning and an adaptation before a test do not."
        )
    if {"way", "volume", "effort"} & columns:
        target = f"{baseline}'s own last value, seed by seed"
        if first["target"] is not None:
            target = _number(first["target"], measure) + (" %" if measure.is_share else "")
        parts.append(
            f"Target: {target}. Each value is the median over the seeds that reached it. A warm-up is part of the "
            "round in which it runs; the MB and passes to the target count it, too."
        )
    return " ".join(parts)
