import re

import numpy as np
import polars as pl
import pytest
from scipy.cluster.hierarchy import dendrogram as scipy_dendrogram
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage

from coterie.report.charts.dendrogram import MOST_TIPS
from coterie.report.drawing.colours import NO_GROUP, of_groups
from coterie.report.drawing.saving import specification
from coterie.runs.folder.reading import read_runs
from coterie.runs.folder.run_folder import RunFolder

from . import stories
from .drawing import drawn, logging, story, the

ROUNDS = CLIENTS = 12


def test_hopkins_shows_threshold_and_firings(mixed: RunFolder) -> None:
    values = [0.5, 0.7, 0.6, 0.8]
    rows = [(r, "hopkins", "", v) for r, v in enumerate(values, 1)]
    rows += [(r, "fired", "", float(v > 0.65)) for r, v in enumerate(values, 1)]
    figure = the(logging(mixed, *rows, (1, "hopkins threshold", "", 0.65)), "hopkins")
    line, dots = drawn(figure)
    assert [r["value"] for r in line if r["of"] == "Hopkins statistic"] == values
    assert [(r["round"], r["value"]) for r in line if r["of"] == "threshold"] == [(r, 0.65) for r in (1, 2, 3, 4)]
    assert [(r["round"], r["value"]) for r in dots] == [(2, 0.7), (4, 0.8)]
    assert "between 0.50 and 0.80 and the server regrouped in 2 of 4 rounds, first in round 2." in figure.caption
    assert "regrouped in" not in the(logging(mixed, *rows[:4]), "hopkins").caption


def test_divergence_has_bands_of_its_quantiles(mixed: RunFolder) -> None:
    quantiles = {"min": 0.01, "q1": 0.1, "median": 0.2, "q3": 0.3, "max": 0.5}
    rows = [(r, "js", of, v * r) for r in (1, 2) for of, v in quantiles.items()]
    figure = the(logging(mixed, *rows, (1, "eps1", "", 0.15), (2, "eps1", "", 0.25)), "js")
    outer, inner, line = drawn(figure)
    assert [(r["low"], r["high"]) for r in outer] == [(0.01, 0.5), (0.02, 1.0)]
    assert [(r["low"], r["high"]) for r in inner] == [(0.1, 0.3), (0.2, 0.6)]
    assert [r["value"] for r in line if r["of"] == "threshold"] == [0.15, 0.25]
    assert "in round 2, the smallest is 0.02, the median is 0.4, the largest is 1; the threshold is 0.25." in (
        figure.caption
    )


def test_the_objective_descends_and_a_rise_is_said(mixed: RunFolder) -> None:
    steps = [(1, "after M", 3.0), (2, "before E", 4.0), (2, "after E", 2.0), (2, "after M", 1.5)]
    figure = the(logging(mixed, *[(r, "objective", of, v) for r, of, v in steps]), "objective")
    assert [(r["at"], r["value"]) for r in drawn(figure)[0]] == [(1.6667, 3), (2, 4), (2.3333, 2), (2.6667, 1.5)]
    assert "goes from 3 in round 1 to 1.5 in round 2, and no step of any round raised it." in figure.caption
    worse = [(r, "objective", of, 2.25 if of == "after M" and r == 2 else v) for r, of, v in steps]
    assert "and a step raised it 1 time, by 0.25 at most." in the(logging(mixed, *worse), "objective").caption
    last_digits = [(r, "objective", of, 2.000001 if of == "after M" and r == 2 else v) for r, of, v in steps]
    assert "no step of any round raised it" in the(logging(mixed, *last_digits), "objective").caption


@pytest.mark.slow
def test_the_pull_parts_few_shot_clients_from_the_others(mixed: RunFolder) -> None:
    run = read_runs([mixed])[0]
    few, others, line = drawn(the(run, "lambda"))
    table = mixed.log().filter(pl.col("name") == "lambda").with_columns(pl.col("of").cast(int))
    for number in (1, ROUNDS):
        there = table.filter(pl.col("round") == number)
        for band, sort, third in ((few, "few-shot clients", True), (others, "other clients", False)):
            values = there.filter((pl.col("of") % 3 == 0) == third)["value"].to_numpy()
            low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
            (found,) = [r for r in band if r["round"] == number]
            assert (found["low"], found["high"]) == pytest.approx((low, high), rel=1e-4)
            (median,) = [r["value"] for r in line if (r["round"], r["of"]) == (number, sort)]
            assert median == pytest.approx(middle, rel=1e-4)
    run.__dict__["people"] = run.people.with_columns(few_shot=False)
    alone = the(run, "lambda")
    assert len(drawn(alone)) == 2
    assert re.search(r"is [\d.]+ for 12 clients\.", alone.caption)


def test_identities_are_frozen_once(mixed: RunFolder) -> None:
    rows = [(r, "identity changes", "", max(3.0 - r, 0)) for r in (1, 2, 3, 4)]
    frozen = [(r, "frozen", "", float(r >= 3)) for r in (1, 2, 3, 4)]
    figure = the(logging(mixed, *rows, *frozen), "identity-changes")
    assert [r["round"] for r in drawn(figure)[0]] == [3]
    assert "there were 3 changes, the last in round 2; the groups were frozen in round 3." in figure.caption
    assert "the groups were not frozen." in the(logging(mixed, *rows), "identity-changes").caption


@pytest.mark.slow
def test_gaps_name_the_layer_in_use(mixed: RunFolder) -> None:
    figure = the(read_runs([mixed])[0], "gap1")
    zero, line, bold = drawn(figure)
    assert zero == [{"value": 0}]
    assert {r["of"] for r in line} == set(stories.LAYERS)
    assert {r["of"] for r in bold} == {"conv1"}
    assert "the method uses conv1, drawn bold." in figure.caption
    many = [(r, "gap2", f"layer {i}", i / 10) for r in (1, 2) for i in range(20)]
    figure = the(logging(mixed, *many, (2, "chosen", "layer 0", 1.0)), "gap2")
    _, pale, line, bold = drawn(figure)
    best = {f"layer {i}" for i in (0, *range(9, 20))}
    assert {r["of"] for r in line} == best
    assert {r["of"] for r in pale} == {f"layer {i}" for i in range(20)} - best
    assert {r["of"] for r in bold} == {"layer 0"}
    assert "Of 20 layers, 12 are coloured and the others grey." in figure.caption


def self_gaps(chosen: str) -> list[tuple[int, str, str, float]]:
    gaps = {"conv1": 0.1, "fc1": -0.2, "fc2": -0.3, "fc3": 0.5, "all": -0.4}
    rows = [(r, "silhouette", of, gap) for r in (1, 2, 3) for of, gap in gaps.items()]
    return [
        *rows,
        *[(r, "gap1", of, gap) for r in range(1, 9) for of, gap in gaps.items()],
        (4, "chosen", chosen, 1.0),
    ]


@pytest.mark.medium
def test_falling_back_on_all_layers_is_no_praise_of_them(mixed: RunFolder) -> None:
    run = logging(mixed, *self_gaps("all"))
    every = "0.1 for conv1, -0.2 for fc1, -0.3 for fc2, 0.5 for fc3 and -0.4 for all"
    for name in ("silhouette", "gap1"):
        caption = the(run, name).caption
        assert f"Here it ends at {every}. In round 4 the method fell back on all layers together" in caption
        assert "no layer scored above 0.25" in caption
        assert "not as the best line" in caption
    assert the(run, "silhouette").caption.endswith("The lines end where the choice was made, in round 4.")
    assert the(run, "gap1").caption.endswith("not as the best line.")
    # With many clients only the layer in use is compared after the choice.
    big = logging(mixed, *self_gaps("all"))
    big.__dict__["log"] = big.log.filter((pl.col("round") < 4) | (pl.col("of") == "all"))
    assert the(big, "gap1").caption.endswith("The other lines end where the choice was made, in round 4.")
    meant = logging(mixed, *[row for row in self_gaps("all") if row[1] != "silhouette"])
    assert the(meant, "gap1").caption.endswith("-0.4 for all; the method uses all, drawn bold.")
    chosen = the(logging(mixed, *self_gaps("fc3")), "silhouette").caption
    assert "the method uses fc3, drawn bold. The lines end where the choice was made, in round 4." in chosen


@pytest.mark.parametrize(
    ("of", "words"),
    [("signal", "in the signal by which"), ("predictions", "predict"), ("relation", "the relation")],
)
def test_gaps_of_a_method_with_one_signal_name_no_layers(mixed: RunFolder, of: str, words: str) -> None:
    for name in ("gap1", "gap2"):
        caption = the(logging(mixed, *[(r, name, of, 0.1 * r) for r in (1, 2)]), name).caption
        assert words in caption
        assert "layer" not in caption
        assert caption.endswith("Here it ends at 0.2.")


def test_the_spread_of_each_cluster(mixed: RunFolder) -> None:
    rows = [(r, "tau2", str(k), (k + 1) * 1e-7 / r) for r in (1, 2) for k in range(3)]
    figure = the(logging(mixed, *rows), "tau2")
    assert figure.title == "How far personal models are from their cluster's"
    (line,) = drawn(figure)
    assert {d["of"] for d in line} == {"cluster 0", "cluster 1", "cluster 2"}
    assert figure.caption.endswith("at 5e-08 for cluster 0, 1e-07 for cluster 1 and 1.5e-07 for cluster 2.")
    many = the(logging(mixed, *[(r, "tau2", str(k), 1.0 + k) for r in (1, 2) for k in range(15)]), "tau2")
    assert "the line is the median of 15 clusters, which ends at 8, and the band their range." in many.caption


@pytest.mark.medium
def test_the_tree_has_the_colours_of_the_groups_where_sizes_tell_which(mixed: RunFolder) -> None:
    run = read_runs([mixed])[0]
    leaves = [(1, "leaf", "0", -1.0), (4, "leaf", "1", 0.0), (4, "leaf", "2", 0.0)]
    sizes = [(1, "leaf size", "0", 12.0), (12, "leaf size", "1", 5.0), (12, "leaf size", "2", 7.0)]
    norms = [(r, "update norm", leaf, 1.0) for r, leaf in ((1, "0"), (12, "1"), (12, "2"))]
    groups = run.clients.with_columns(group=pl.lit(0, pl.Int32))

    def with_second(size: int, *rows: tuple[int, str, str, float]) -> tuple[dict[str, str], str]:
        run = logging(mixed, *rows)
        second = (pl.col("client") >= 12 - size).cast(pl.Int32)
        run.__dict__["clients"] = groups.with_columns(group=second)
        found = []
        for name, layer in (("tree", 1), ("update-norm", 0)):
            spec = specification(the(run, name).chart)["layer"][layer]  # type: ignore[arg-type]
            scale = spec["encoding"]["color"]["scale"]
            found.append(dict(zip(scale["domain"], scale["range"], strict=True)))
        assert found[0] == found[1]
        return found[0], the(run, "tree").caption

    blue, orange = of_groups([0, 1])
    looks, caption = with_second(5, *leaves, *sizes, *norms)
    assert looks == {"leaf 0, split": NO_GROUP, "group 1": orange, "group 0": blue}
    assert "have the numbers and colours of their groups. Bars that were split are grey." in caption
    by_number = {"0": of_groups([0])[0], "1": of_groups([1])[0], "2": of_groups([2])[0]}
    # Sizes that differ from the groups', two leaves of one size, a number that was used twice: nobody can tell.
    assert with_second(4, *leaves, *sizes, *norms)[0] == by_number
    even = [(12, "leaf size", "1", 6.0), (12, "leaf size", "2", 6.0)]
    assert with_second(6, *leaves, sizes[0], *even, *norms)[0] == by_number
    again = [(12, "leaf", "1", 2.0)]
    assert with_second(5, *leaves, *sizes, *norms, *again)[0] == by_number


def test_the_tree_is_drawn_by_hand(mixed: RunFolder) -> None:
    leaves = [(1, "leaf", "0", -1.0), (4, "leaf", "1", 0.0), (4, "leaf", "2", 0.0), (9, "leaf", "3", 2.0)]
    leaves += [(9, "leaf", 'it\'s "4"', 2.0)]
    sizes = [(r, "leaf size", "0", 12.0) for r in (1, 2, 3)] + [(4, "leaf size", "1", 8.0)]
    sizes += [(4, "leaf size", "2", 4.0), (9, "leaf size", "3", 3.0), (9, "leaf size", 'it\'s "4"', 1.0)]
    figure = the(logging(mixed, *leaves, *sizes), "tree")
    joints, bars = drawn(figure)
    found = {b["leaf"]: (b["left"], b["right"], b["clients"], (b["top"] + b["bottom"]) / 2) for b in bars}
    assert found == {
        "0": (0.5, 3.5, 12, 7.25),
        "1": (3.5, 12.5, 8, 4),
        "2": (3.5, 8.5, 4, 10.5),
        "3": (8.5, 12.5, 3, 9.5),
        'it\'s "4"': (8.5, 12.5, 1, 11.5),
    }
    assert [(j["left"], j["top"], j["bottom"]) for j in joints] == [(3.5, 4, 10.5), (8.5, 9.5, 11.5)]
    assert "Here 12 clients end in 3 leaves, after 2 splits in rounds 4 and 9." in figure.caption
    assert "end in one leaf; there was no split." in the(logging(mixed, *leaves[:1], *sizes), "tree").caption


def test_a_number_that_is_used_again_is_a_new_leaf(mixed: RunFolder) -> None:
    leaves = [(1, "leaf", "0", -1.0), (5, "leaf", "0", 0.0), (5, "leaf", "1", 0.0)]
    bars = drawn(the(logging(mixed, *leaves), "tree"))[1]
    assert [(b["leaf"], b["left"], b["right"]) for b in bars] == [
        ("0", 0.5, 4.5),
        ("0", 4.5, 12.5),
        ("1", 4.5, 12.5),
    ]


def test_norms_below_their_threshold_are_counted(mixed: RunFolder) -> None:
    norms = [(1, 1.0), (2, 0.5), (3, 0.05), (4, 0.0)]
    rows = [(r, "update norm", "0", v) for r, v in norms] + [(r, "split threshold", "0", 0.1) for r, _ in norms]
    figure = the(logging(mixed, *rows), "update-norm")
    assert [r["value"] for r in drawn(figure)[0] if r["kind"] == "norm"] == [1, 0.5, 0.05]
    assert "a norm was below its threshold in 2 rounds, first in round 3." in figure.caption
    assert (
        "ends at 0.5, never below its threshold."
        in the(logging(mixed, *rows[:2], *rows[4:]), "update-norm").caption
    )
    assert the(logging(mixed, (1, "update norm", "0", 0.0)), "update-norm").chart is None


def merges(z: np.ndarray, number: int = 5) -> list[tuple[int, str, str, float]]:
    names = ("merge left", "merge right", "merge height")
    return [(number, name, str(i), float(row[k])) for i, row in enumerate(z) for k, name in enumerate(names)]


def test_the_dendrogram_is_scipys(mixed: RunFolder) -> None:
    models = np.random.default_rng(3).normal(size=(CLIENTS, 4)) + 9 * (np.arange(CLIENTS) % 4)[:, None]
    z = linkage(models, "average")
    tips = [(5, "dendrogram client", str(leaf), float(CLIENTS - 1 - leaf)) for leaf in range(CLIENTS)]
    figure = the(logging(mixed, *merges(z), *tips, (5, "cut", "", 1.0), (9, "cut", "", 0.4)), "dendrogram")
    segments, spots, rule = drawn(figure)
    known = scipy_dendrogram(z, no_plot=True)
    assert [s["clients"] for s in spots] == [str(CLIENTS - 1 - leaf) for leaf in leaves_list(z)]
    across = sorted((s["x"], s["x2"], s["value"]) for s in segments if s["value"] == s["value2"])
    wanted = sorted((x[0] / 10, x[3] / 10, y[1]) for x, y in zip(known["icoord"], known["dcoord"], strict=True))
    assert across == [pytest.approx(w, rel=1e-4) for w in wanted]
    assert {s["group"] for s in spots} == {0, 1, 2, 3}
    assert (
        max(s["value2"] for s in segments if s["group"] >= 0)
        < 9
        < min(s["value2"] for s in segments if s["group"] < 0)
    )
    assert rule == [{"value": pytest.approx(0.4 * z[-1, 2], rel=1e-4), "of": "last cut"}]
    groups = len(set(fcluster(z, 0.4 * z[-1, 2], "distance")))
    assert groups > 1
    assert f"divides 12 clients of 4 planted groups into {groups} groups." in figure.caption


def test_a_dendrogram_without_planted_groups_takes_the_final_ones(mixed: RunFolder) -> None:
    run = logging(mixed, *merges(linkage(np.arange(CLIENTS)[:, None] ** 1.5, "average")))
    run.__dict__["people"] = run.people.with_columns(planted=None)
    figure = the(run, "dendrogram")
    assert "Colours are the final groups" in figure.caption
    group = dict(run.last.select("client", "group").iter_rows())
    assert all(s["group"] == group[int(s["clients"])] for s in drawn(figure)[1])


def test_an_incomplete_dendrogram_is_said(mixed: RunFolder) -> None:
    z = linkage(np.arange(CLIENTS)[:, None] ** 1.5, "average")
    circular = z.copy()
    circular[2, 0] = CLIENTS + 7
    for rows in (merges(z)[3:], merges(z)[:-1], [*merges(z), (5, "merge left", "x", 1.0)], merges(circular)):
        figure = the(logging(mixed, *rows), "dendrogram")
        assert figure.chart is None
        assert "incomplete" in figure.caption


def test_only_the_highest_merges_of_many_clients_are_drawn(mixed: RunFolder) -> None:
    n = 2000
    z = linkage(np.cumsum(np.arange(n, dtype=float))[:, None], "single")  # as deep as it has clients
    figure = the(logging(mixed, *merges(z)), "dendrogram")
    segments, spots = drawn(figure)
    assert len(spots) == MOST_TIPS
    assert len(segments) == 3 * (MOST_TIPS - 1)
    assert sum(int(s["clients"].split()[0]) for s in spots if "clients" in s["clients"]) == n - MOST_TIPS + 1
    assert "so 120 tips stand for all clients." in figure.caption


def test_shared_tensors_say_from_where_to_where(mixed: RunFolder) -> None:
    rows = [(1, "shared tensors", "", 8.0), (2, "shared tensors", "", 8.0), (3, "shared tensors", "", 7.0)]
    figure = the(logging(mixed, *rows), "shared-tensors")
    assert figure.caption.endswith(
        "the number goes from 8 in round 1 to 7 in round 3; round 3 was the first with fewer."
    )
    assert specification(figure.chart)["layer"][0]["encoding"]["y"]["axis"]["values"] == list(range(9))  # type: ignore[arg-type]
    run = logging(mixed, *rows[:2], *[(r, "shared layers", "", 4.0) for r in (1, 2)])
    (figure,) = story(run)
    assert figure.caption.endswith("Here the number is 8, to round 2; none was given up.")


def test_trials_say_what_was_taken(mixed: RunFolder) -> None:
    rows = [(r, "trial", of, v) for r, of, v in ((4, "now", 0.9), (4, "finer", 0.8), (9, "now", 0.5))]
    rows += [(9, "trial", "finer", 0.6), (11, "trial", "now", 0.4), (11, "trial", "finer", 0.3)]
    figure = the(logging(mixed, *rows, (4, "accepted", "", 1.0), (9, "accepted", "", 0.0)), "trial")
    spans, dots = drawn(figure)
    assert [(s["round"], s["low"], s["high"]) for s in spans] == [(4, 0.8, 0.9), (9, 0.5, 0.6), (11, 0.3, 0.4)]
    verdicts = {r["round"]: r["verdict"] for r in dots}
    assert verdicts == {4: "finer taken", 9: "finer refused", 11: "not decided"}
    assert "after this round of training both. Here 3 trials, 1 of them accepted, in round 4." in figure.caption
    watched = logging(mixed, *rows, (1, "loss", "", 2.0))
    assert "The loss that the method watches is of models as received." in the(watched, "trial").caption
    assert "The losses of a trial are those after a round of training" in the(watched, "loss").caption


@pytest.mark.medium
def test_the_rapid_decrease_and_the_cut(mixed: RunFolder) -> None:
    radius = [(r, "radius", "", v) for r, v in ((4, 500.0), (6, 400.0), (7, 2.0), (8, 90.0))]
    loss = [(r, "loss", "", 2.0 / r) for r in range(1, 9)]
    run = logging(mixed, *radius, *loss, (8, "rdp end", "", 1.0), (8, "cut", "", 1.0), (9, "cut", "", 0.8))
    ends, line = drawn(the(run, "radius"))
    assert [r["round"] for r in ends] == [8]
    assert [(r["round"], r["stretch"]) for r in line] == [(4, 0), (6, 1), (7, 1), (8, 1)]
    assert "the smallest radius is 2 in round 7; the rapid decrease was found to have ended in round 8." in (
        the(run, "radius").caption
    )
    assert "goes from 2 in round 1 to 0.25 in round 8; the rapid" in the(run, "loss").caption
    assert "of the models as they receive them, before they train" in the(run, "loss").caption
    assert "at the first round whose radius stays below that of each of the next t_obv rounds" in (
        the(run, "radius").caption
    )
    assert "starts at 1 and is moved to 0.8 in round 9." in the(run, "cut").caption
    assert the(logging(mixed, *loss), "loss").caption.endswith(
        "clients. Here it goes from 2 in round 1 to 0.25 in round 8."
    )


def test_periods_join_equal_rounds(mixed: RunFolder) -> None:
    rows = [(r, "period", layer, 3.0 if r > 2 and layer == "b" else 1.0) for r in (1, 2, 3, 4) for layer in "ba"]
    figure = the(logging(mixed, *rows), "period")
    bars = [(b["of"], b["value"], b["start"], b["until"]) for b in drawn(figure)[0]]
    assert sorted(bars) == [("a", 1, 1, 4), ("b", 1, 1, 2), ("b", 3, 3, 4)]
    assert specification(figure.chart)["encoding"]["y"]["sort"] == ["b", "a"]  # type: ignore[arg-type]
    assert "the rounds between are 3 for b." in figure.caption


@pytest.mark.medium
def test_leaves_have_the_colours_of_their_numbers(mixed: RunFolder) -> None:
    spec = specification(the(read_runs([mixed])[0], "tree").chart)  # type: ignore[arg-type]
    assert spec["layer"][1]["encoding"]["color"]["scale"] == {
        "domain": ["0", "1", "2", "3", "4"],
        "range": of_groups(range(5)),
    }
    assert spec["layer"][0]["mark"]["color"] == NO_GROUP
