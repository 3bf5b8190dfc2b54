"""How near `coterie auto` and `coterie diagnose` come to the best answer, on federations made by rules.

    python -m benchmarks.answers [--write FILE] [--only TITLE,…] [--seed N] [--counts N] [--kept] [--smoke]

A federation is a table: clients with some samples of six inputs and an outcome, which follows a linear model of
the client. The rule says how these models differ. Half of everybody's samples are for tests. `auto` chooses by the
other half, and trains what it chose. Beside it stand, on the same samples:

- the oracle: linear models that know the true groups and see the whole training half. Of one model, one for each
  group, one for each client, and ridges to the common and to the group's model, each at several strengths, the best
  on the tests themselves. Nobody can choose that well.
- the statistician: the same without true groups, which an annealed EM looks for, chosen by validation samples.

Regret is how much worse the test score is than the oracle's: in points of accuracy, or per cent of RMSE, the mean
over clients. A row is kept as soon as its federation has ended, under a key of its rule and seed. `--kept` runs
nothing. `--counts` looks at the number of groups alone, on N federations of each rule with clear groups or one
population, beside that of an EM that chooses it by validation samples.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.document_sections import markdown
from benchmarks.smoke import Arguments, pick_two

Floats = NDArray[np.float64]
Row = Mapping[str, Any]

PAGE = Path(__file__).parents[1] / "docs" / "answers.md"
KEPT = PAGE.with_suffix(".jsonl")
MARKS = ("<!-- answers -->", "<!-- end of answers -->")
COUNTED = PAGE.with_name("answers-counts.jsonl")
COUNT_MARKS = ("<!-- counts -->", "<!-- end of counts -->")
SEED = 958220
INPUTS = 6
ROUNDS = 15
STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
TRIED = ("linear", "fedavg", "local-only", "halves", "partial-pooling", "pooled-groups", "em-groups")
"""Candidates of `auto`. A linear network has no body to share, and the others search for what these do."""
COUNTS = (2, 3, 5, 8)
MOST = 10
"""Groups that the EM of `--counts` tries, at most."""
NEAR = 1.0
"""Points of accuracy, or per cent of RMSE, up to which an answer is as good as the oracle's."""

SMOKE = {"only": None, "kept": False}


@dataclass(frozen=True)
class Case:
    """A rule for federations.

    Attributes:
        title: what the table calls it.
        right: answers of `diagnose` that are right, as `advice.diagnose.answer` names them.
        clients: how many.
        samples: of each client for training and validation; as many more are for tests.
        groups: how many, of sizes as equal as can be.
        angle: share of samples on which two groups disagree; None for models of groups drawn independently.
        spread: deviation of a client's coefficients from its group's.
        shift: deviation of a client's constant from its group's.
        mixed: share of a client's samples that are of another group.
        recoded: clients who code the outcome the other way round.
        constant: of everybody, which makes an outcome rare.
        unequal: whether clients hold between a third and three times as many samples.
        regression: whether the outcome is a number.
        nested: whether there are two groups of groups, which are nearer to each other.
        real: a table of scikit-learn's, divided by a column of its own.
    """

    title: str
    right: tuple[str, ...]
    clients: int = 20
    samples: int = 50
    groups: int = 1
    angle: float | None = None
    spread: float = 0.0
    shift: float = 0.0
    mixed: float = 0.0
    recoded: int = 0
    constant: float = 0.0
    unequal: bool = False
    regression: bool = False
    nested: bool = False
    real: str = ""

    def key(self, seed: int) -> str:
        """Return what says which row it is."""
        return f"{self!r}, seed {seed}"


CASES = (
    Case("one population", ("one",)),
    Case("one population, unequal", ("one",), unequal=True),
    Case("one population, numbers", ("one",), regression=True),
    Case("2 groups", ("groups",), groups=2),
    Case("3 groups", ("groups",), 24, groups=3),
    Case("5 groups", ("groups",), 40, groups=5),
    Case("8 groups", ("groups",), 48, groups=8),
    Case("2 groups, unequal", ("groups",), groups=2, unequal=True),
    Case("3 groups, numbers", ("groups",), 24, groups=3, regression=True),
    Case("2 groups, 10 % differ", ("groups", "one"), 30, groups=2, angle=0.10),
    Case("2 groups, 15 % differ", ("groups",), 30, groups=2, angle=0.15),
    Case("2 groups, 20 % differ", ("groups",), 30, groups=2, angle=0.20),
    Case("3 groups, mixed 80/20", ("groups",), 24, groups=3, mixed=0.2),
    Case("continuum", ("gradual",), 30, spread=0.5),
    Case("continuum, wide", ("gradual", "alone"), 30, spread=1.5),
    Case("continuum, numbers", ("gradual",), 30, 25, spread=0.3, regression=True),
    Case("own constants", ("constants",), 30, 25, shift=1.0),
    Case("own constants, numbers", ("constants",), 30, 25, shift=1.0, regression=True),
    Case("2 groups of 2", ("groups",), 32, groups=4, nested=True),
    Case("3 groups and a continuum", ("gradual groups", "groups"), 30, groups=3, spread=0.5),
    Case("5 groups of 400 with 10", ("groups",), 400, 10, groups=5),
    Case("3 recode the outcome", ("recoded", "groups"), recoded=3),
    Case("2 groups, rare outcome", ("groups",), 24, 100, groups=2, constant=-2.5),
    Case("everybody alone", ("alone",), 16, 150, spread=20.0),
    Case("diabetes by age", ("one", "gradual"), regression=True, real="diabetes"),
)


@dataclass(frozen=True, eq=False)
class Parts:
    """A client's samples: inputs `[s, d]` with a column of ones, and outcomes `[s]`."""

    train: tuple[Floats, Floats]
    validation: tuple[Floats, Floats]
    test: tuple[Floats, Floats]

    @property
    def learnt(self) -> tuple[Floats, Floats]:
        """Those for training and those for validation."""
        (x, y), (more, also) = self.train, self.validation
        return np.concatenate([x, more]), np.concatenate([y, also])


def make(case: Case, seed: int) -> tuple[list[tuple[Floats, Floats]], NDArray[np.int64]]:
    """Return each client's inputs and outcomes, and the true group of each."""
    if case.real:
        return divide_real()
    rng = np.random.default_rng([seed, *case.title.encode()])
    sloped = 2 * rng.normal(size=(max(2, case.groups), INPUTS))
    if case.nested:
        sloped[2:] = sloped[:2] + 0.4 * rng.normal(size=(2, INPUTS))
    if case.angle is not None:
        first = sloped[0] / np.linalg.norm(sloped[0])
        across = sloped[1] - first * (sloped[1] @ first)
        turn = np.pi * case.angle
        turned = np.cos(turn) * first + np.sin(turn) * across / np.linalg.norm(across)
        sloped = 5 * np.stack([first, turned])
    groups = rng.permutation(np.arange(case.clients) % case.groups)
    found = []
    for client, group in enumerate(groups):
        own = sloped[group] + case.spread * rng.normal(size=INPUTS)
        constant = case.constant + case.shift * (1 if case.regression else 2) * rng.normal()
        count = 2 * round(case.samples * (3 ** rng.uniform(-1, 1) if case.unequal else 1))
        x = rng.normal(size=(count, INPUTS))
        level = x @ own + constant
        if case.mixed:
            other = sloped[(group + 1) % case.groups]
            level = np.where(rng.random(count) < case.mixed, x @ other, level)
        y = level + rng.normal(size=count) if case.regression else level + rng.logistic(size=count) > 0
        found.append((x, (1.0 - y if client < case.recoded else y * 1.0)))
    truth = np.where(np.arange(case.clients) < case.recoded, 1, groups)
    return found, truth.astype(np.int64)


def divide_real() -> tuple[list[tuple[Floats, Floats]], NDArray[np.int64]]:
    """Return scikit-learn's diabetes by ten bands of age; an outcome counts in deviations."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    bands = np.array_split(np.argsort(x[:, 0], kind="stable"), 10)
    x, y = np.delete(x, 0, axis=1) * 20, (y - y.mean()) / y.std()
    rng = np.random.default_rng(0)
    return [(x[some], y[some]) for some in map(rng.permutation, bands)], np.zeros(10, np.int64)


def write_table(clients: Sequence[tuple[Floats, Floats]], path: Path, *, regression: bool) -> None:
    """Write a federation as `coterie` reads it."""
    width = clients[0][0].shape[1]
    lines = ["client," + ",".join(f"x{k}" for k in range(width)) + ",label"]
    for client, (x, y) in enumerate(clients):
        lines += [
            f"c{client:03d},{','.join(f'{v:.5f}' for v in row)},{f'{to:.5f}' if regression else int(to)}"
            for row, to in zip(x, y, strict=True)
        ]
    path.write_text("\n".join(lines) + "\n", "utf-8")


def read_parts(asked: Any) -> list[Parts]:
    """Return the samples of every client as the experiment divides them, those for validation apart."""
    from coterie.runs.schema.experiment import prepare
    from coterie.runs.setup import load_federation

    federation = load_federation(prepare(asked))

    def read(client: int, split: Any) -> tuple[Floats, Floats]:
        x, y = federation.slice(client, split)
        return np.c_[x.double().numpy(), np.ones(len(x))], y.double().numpy().ravel()

    return [Parts(read(i, "train"), read(i, "validation"), read(i, "test")) for i in range(federation.n)]


def fit(
    x: Floats,
    y: Floats,
    *,
    regression: bool,
    weights: Floats | None = None,
    to: Floats | None = None,
    strength: float = 0.01,
) -> Floats:
    """Return the linear or logistic model `[d]` with a ridge to another one, by Newton's method."""
    weights = np.ones(len(y)) if weights is None else weights
    to = np.zeros(x.shape[1]) if to is None else to
    model, ridge = to.copy(), strength * np.eye(x.shape[1])
    for _ in range(1 if regression else 12):
        level = x @ model
        shares = 1 / (1 + np.exp(-np.clip(level, -30, 30)))
        curve = weights if regression else weights * np.maximum(shares * (1 - shares), 1e-4)
        slope = x.T @ (weights * ((level if regression else shares) - y)) + strength * (model - to)
        step = np.linalg.solve(x.T @ (x * curve[:, None]) + ridge, slope)
        model = model - step * (1.0 if regression else min(1.0, 5 / (1e-9 + float(np.linalg.norm(step)))))
    return model


def losses(x: Floats, y: Floats, models: Floats, *, regression: bool) -> Floats:
    """Return minus the log-likelihood `[K]` of a client's outcomes by each of some models `[K, d]`."""
    level = x @ models.T
    if regression:
        return np.asarray(((level - y[:, None]) ** 2 / 2).sum(0))
    return np.asarray(np.logaddexp(0, np.where(y[:, None] > 0, -level, level)).sum(0))


def search_groups(
    parts: Sequence[tuple[Floats, Floats]], count: int, rng: np.random.Generator, *, regression: bool
) -> tuple[NDArray[np.int64], Floats]:
    """Return groups `[n]` and their models `[K, d]`: the best of three annealed runs of EM."""
    x, y = np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
    owner = np.repeat(np.arange(len(parts)), [len(y) for _, y in parts])
    best, least = None, np.inf
    for _ in range(3):
        likely = rng.dirichlet(np.ones(count), len(parts))
        for heat in (*np.geomspace(16, 1, 8), 1, 1, 1, 1):
            models = np.stack(
                [fit(x, y, weights=likely[owner, k] + 1e-6, regression=regression) for k in range(count)]
            )
            lost = np.stack([losses(*part, models, regression=regression) for part in parts])
            logits = np.log(likely.mean(0) + 1e-9) - lost / heat
            likely = np.exp(logits - logits.max(1, keepdims=True))
            likely /= likely.sum(1, keepdims=True)
        if (total := float(lost.min(1).sum())) < least:
            least, best = total, (likely.argmax(1), models)
    assert best is not None
    return best


Fitted = Mapping[str, list[Floats]]


def fit_all(
    parts: Sequence[tuple[Floats, Floats]], groupings: Mapping[str, NDArray[np.int64]], *, regression: bool
) -> Fitted:
    """Return every client's model by each way: one, alone, groups, and ridges to these."""
    x, y = np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
    owner = np.repeat(np.arange(len(parts)), [len(y) for _, y in parts])
    one = fit(x, y, regression=regression)
    starts = {"one": [one] * len(parts)}
    for name, groups in groupings.items():
        of = {k: fit(x[groups[owner] == k], y[groups[owner] == k], regression=regression) for k in set(groups)}
        starts[name] = [of[k] for k in groups]
    found = dict(starts)
    for (name, to), strength in ((item, s) for item in starts.items() for s in STRENGTHS):
        found[f"ridge to {name}, {strength:g}"] = [
            fit(*part, to=centre, strength=strength, regression=regression)
            for part, centre in zip(parts, to, strict=True)
        ]
    return found | {"alone": [fit(*part, regression=regression, strength=0.3) for part in parts]}


def score(parts: Sequence[tuple[Floats, Floats]], models: Sequence[Floats], *, regression: bool) -> float:
    """Return the mean over clients of RMSE, or of accuracy in points; clients without samples do not count."""
    values = [
        np.sqrt(np.mean((x @ w - y) ** 2)) if regression else 100 * np.mean((x @ w > 0) == (y > 0.5))
        for (x, y), w in zip(parts, models, strict=True)
        if len(y)
    ]
    return float(np.mean(values))


def simple_models(parts: Sequence[Parts], truth: NDArray[np.int64], seed: int, *, regression: bool) -> Row:
    """Return what the oracle and the statistician chose, with their scores on the test samples."""
    sign, rng = (-1 if regression else 1), np.random.default_rng(seed)
    train, checked = [p.train for p in parts], [p.validation for p in parts]
    learnt, test = [p.learnt for p in parts], [p.test for p in parts]

    def scores(fitted: Fitted, on: Sequence[tuple[Floats, Floats]]) -> dict[str, float]:
        return {name: score(on, models, regression=regression) for name, models in fitted.items()}

    best = scores(fit_all(learnt, {"true groups": truth}, regression=regression), test)
    oracle = max(best, key=lambda name: sign * best[name])
    groupings = {f"{k} groups": search_groups(train, k, rng, regression=regression)[0] for k in COUNTS}
    tried = scores(fit_all(train, groupings, regression=regression), checked)
    chosen = max(tried, key=lambda name: sign * tried[name])
    again = {
        f"{k} groups": search_groups(learnt, k, rng, regression=regression)[0]
        for k in COUNTS
        if chosen.find(f"{k} groups") >= 0
    }
    final = scores(fit_all(learnt, again, regression=regression), test)[chosen]
    return {"oracle": oracle, "oracle_score": best[oracle], "simple": chosen, "simple_score": final}


def ask(case: Case, path: Path, seed: int, folder: Path, rounds: int = ROUNDS) -> Any:
    """Return the experiment that `auto` and `diagnose` are given."""
    from coterie.runs.schema.experiment import Experiment

    return Experiment(
        data={"name": str(path), "test": 0.5},
        task="regression" if case.regression else "classification",
        network="linear",
        method="fedavg",
        training={"batch_size": 10},
        evaluation={"every": rounds},
        run={"rounds": rounds, "seed": seed, "workers": 1, "folder": str(folder / "runs")},
    )


def answer_of(found: Any) -> str:
    """Return the kind of answer that a diagnosis gave; `recoded` where it has clients check their codes instead."""
    kind: str = found.suits.kind
    if kind in ("one", "unknown") and found.kinds is not None and found.kinds.recoded:
        return "recoded"
    return {"unknown": "open", "gradual-groups": "gradual groups"}.get(kind, kind)


def play(case: Case, seed: int, rounds: int = ROUNDS, tried: Sequence[str] = TRIED) -> Row:
    """Make a federation, ask everybody, and return the row."""
    import coterie
    from coterie.advice.diagnose.diagnose import diagnose
    from coterie.runtime.threads import one_thread

    clients, truth = make(case, seed)
    with tempfile.TemporaryDirectory() as place, one_thread(blas=True):
        folder = Path(place)
        write_table(clients, folder / "clients.csv", regression=case.regression)
        asked = ask(case, folder / "clients.csv", seed, folder, rounds)
        parts = read_parts(asked.updated({"data.validation": 0.2}))
        simple = simple_models(parts, truth, seed, regression=case.regression)
        start = time.perf_counter()
        choice = coterie.auto(asked, only=tried, folder=folder / "search", jobs=1)
        took = time.perf_counter() - start
        summary = coterie.run(choice.experiment).summary
        name = "adapted_" * choice.chosen.candidate.is_adapted + (
            "macro_rmse" if case.regression else "macro_accuracy"
        )
        value = float(summary[name]) * (1 if case.regression else 100)
        start = time.perf_counter()
        found = diagnose(asked)
    best = simple["oracle_score"]
    scale = 100 / best if case.regression else -1
    return {
        "title": case.title,
        "key": case.key(seed),
        "seed": seed,
        **simple,
        "auto": choice.chosen.candidate.label,
        "auto_score": value,
        "candidates": {one.candidate.label: one.value for one in choice.scored},
        "regret": scale * (value - best),
        "simple_regret": scale * (simple["simple_score"] - best),
        "said": answer_of(found),
        "said_groups": 0 if found.all_differ else len(found.groups),
        "p": found.structure.p,
        "auto_seconds": round(took, 1),
        "diagnose_seconds": round(time.perf_counter() - start, 1),
    }


def count_groups(case: Case, seed: int) -> Row:
    """Return how many groups `diagnose` says, and how many an EM finds that chooses by validation samples."""
    from coterie.advice.diagnose.diagnose import diagnose

    clients, truth = make(case, seed)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "clients.csv"
        write_table(clients, path, regression=case.regression)
        asked = ask(case, path, seed, path.parent)
        parts = read_parts(asked.updated({"data.validation": 0.2}))
        found = diagnose(asked, gains=False)
    rng, lost = np.random.default_rng(seed), dict[float, int]()
    for count in range(1, MOST + 1):
        groups, models = search_groups([p.train for p in parts], count, rng, regression=case.regression)
        checked = [losses(*p.validation, models, regression=case.regression) for p in parts]
        lost[float(sum(of[k] for of, k in zip(checked, groups, strict=True)))] = len(np.unique(groups))
    said = len(found.groups) if found.has_structure else 1
    return {"title": case.title, "seed": seed, "true": len(np.unique(truth)), "said": said, "em": lost[min(lost)]}


def tabulate_counts(rows: Sequence[Row]) -> Iterator[str]:
    """Yield how often the number of groups is right, over all and by rule."""
    several = [row for row in rows if row["true"] > 1]
    able = [row for row in several if row["em"] == row["true"]]
    right = sum(row["said"] == row["true"] for row in able)
    yield (
        f"Of {len(several)} federations with groups the EM finds the true number in {len(able)}. In {right} of "
        f"these ({right / max(1, len(able)):.0%}), and in {sum(row['said'] == row['true'] for row in several)} of "
        "all, `diagnose` says it, too."
    )
    lines = []
    for title in dict.fromkeys(row["title"] for row in rows):
        own = [row for row in rows if row["title"] == title]
        told = [sum(row[who] == row["true"] for row in own) for who in ("said", "em")]
        lines.append([title, str(own[0]["true"]), *(f"{count} of {len(own)}" for count in told)])
    yield markdown(("federations", "groups", "`diagnose` right", "EM right"), lines)


def read_rows(path: Path, seed: int) -> dict[str, Row]:
    """Return the kept rows of the rules as they are and of a seed, by title."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
    keys = {case.key(seed) for case in CASES}
    return {row["title"]: row for row in rows if row["key"] in keys}


def tabulate(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yield the part of the page that is made of rows: a summary, a table, and a picture of the regrets."""
    there = [(case, rows[case.title]) for case in CASES if case.title in rows]
    near = sum(row["regret"] <= NEAR for _, row in there)
    simple = sum(row["simple_regret"] <= NEAR for _, row in there)
    right = sum(row["said"] in case.right for case, row in there)
    yield (
        f"Of {len(there)} federations `auto` is within {NEAR:g} point of accuracy, or {NEAR:g} % of RMSE, of the "
        f"oracle in {near}, and the statistician in {simple}. The kind of answer of `diagnose` is right in {right}."
    )
    if left := [case.title for case in CASES if case.title not in rows]:
        yield f"Not run yet: {'; '.join(left)}."
    head = ("federation", "oracle", "score", "auto", "regret", "statistician", "regret", "diagnose", "p", "seconds")
    lines = []
    for case, row in there:
        said = row["said"] if row["said"] in case.right else f"**{row['said']}**"
        lines.append(
            [
                case.title,
                row["oracle"],
                f"{row['oracle_score']:.3f}" if case.regression else f"{row['oracle_score']:.1f}",
                row["auto"],
                _emphasise(row["regret"]),
                row["simple"],
                _emphasise(row["simple_regret"]),
                said,
                f"{row['p']:.3f}",
                f"{row['auto_seconds']:.0f} + {row['diagnose_seconds']:.0f}",
            ]
        )
    yield markdown(head, lines)
    width = max((len(case.title) for case, _ in there), default=0)
    drawn = [f"{case.title:<{width}} {_bar(row['regret']):<20} {row['regret']:5.1f}" for case, row in there]
    yield "\n".join(["```text", *drawn, "```"])


def _emphasise(regret: float) -> str:
    return f"{regret:.1f}" if regret <= NEAR else f"**{regret:.1f}**"


def _bar(regret: float) -> str:
    """Return a bar of a sign for each point; a longer one than 20 is cut."""
    return "█" * min(20, max(0, round(regret)))


def page(text: str, rows: Mapping[str, Row], counts: Sequence[Row] = ()) -> str:
    """Return a page with what is between its marks made anew."""
    for marks, parts in ((MARKS, tabulate(rows)), (COUNT_MARKS, tabulate_counts(counts))):
        before, after = text.split(marks[0])[0], text.split(marks[1])[1]
        text = "\n\n".join([before + marks[0], *parts, marks[1]]) + after
    return text


def read_counts(path: Path) -> list[Row]:
    """Return the kept rows of `--counts`."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []


def keep(row: Row, path: Path) -> None:
    """Add a row to those that are kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def count_all(cases: Sequence[Case], seeds: Sequence[int], counts: list[Row], path: Path | None) -> None:
    """Count the groups of federations that are not among the kept ones, and keep them where there is a file."""
    there = {(row["title"], row["seed"]) for row in counts}
    for case in cases:
        # Nested groups are of two sizes, and those of tiny clients of none that can be told.
        if case.nested or case.samples < 50 or (case.groups < 2 and case.right != ("one",)):
            continue
        for seed in seeds:
            if (case.title, seed) not in there:
                counts.append(count_groups(case, seed))
                if path is not None:
                    keep(counts[-1], path)
                print("{title}, seed {seed}: {said} groups, EM {em}, true {true}".format(**counts[-1]), flush=True)


def main() -> None:
    """Run what is missing, and write the page."""
    parser = Arguments("answers", __doc__, SMOKE)
    parser.add_argument("--rows", type=Path, default=KEPT, metavar="FILE", help="where rows are kept")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to be written")
    parser.add_argument("--only", metavar="TITLE,…", help="federations whose titles begin so; all without it")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the federations; default {SEED}")
    parser.add_argument("--kept", action="store_true", help="run nothing; the page is of what is kept")
    parser.add_argument("--counts", type=int, default=0, metavar="N", help="federations of each rule to be counted")
    given = parser.read()
    begins = tuple(given.only.split(",")) if given.only else ("",)
    wanted = [case for case in CASES if case.title.startswith(begins)]
    if not wanted:
        parser.error(f"--only: no federation begins so; there are {', '.join(case.title for case in CASES)}")
    if given.smoke:
        wanted = pick_two(wanted)[:1]
    path = None if given.smoke else given.rows
    counts = read_counts(COUNTED)
    if given.counts:
        seeds = range(given.seed + 1, given.seed + 2 + (0 if given.smoke else given.counts - 1))
        some = [case for case in CASES if case.title == "2 groups"] if given.smoke else wanted
        count_all(some, seeds, counts, None if given.smoke else COUNTED)
        given.kept = True
    rows = {} if path is None else read_rows(path, given.seed)
    try:
        for case in () if given.kept else wanted:
            if case.title in rows:
                continue
            little: dict[str, Any] = {"rounds": 2, "tried": ["fedavg"]} if given.smoke else {}
            row = rows[case.title] = play(case, given.seed, **little)
            if path is not None:
                keep(row, path)
            print(
                f"{case.title}: {row['auto']} {row['regret']:.2f} ({row['candidates']}), {row['simple']} "
                f"{row['simple_regret']:.2f}, "
                f"oracle {row['oracle']} {row['oracle_score']:.3f}, diagnose {row['said']} "
                f"{row['said_groups']}, {row['auto_seconds']} + {row['diagnose_seconds']} s",
                flush=True,
            )
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on with the next federation")
    if given.write:
        text = (given.write if given.write.exists() else PAGE).read_text("utf-8")
        given.write.write_text(page(text, rows, counts), encoding="utf-8")
        print(given.write)


if __name__ == "__main__":
    main()
