"""The page of a diagnosis: its answers, who is near whom, what each model is worth to whom, in one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import altair as alt
import polars as pl

from coterie.advice.diagnose.advice import Suggestion
from coterie.advice.diagnose.diagnosis import Diagnosis, Membership
from coterie.advice.diagnose.pay import TITLES, Pay
from coterie.advice.diagnose.signals import say_p
from coterie.errors import count_of
from coterie.grouping.halves import PairingTest
from coterie.report.drawing.colours import NO_GROUP, PALETTE, of_groups
from coterie.report.drawing.figure import Figure, rows, with_style
from coterie.report.drawing.marks import colour
from coterie.report.numbers import MISSING, volume
from coterie.report.rendering import render_page
from coterie.report.tables import Table

SHORT = {
    "global": "one for all",
    "tuned": "for all, fine-tuned",
    "personal": "personal, pulled",
    "local": "alone",
    "constants": "own constants",
    "group": "for each group",
    "group-tuned": "group, fine-tuned",
}
"""What the options are called where there is little room."""

MOST_BARS = 60
"""Clients whose gains are drawn, those who gain or lose most; more have no room for their names."""

ROW = 22
"""Pixels of a bar and its name."""


def make_page(diagnosis: Diagnosis, suggestions: Sequence[Suggestion], of: str, experiment: str) -> str:
    """Return the page of a diagnosis as HTML that holds everything it shows.

    Args:
        diagnosis: what was found.
        suggestions: methods that suit it.
        of: what was diagnosed, in a few words.
        experiment: that was diagnosed, as TOML.
    """
    figures = {figure.name: figure for figure in draw(diagnosis)}
    return render_page(
        "diagnosis.html",
        "Should these clients be grouped?",
        f"{count_of(diagnosis.clients, 'client')} on {of}",
        [figure for name, figure in figures.items() if diagnosis.is_told or name != "distances"],
        answers=[_split_question(sentence) for sentence in diagnosis.sentences()],
        notes=[note.rstrip(".") for note in diagnosis.notes],
        distances=figures["distances"] if diagnosis.is_told else None,
        options=figures.get("options"),
        gains=figures.get("gains"),
        methods=_list_methods(suggestions),
        signals=_tabulate_signals(diagnosis),
        groups=_tabulate_groups(diagnosis) if diagnosis.is_told else None,
        clients=_tabulate_clients(diagnosis) if diagnosis.is_told else None,
        diagnosed=diagnosis.answered,
        most_open=MOST_BARS,
        starts=diagnosis.starts,
        seconds=f"{diagnosis.seconds:,.0f}",
        experiment=experiment,
        alpha=f"{diagnosis.alpha:g}",
    )


def draw(diagnosis: Diagnosis) -> list[Figure]:
    """Draw every figure of a diagnosis in reading order; who gains only where that was asked."""
    pay = diagnosis.pay
    drawn = [draw_distances(diagnosis), *([] if pay is None else [draw_options(pay), draw_gains(pay)])]
    return [with_style(figure) for figure in drawn]


def draw_distances(diagnosis: Diagnosis) -> Figure:
    """Draw the distances between clients, those of a group side by side."""
    name, title = "distances", "Who is near whom"
    if not diagnosis.distances:
        return Figure(name, title, "There are too few clients to compare, or too many to be drawn.")
    order = sorted(range(len(diagnosis.memberships)), key=lambda i: (diagnosis.memberships[i].group, i))
    names = [diagnosis.memberships[i].client for i in order]
    cells = [
        {
            "row": names[a],
            "column": names[b],
            "distance": diagnosis.distances[i][j] if i != j else None,
            "groups": f"{diagnosis.memberships[i].group} and {diagnosis.memberships[j].group}",
        }
        for a, i in enumerate(order)
        for b, j in enumerate(order)
    ]
    many = len(order) > 40
    labels = alt.Axis(title=None, labels=not many, ticks=False, domain=False, labelLimit=90)
    across = alt.Axis(title=None, labels=not many, ticks=False, domain=False, labelLimit=90, labelAngle=-90)
    frame = pl.DataFrame(
        cells, schema={"row": pl.String, "column": pl.String, "distance": pl.Float64, "groups": pl.String}
    )
    chart = (
        alt.Chart(rows(frame))
        .mark_rect()
        .encode(
            x=alt.X("column:N").sort(names).axis(across),
            y=alt.Y("row:N").sort(names).axis(labels),
            color=alt.Color("distance:Q")
            .scale(range=[PALETTE[0], "#E8EEF4"])
            .legend(alt.Legend(title="distance", orient="top", format=".1f")),
            tooltip=["row:N", "column:N", alt.Tooltip("distance:Q", format=".2f"), "groups:N"],
        )
    )
    caption = (
        "Each square is a pair of clients, sorted by group. The darker it is, the more alike are the directions "
        "in which their data move a model. The distance is 0 if the directions are the same, and 1 if two "
        "clients have no more in common than all clients have. It is one minus the cosine of their updates, "
        "after the mean of all clients is subtracted, averaged over halves of the data and initial models."
    )
    return Figure(name, title, caption, chart, square=True)


def draw_options(pay: Pay) -> Figure:
    """Draw what each model that a client could have scores on average."""
    unit = 100.0 if pay.measure == "accuracy" else 1.0
    axis = "mean accuracy in %" if pay.measure == "accuracy" else f"mean {pay.measure}"
    frame = pl.DataFrame(
        {
            "model": [SHORT[option.name] for option in pay.options],
            "score": [unit * option.score for option in pay.options],
            "chosen": ["chosen" if option.name == pay.best else "not chosen" for option in pay.options],
        }
    )
    # The longest bar leaves room for its number, on a telephone too.
    scores = [0.0, *frame["score"].to_list()]
    room = [min(scores), max(scores) + 0.2 * (max(scores) - min(scores)) or 1.0]
    ticks = alt.Axis(title=axis)
    if unit > 1:  # no share is above 100 %
        ticks = alt.Axis(title=axis, domain=False, values=[x for x in range(0, 101, 20) if x <= room[1]])
    base = alt.Chart(rows(frame)).encode(
        x=alt.X("score:Q").axis(ticks).scale(domain=room, nice=False),
        y=alt.Y("model:N").sort(frame["model"].to_list()).axis(alt.Axis(title=None, labelLimit=190, ticks=False)),
    )
    colour = alt.Color("chosen:N").scale(domain=["chosen", "not chosen"], range=[PALETTE[0], NO_GROUP]).legend(None)
    bars = base.mark_bar(height={"band": 0.7}).encode(
        color=colour, tooltip=["model:N", alt.Tooltip("score:Q", format=".3~f")]
    )
    number = alt.Text("score:Q", format=".1f" if unit > 1 else ".3~g")
    words = base.mark_text(align="left", dx=4, fontSize=12).encode(text=number)
    better = "more" if pay.measure == "accuracy" else "less"
    caption = (
        f"A bar is the mean score of {count_of(len(pay.clients), 'client')}, each on samples that no model was "
        f"trained on; {better} is better. The coloured bar is the chosen model: the simplest within one standard "
        "error of the best, or within two if the test of structure supports it."
    )
    return Figure(
        "options", "How well each model does", caption, alt.layer(bars, words), height=60 + 30 * len(pay.options)
    )


def draw_gains(pay: Pay) -> Figure:
    """Draw what each client gains over one model for all, with its interval."""
    unit = 100.0 if pay.measure == "accuracy" else 1.0
    ordered = sorted(pay.clients, key=lambda client: -client.gain.value)
    left_out = len(ordered) - MOST_BARS
    if left_out > 0:
        ordered = ordered[: MOST_BARS // 2] + ordered[-MOST_BARS // 2 :]
    frame = pl.DataFrame(
        [
            {
                "client": one.client,
                "of": f"group {one.group}",
                "gain": unit * one.gain.value,
                "low": unit * one.gain.low,
                "high": unit * one.gain.high,
                "samples": one.samples,
            }
            for one in ordered
        ]
    )
    names = sorted({one.group for one in ordered})
    looks = dict(zip((f"group {group}" for group in names), of_groups(names), strict=True))
    title = f"gain over one model for all{' in points' if unit > 1 else f', {pay.measure}'}"
    y = alt.Y("client:N").sort(frame["client"].to_list()).axis(alt.Axis(title=None, labelLimit=120, ticks=False))
    base = alt.Chart(rows(frame)).encode(y=y, color=colour(looks))
    shown = [
        "client:N",
        alt.Tooltip("of:N", title="group"),
        *(alt.Tooltip(f"{at}:Q", format="+.1f" if unit > 1 else "+.3~g") for at in ("gain", "low", "high")),
        "samples:Q",
    ]
    chart = alt.layer(
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q").title(title), x2="high:Q"),
        base.mark_point(filled=True, size=70, opacity=1).encode(x="gain:Q", tooltip=shown),
        alt.Chart(alt.InlineData(values=[{"x": 0}])).mark_rule(color=NO_GROUP, strokeDash=[4, 4]).encode(x="x:Q"),
    )
    caption = (
        f"A dot is what a client gains by {TITLES[pay.weighed]} over one model for all, and the line is its 95 % "
        f"interval by the client's own samples. Right of the dashed line the client is better off."
    )
    caption += f" {count_of(left_out, 'client')} in between are not drawn." if left_out > 0 else ""
    height = 70 + ROW * len(ordered)
    return Figure("gains", "Who gains, and who loses", caption, chart, height=height)


def _split_question(sentence: str) -> tuple[str, str]:
    """Return the question that a sentence answers, and the answer; no question where it has none."""
    question, mark, answer = sentence.partition("? ")
    return (f"{question}?", answer) if mark and len(question) < 40 else ("", sentence)


def _list_methods(suggestions: Sequence[Suggestion]) -> list[tuple[str, str]]:
    """Return each method with its settings, and why it suits and what it costs."""
    found = []
    for number, one in enumerate(suggestions, 1):
        settings = ", ".join(f"{key} = {value}" for key, value in one.settings.items())
        known = one.up_bytes is not None and one.down_bytes is not None
        sent = f" and {volume((one.up_bytes or 0) + (one.down_bytes or 0))} sent" if known else ""
        cost = "" if one.seconds is None else f"; about {one.seconds:,.0f} s here{sent}"
        found.append((f"{number}. {one.method}{f' with {settings}' if settings else ''}", f"{one.reason}{cost}"))
    return found


def _tabulate_signals(diagnosis: Diagnosis) -> Table:
    """Return what every signal says of whether clients differ, that which decides first."""

    def cells(title: str, clients: int, test: PairingTest) -> list[str]:
        return [title, say_p(test, diagnosis.draws), f"{test.own:.3f}", f"{test.random:.3f}", str(clients)]

    found = [cells("directions of updates (this test decides)", diagnosis.tested, diagnosis.structure)]
    found += [cells(signal.title, signal.clients, signal.test) for signal in diagnosis.signals]
    heads = ["Signal", "p", "Distance of own halves", "Of random pairs", "Clients"]
    return Table(heads, found if diagnosis.is_possible else [], texts=1)


def _tabulate_groups(diagnosis: Diagnosis) -> Table:
    gains = (
        {} if diagnosis.pay is None else {of.group: diagnosis.pay.say_gain(of.gain) for of in diagnosis.pay.groups}
    )
    groups = () if diagnosis.all_differ else diagnosis.groups
    # A name is not broken by a narrow column.
    names = [", ".join(name.replace(" ", "\N{NO-BREAK SPACE}") for name in group.clients) for group in groups]
    cells = [
        [str(group.number), who, f"{group.confidence:.0%}", gains.get(group.number, MISSING)]
        for group, who in zip(groups, names, strict=True)
    ]
    return Table(["Group", "Clients", "Confidence", "Mean gain"], cells, texts=2)


def _tabulate_clients(diagnosis: Diagnosis) -> Table:
    pay = diagnosis.pay
    gains = {} if pay is None else {client.client: client for client in pay.clients}
    options = [] if pay is None else [option.name for option in pay.options]

    def row(member: Membership) -> list[str]:
        client = gains.get(member.client)
        sure = f"{member.confidence:.0%}" + ("" if member.tested else ", placed only")
        cells = [member.client, str(member.group), sure]
        if pay is None:
            return cells
        if client is None:
            return [*cells, *[MISSING] * (2 + len(options))]
        scores = [pay.say_score(client.scores[option]) for option in options]
        gain = pay.say_gain(client.gain) if isfinite(client.gain.value) else MISSING
        return [*cells, str(client.samples), *scores, gain]

    heads = ["Client", "Group", "Confidence"]
    heads += [] if pay is None else ["Samples", *(SHORT[option] for option in options), "Gain"]
    return Table(heads, [row(member) for member in diagnosis.memberships], texts=1)
