"""Mixed: a method put together from the parts of others (the settings and names of the parts: `mixed_parts.py`).

Every round:
    1. Clients train from what their group averaged last.
    2. What is observed of them, the signal, joins what was observed before; a client seen late joins a group.
    3. The trigger says whether to look for groups; the clusterer finds them; they count if they are accepted.
    4. Layers are averaged as the share map says.
With `cluster = "choose"` clients pick one of K models instead. The trial of two groupings is DC-PFL's.
Reasons, and cost: docs/methods/mixed.md
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.evaluate import Evaluate
from coterie.clients.rules.local_update import LocalUpdate
from coterie.clients.rules.private import PrivateUpdate
from coterie.clients.rules.proximal import PLU, ChooseIdentity
from coterie.clients.rules.two_branches import Receive, TakeBranch, TrainBranches
from coterie.errors import BadInput
from coterie.grouping import layers as layer_choice
from coterie.grouping.affinity import (
    cosines,
    gram_coordinates,
    layer_discrepancies,
    model_distances,
    scaled_l1,
    squared_distances,
)
from coterie.grouping.aggregate import trimmed_means
from coterie.grouping.cluster import (
    bipartition,
    cluster_by_distance,
    cut_dendrogram,
    dendrogram,
    kmeans,
    nearest_group,
)
from coterie.grouping.divergence import js_divergences
from coterie.grouping.gaps import find_groups
from coterie.grouping.labels import relabel
from coterie.grouping.layers import Choice, candidates
from coterie.grouping.rapid_decrease import count_terms, has_decrease_ended
from coterie.grouping.schedule import layer_parts, periods
from coterie.grouping.splitting import separation
from coterie.grouping.trigger import hopkins
from coterie.methods.catalog import METHODS
from coterie.methods.client_rows import add_rows, replace_rows
from coterie.methods.exchange import Exchange, Ids, Log, LogGap, Outputs, Replies, Round, Send
from coterie.methods.k_models import SharedBase, draw_models, read_choices, redraw_until_all_picked, serve_picked
from coterie.methods.method import UNKNOWN, Affinity, Cohort, Method, Needs, ServerView, Serving, Split
from coterie.methods.mixed_parts import Parts
from coterie.methods.privacy import Covered
from coterie.methods.private_layers import evaluate_kept_models, send_shared_part
from coterie.models.layout import Layout, Part

LOW = 0.1
"""Layers that differ less than this share of the mean over layers wait longer (DC-PFL)."""

WINDOW, OBSERVED = 5, 3
"""Losses in a mean, and rounds that the radius must stay larger (DC-PFL)."""

ALL_SAMPLES = 2**31 - 1
"""Samples of the test: every one that a client has (IFCA)."""

Labels = NDArray[np.int64]

Matrix = NDArray[np.float64]


@state("mixed")
@dataclass(frozen=True, eq=False)
class MixedState(Choice):
    """Groups and their models, what was last observed of each client, and what triggers and share maps count."""

    models: Tensor  # [K, P], of the groups
    groups: NDArray[np.int64]  # [n], -1 for who was never seen when the others were grouped
    known: NDArray[np.bool_]  # [n], who has uploaded yet
    observed: Tensor  # [n, P], the last model or update of those
    depth: float  # the layers that are shared, from the input on
    periods: NDArray[np.int64]  # [K, L], after how many rounds a layer is averaged again
    averaged: NDArray[np.bool_]  # [K, L], which layers each group averaged last, and its members are owed
    tops: NDArray[np.float64]  # [K], the greatest norm so far of a group's mean update
    resting: NDArray[np.bool_]  # [K], whose mean update is short while a member's is long
    losses: tuple[float, ...]  # the mean loss in each round since the groups changed
    next_search: int  # no search before this round
    searches: int  # how often groups were looked for
    # [3], where the trigger came nearest so far; see `note_nearest`
    nearest: NDArray[np.float64] = field(default_factory=lambda: np.array([np.inf, 0.0, 0.0]))
    candidate: NDArray[np.int64] | None = None  # [n], groups that are tried in the next round
    finer: Tensor | None = None  # [K', P], and their models

    @classmethod
    def initial(cls, models: Tensor, server: ServerView, candidates: int, chosen: int) -> MixedState:
        """Return one group of all clients, or K models among which no client has chosen yet.

        Args:
            models: `[K, P]`.
            server: what it knows of the clients.
            candidates: number of selections of layers that may be compared.
            chosen: which of them is compared, -1 while that is undecided.
        """
        n, groups, layers = server.n, len(models), len(server.layout.layers)
        ones = np.ones((groups, layers), np.int64)
        return cls(
            chosen=chosen,
            looks=0,
            silhouettes=np.zeros(candidates),
            agreements=np.zeros(candidates),
            groupings=np.zeros((candidates, n), np.int64),
            models=models,
            groups=np.full(n, 0 if groups == 1 else UNKNOWN, np.int64),
            known=np.zeros(n, np.bool_),
            observed=torch.zeros(n, server.layout.size),
            depth=float(layers),
            periods=ones,
            averaged=ones > 0,
            tops=np.zeros(groups),
            resting=np.zeros(groups, np.bool_),
            losses=(),
            next_search=0,
            searches=0,
        )

    @property
    def starts(self) -> Tensor:
        """The models that clients start from `[K + 1, P]`: the groups', then their mean for clients without one."""
        return torch.cat([self.models, self.models.mean(0, keepdim=True)])

    def rows(self, clients: Ids) -> Ids:
        """Return the row of `starts` for each client."""
        return np.where(self.groups[clients] == UNKNOWN, len(self.models), self.groups[clients])

    def observe(self, replies: Replies, updates: bool) -> MixedState:
        """Store the models or updates that came back. Columns that did not cross stay as observed last."""
        clients, rows = replies.clients, replies.models
        # The sum of a row is NaN unless all of it crossed; one pass finds all such rows.
        partly = np.flatnonzero(rows.sum(1).isnan().numpy())
        if updates:
            rows = add_rows(rows, self.starts, self.rows(clients), -1.0)
        elif len(partly):
            rows = rows.clone()
        for i in partly.tolist():
            rows[i] = torch.where(replies.models[i].isnan(), self.observed[int(clients[i])], rows[i])
        known = self.known.copy()
        known[clients] = True
        return replace(self, observed=replace_rows(self.observed, clients, rows), known=known)

    def note_nearest(self, apart: float, first: float, second: float = 0.0) -> MixedState:
        """Keep where the trigger came nearest: how far off it was, and by which one or two numbers."""
        return self if apart >= self.nearest[0] else replace(self, nearest=np.array([apart, first, second]))

    def regroup(self, labels: NDArray[np.int64]) -> MixedState:
        """Return the state with new groups `[n]`; each starts from the model of its first member's old group."""
        labels = relabel(labels)
        first = np.unique(labels[labels >= 0], return_index=True)[1]
        first = np.flatnonzero(labels >= 0)[first]
        models = self.starts[torch.from_numpy(self.rows(first))]
        periods = np.ones((len(models), self.periods.shape[1]), np.int64)
        return replace(
            self,
            models=models,
            groups=labels,
            periods=periods,
            averaged=periods > 0,
            tops=np.zeros(len(models)),
            resting=np.zeros(len(models), np.bool_),
            losses=(),
            candidate=None,
            finer=None,
        )


@METHODS.add("mixed")
@dataclass(frozen=True)
class Mixed(Parts, Method[MixedState]):
    """A signal, a distance, a clusterer, a trigger, a share map …, each chosen by itself (`coterie list parts`).

    Per round: down and up `b` times the shared scalars; up `m P b` where the signal is the outputs of whole models;
    down all K models where clients choose.
    """

    @property
    def needs(self) -> Needs:
        pairs: Literal["", "everybody"] = "everybody" if self.searches else ""
        compares = self.signal == "outputs"
        return Needs(500 if compares else 0, distributions=compares, pairs=pairs)

    def final_warnings(self, state: MixedState, server: ServerView, rounds: int) -> list[str]:
        """Say so if the clients stayed one group: no search, or none that parted them."""
        found = np.unique(state.groups[state.groups != UNKNOWN])
        if self.cluster == "none" or len(found) > 1 or server.n == 1:
            return []
        if rounds < self.after:
            why = f"they are looked for from round method.after = {self.after} on, and there were {rounds} rounds"
        elif self.cluster == "choose":
            why = f"all clients chose one of {self.clusters} models; another seed starts from other models"
        elif not state.searches:
            why = f"the trigger '{self.trigger}' never fired{self._say_how_near(state)}; "
            why += "method.trigger = 'every' looks for them in each round"
        else:
            why = (
                f"{state.searches} searches by '{self.cluster}' found one group or were refused by accept = "
                f"'{self.accept}'; the distances are in the run's log under signal"
            )
        return [f"no groups came about: {why}"]

    def _say_how_near(self, state: MixedState) -> str:
        """Say how near the trigger came, and which setting would have fired it."""
        apart, first, second = state.nearest.tolist()
        if apart == np.inf:
            return ""
        if self.trigger == "hopkins":
            value = f"the Hopkins statistic was at most {first:.3g}"
            return f": {value}; a method.threshold below that would have fired it"
        return (
            f": at the nearest a group's mean update had {first:.3g} of its greatest length, and a member's was "
            f"{second:.3g} times as long; method.eps1_frac a little above {first:.3g} with method.ratio a little "
            f"below {second:.3g} would have fired it"
        )

    @property
    def own_aggregation(self) -> str:
        return "aggregate = 'trimmed' is a rule of its own" if self.aggregate == "trimmed" else ""

    @property
    def covered(self) -> Covered:
        asked = "its parts may have clients tell choices and losses, and nobody has tried its groups under noise"
        return Covered("its server makes groups of single clients' signals", asked, asked)

    def start(self, server: ServerView) -> MixedState:
        names, chosen = candidates(server.layout, self.layers)
        models = self._draw_initial_models(server) if self.cluster == "choose" else server.initial(0)[None]
        state = MixedState.initial(models, server, len(names), chosen)
        self.map.shared(server.layout, state.depth, state.averaged)  # raises if the network lacks the layers
        self.map.common(server.layout)
        compared = self.searches and self.signal != "outputs"
        if compared and not self._select_compared_part(state, server.layout):
            raise BadInput(f"method.layers = {self.layers!r} are layers that share = {self.share!r} never sends")
        return state

    def round(self, state: MixedState, cohort: Cohort) -> Round[MixedState]:
        if self.cluster == "choose":
            return (yield from self._let_clients_choose(state, cohort))
        if state.candidate is not None and state.finer is not None:
            return (yield from self._try_candidate(state, state.candidate, state.finer, cohort))
        layout, full = cohort.server.layout, self.map.kind != "periodic" or cohort.round % self.alpha == 0
        due = (state.periods == 1) | full
        state, replies = yield from self._train_cohort(state, due, cohort)  # step 1
        state = self._note_norms(state.observe(replies, self.signal == "update"), replies, cohort)
        state = yield from self._place_late_clients(state, cohort.server)  # step 2
        labels = None
        if full:  # step 3; only whole uploads can make groups
            labels, state = yield from self._search_groups(state, cohort)
        # Step 4
        if labels is not None and self.accept != "trial":
            return self._average(state.regroup(labels), replies, None, cohort.server)
        kept = self._average(state, replies, due, cohort.server)
        if full and self.map.kind == "periodic":
            groups = state.groups[replies.clients]
            differ = layer_discrepancies(replies.models, groups, kept.models, layer_parts(layout))
            kept = replace(kept, periods=periods(differ, self.alpha, LOW, state.periods))
        if labels is None:
            return kept
        finer = self._average(state.regroup(labels), replies, None, cohort.server)
        return replace(kept, candidate=labels, finer=finer.models)

    def serving(self, state: MixedState, server: ServerView) -> Serving:
        return Serving(state.models, state.groups)

    def evaluation(
        self, state: MixedState, server: ServerView, clients: Ids, split: Split = "test", last: bool = False
    ) -> Exchange:
        if not self.map.keeps:
            return super().evaluation(state, server, clients, split, last)
        rows, parts = state.rows(clients), self._select_sent_parts(state, server.layout)
        shared = [parts[row] for row in rows]
        rule = Evaluate(split, "model")
        return evaluate_kept_models(rule, clients, state.starts, rows, shared, server.layout, state.known[clients])

    def newcomer(self, state: MixedState, clients: Ids, server: ServerView) -> Round[Serving]:
        """Let newcomers train once from the mean of the groups; each joins the group with the nearest signals."""
        if self.cluster == "choose":
            return (yield from self._let_newcomers_choose(state, clients, server))
        start = state.starts[-1]
        replies: Replies = yield Exchange(clients, LocalUpdate(), {"model": Send.same(start, clients)})
        of = np.full(len(clients), UNKNOWN if len(state.models) > 1 else 0)
        old = np.flatnonzero(state.known & (state.groups != UNKNOWN))
        if len(state.models) > 1 and len(old) and len(replies):
            rows = replies.models - start if self.signal == "update" else replies.models
            mine = yield from self._read_signals(state, rows, server)
            theirs = yield from self._read_signals(state, state.observed[old], server)
            near = nearest_group(self._compare(server, mine, theirs), state.groups[old])
            of[np.isin(clients, replies.clients)] = near
        return Serving(state.models, of)

    def affinity(self, state: MixedState, server: ServerView, clients: Ids) -> Affinity | None:
        if self.signal in ("outputs", "losses") or not state.known[clients].all():
            return None
        rows = self._select_compared_part(state, server.layout).take(state.observed[clients])
        return Affinity(f"{self.measure} distance of {self.signal}", self._compare(server, rows))

    def _train_cohort(
        self, state: MixedState, due: NDArray[np.bool_], cohort: Cohort
    ) -> Round[tuple[MixedState, Replies]]:
        """Let the cohort train from what its groups averaged last."""
        clients, layout = cohort.clients, cohort.server.layout
        if self.map.kind == "moving":
            yield Log("shared layers", state.depth)
        rows = state.rows(clients)
        down = self._select_sent_parts(state, layout)
        up = [*self.map.shared(layout, state.depth, due), layout.everything]
        sends = send_shared_part(state.starts, rows, [down[row] for row in rows], layout, state.known[clients])
        tell = {"mu": np.full(len(clients), self.mu)} if self.local == "proximal" else {}
        rule = PrivateUpdate() if self.map.keeps else LocalUpdate()
        if self.trigger == "rapid_decrease":
            heard: Replies = yield Exchange(clients, Receive(), sends)
            clients, sends, rule = heard.clients, {}, PrivateUpdate()
            loss = float(np.mean(heard.numbers["loss"])) if len(heard) else float("nan")
            state = replace(state, losses=(*state.losses, loss) if len(heard) else state.losses)
            tell = {name: values[: len(clients)] for name, values in tell.items()}
            yield Log("loss", loss)
        whole = self.signal == "outputs" and self.cluster != "none"
        back = [layout.everything if whole else up[row] for row in state.rows(clients)]
        replies: Replies = yield Exchange(clients, rule, sends, tell, {"model": back})
        return state, replies

    def _select_compared_part(self, state: MixedState, layout: Layout) -> Part:
        """Return the columns that are compared: of the layers asked for, those that every group shares."""
        names, chosen = layer_choice.candidates(layout, self.layers)
        if chosen < 0:
            chosen = state.chosen if state.chosen >= 0 else len(names) - 1
        (shared,) = self.map.shared(layout, state.depth, np.ones((1, len(layout.layers)), np.bool_))
        return list(names.values())[chosen] & shared

    def _read_signals(self, state: MixedState, observed: Tensor, server: ServerView) -> Round[Tensor]:
        """Return the signals of models or updates `[r, P]`: `[r, size]`, or outputs `[r, samples, classes]`."""
        if self.signal != "outputs":
            return self._select_compared_part(state, server.layout).take(observed)
        found: Tensor = yield Outputs(observed, server.public_inputs())
        return found

    def _compare(self, server: ServerView, rows: Tensor, others: Tensor | None = None) -> Matrix:
        """Return distances `[r, r]` between signals, or `[r, s]` to others."""
        if self.measure == "js":
            return js_divergences(rows, others, kernel=server.scale.js)
        if self.measure == "l1":
            return scaled_l1(rows, others)
        both = rows if others is None else torch.cat([rows, others])
        found = 1.0 - cosines(both) if self.measure == "cosine" else model_distances(both)
        return found if others is None else found[: len(rows), len(rows) :]

    def _note_norms(self, state: MixedState, replies: Replies, cohort: Cohort) -> MixedState:
        """Find the groups whose mean update in this round is short while a member's is long."""
        if not len(replies) or self.trigger != "stationary":
            return state
        groups, part = state.groups[replies.clients], cohort.server.layout.trainable
        crossed, starts = part.take(replies.models), part.take(state.models)
        tops, resting = state.tops.copy(), np.zeros(len(state.models), np.bool_)
        for group, start in enumerate(starts):
            members = np.flatnonzero(groups == group)
            if len(members) < 3:
                continue
            shares = replies.samples[members] / replies.samples[members].sum()
            mean, longest = torch.zeros(start.shape, dtype=torch.float64), 0.0
            for i, share in zip(members, shares, strict=True):  # one at a time stays in the cache
                moved = (crossed[i] - start).nan_to_num_(0.0)
                mean.add_(moved, alpha=float(share))
                longest = max(longest, float(torch.linalg.vector_norm(moved, dtype=torch.float64)))
            short = float(mean.norm())
            tops[group] = max(tops[group], short)
            limit = self.eps1_frac * tops[group]
            resting[group] = short < limit and longest >= self.ratio * limit
            if cohort.round >= self.after and short > 0 < limit:
                # Below 1 both tests pass.
                apart = max(short / limit, self.ratio * limit / longest)
                state = state.note_nearest(apart, short / tops[group], longest / short)
        return replace(state, tops=tops, resting=resting)

    def _place_late_clients(self, state: MixedState, server: ServerView) -> Round[MixedState]:
        """Let clients that were first seen after the others were grouped join the nearest group."""
        new = np.flatnonzero(state.known & (state.groups == UNKNOWN))
        old = np.flatnonzero(state.known & (state.groups != UNKNOWN))
        if not len(new) or not len(old):
            return state
        mine = yield from self._read_signals(state, state.observed[new], server)
        theirs = yield from self._read_signals(state, state.observed[old], server)
        groups = state.groups.copy()
        at, labels = np.unique(groups[old], return_inverse=True)
        groups[new] = at[nearest_group(self._compare(server, mine, theirs), labels)]
        return replace(state, groups=groups)

    def _search_groups(self, state: MixedState, cohort: Cohort) -> Round[tuple[Labels | None, MixedState]]:
        """Return new groups `[n]`, -1 for unknown clients, if the trigger fires and groups change; else None."""
        members = np.flatnonzero(state.known)
        if self.cluster == "none" or len(members) < 2:
            return None, state
        if self.signal != "outputs" and not self._select_compared_part(state, cohort.server.layout):
            return None, state  # no compared layer is shared any more
        state = self._watch_layers(state, cohort)
        fired = self._find_due_groups(state, cohort)
        rows = torch.empty(0)
        if fired.any() or len(members) <= layer_choice.FEW_CLIENTS:
            observed = state.observed if state.known.all() else state.observed[members]
            rows = yield from self._read_signals(state, observed, cohort.server)
        if fired.any() and self.trigger == "hopkins":
            value = yield from self._measure_clusterability(rows, cohort)
            fired &= value > self.threshold and len(rows) >= 3
            state = state.note_nearest(1.0 - value, value)
        yield Log("fired", float(fired.any()))
        if not len(rows):
            return None, state
        matrix = self._compare(cohort.server, rows)
        yield LogGap("signal", members, matrix, "distance")
        if not fired.any():
            return None, state
        state = replace(state, searches=state.searches + 1)
        labels, refused = self._cluster(state, fired, matrix, rows, cohort)
        if self.map.kind == "moving":
            state = replace(state, depth=state.depth * self.psi)
        state = replace(state, next_search=cohort.round + 1 + self.wait if refused else state.next_search)
        labels = relabel(labels)
        if np.array_equal(labels, relabel(state.groups[members])):
            return None, state
        groups = np.full(cohort.server.n, UNKNOWN, np.int64)
        groups[members] = labels
        return groups, state

    def _watch_layers(self, state: MixedState, cohort: Cohort) -> MixedState:
        """Compare the clients in every layer, and from round `after` on choose the layer that parts them best."""
        if self.layers != layer_choice.AUTO or state.chosen >= 0:
            return state
        if state.known.all():
            names, _ = layer_choice.candidates(cohort.server.layout, self.layers)
            matrices = [cosines(part.take(state.observed)) for part in names.values()]
            state, _ = layer_choice.record_look(state, cohort.server.everyone, matrices, "complete")
        return layer_choice.decide_layer(state) if cohort.round >= self.after and state.looks else state

    def _find_due_groups(self, state: MixedState, cohort: Cohort) -> NDArray[np.bool_]:
        """Find the groups `[K]` in which the trigger fires, as far as it does not depend on the signal."""
        due = np.ones(len(state.models), np.bool_)
        if self.trigger == "rapid_decrease":
            period = self.alpha if self.map.kind == "periodic" else 1
            due &= has_decrease_ended(state.losses, count_terms(WINDOW, period), OBSERVED)
        if self.trigger == "once":
            due &= state.searches == 0
        if self.trigger == "stationary":
            due = state.resting
        return due & (cohort.round >= max(self.after, state.next_search))

    def _measure_clusterability(self, rows: Tensor, cohort: Cohort) -> Round[float]:
        """Return the Hopkins statistic of the signal."""
        points = rows.flatten(1).double().numpy() if self.measure == "js" else gram_coordinates(rows)
        value = hopkins(points, cohort.server.stream("hopkins", cohort.round))
        yield Log("hopkins", value)
        yield Log("hopkins threshold", self.threshold)
        return value

    def _cluster(
        self, state: MixedState, fired: NDArray[np.bool_], matrix: Matrix, rows: Tensor, cohort: Cohort
    ) -> tuple[Labels, bool]:
        """Return groups of the known clients `[r]`, and whether any were refused."""
        now, layout = state.groups[state.known], cohort.server.layout
        if self.cluster == "bipartition":
            return self._split_in_two(now, fired, matrix)
        if self.cluster == "dbscan" and self.eps == "auto":
            # The other measures are squares of Euclidean distances already.
            squares = np.square(matrix) if self.measure == "l2" else matrix
            return find_groups(-squares / 2, cohort.server.stream("groups", cohort.round)), False
        if self.cluster == "dbscan":
            return cluster_by_distance(matrix, float(self.eps)), False
        if self.cluster == "nearest" and len(state.models) > 1:
            centres = self._select_compared_part(state, layout).take(state.models)
            return np.asarray(squared_distances(rows, centres).argmin(1), np.int64), False
        if self.cluster in ("kmeans", "nearest"):
            rng, above = cohort.server.stream("kmeans", cohort.round), cohort.server.scale.sketch_above
            return kmeans(rows, self.clusters, 20, rng, above), False
        tree = dendrogram(matrix)
        if self.cut is not None:
            return cut_dendrogram(tree, self.cut * float(tree[-1, 2])), False
        if self.clusters >= len(matrix):
            return np.arange(len(matrix)), False
        return cut_dendrogram(tree, float(tree[-self.clusters, 2])), False

    def _split_in_two(self, now: Labels, fired: NDArray[np.bool_], matrix: Matrix) -> tuple[Labels, bool]:
        """Cut each group that fired in two, where the cut is accepted; say whether one was refused."""
        labels, refused = now.copy(), False
        for group in np.flatnonzero(fired):
            members = np.flatnonzero(now == group)
            if len(members) < 3:
                continue
            own = matrix[np.ix_(members, members)]
            sides = bipartition(own)
            if self.accept == "separation" and separation(1.0 - own, sides) <= self.gamma_max:
                refused = True
                continue
            labels[members[sides == 1]] = labels.max() + 1
        return labels, refused

    def _select_sent_parts(self, state: MixedState, layout: Layout) -> list[Part]:
        """Return the part that each row of `state.starts` sends: what its group averaged last, or everything."""
        return [*self.map.shared(layout, state.depth, state.averaged), layout.everything]

    def _average(
        self, state: MixedState, replies: Replies, due: NDArray[np.bool_] | None, server: ServerView
    ) -> MixedState:
        """Average every group's due layers over its members, and the common layers over all clients.

        Args:
            state: with the groups of the clients that answered.
            replies: with their models.
            due: the layers that are averaged in each group `[K, L]`; all that are shared where not given.
            server: with the layout of the models.
        """
        layout, due = server.layout, state.averaged if due is None else due
        of, weights = state.groups[replies.clients], replies.samples if self.weights == "samples" else None

        def average_members(labels: NDArray[np.int64], previous: Tensor) -> Tensor:
            if self.aggregate == "trimmed":
                return trimmed_means(replies.models, labels, previous, self.trim)
            return server.aggregation.average_groups(replies.models, labels, previous, weights)

        means = average_members(of, state.models)
        models = state.models.clone()
        for group, part in enumerate(self.map.shared(layout, state.depth, due)):
            part.copy(models[group], means[group])
        common = self.map.common(layout)
        if common and len(replies):
            common.copy(models, average_members(np.zeros_like(of), state.models[:1]).expand_as(models))
        if self.aggregate == "reptile":
            models = state.models + self.kappa * (models - state.models)
        return replace(state, models=models, averaged=due)

    def _try_candidate(
        self, state: MixedState, labels: NDArray[np.int64], finer: Tensor, cohort: Cohort
    ) -> Round[MixedState]:
        """Run a round with both the present groups and those on trial; the lower mean loss decides (DC-PFL)."""
        clients = cohort.clients
        other = np.where(labels[clients] == UNKNOWN, 0, labels[clients])
        sends = {"model": Send(state.starts, state.rows(clients)), "finer": Send(finer, other)}
        trained: Replies = yield Exchange(clients, TrainBranches(), sends)
        won = len(trained) > 0 and trained.numbers["finer"].mean() < trained.numbers["now"].mean()
        replies: Replies = yield Exchange(trained.clients, TakeBranch(bool(won)))
        if len(trained):
            yield Log("trial", {name: float(trained.numbers[name].mean()) for name in ("now", "finer")})
        yield Log("accepted", float(won))
        state = replace(state, candidate=None, finer=None, next_search=cohort.round + 1 + (0 if won else self.wait))
        if won:
            state = replace(state.regroup(labels), models=finer)
        return self._average(state, replies, None, cohort.server)

    def _draw_initial_models(self, server: ServerView, attempt: int = 0) -> Tensor:
        """Return K independent models `[K, P]` over common layers, where there are such."""
        return self._make_shared_base(server.layout).copy_base(
            draw_models(server, self.clusters, attempt), server.initial(0)
        )

    def _let_clients_choose(self, state: MixedState, cohort: Cohort) -> Round[MixedState]:
        """Run a round in which clients choose a model and train it; each model is averaged over its choosers."""
        server, clients, layout = cohort.server, cohort.clients, cohort.server.layout
        base, models = self._make_shared_base(layout), state.models
        anyone = np.full(len(clients), UNKNOWN, np.int64)
        if cohort.round == 1 and self.clusters > 1:
            models = yield from redraw_until_all_picked(
                lambda attempt: self._draw_initial_models(server, attempt),
                lambda probed: Exchange(clients, ChooseIdentity(ALL_SAMPLES), base.send(probed, anyone)),
                0.4 / self.clusters,
            )
        rule = PLU(ALL_SAMPLES, "fixed", self.mu if self.local == "proximal" else 0.0)
        replies: Replies = yield Exchange(clients, rule, base.send(models, anyone))
        picked = read_choices(replies)
        groups = np.full(server.n, UNKNOWN, np.int64)
        groups[replies.clients] = picked
        weights = replies.samples if self.weights == "samples" else None
        models = base.average_heads(models, replies, picked, weights, server.aggregation)
        return replace(state, models=models, groups=groups)

    def _let_newcomers_choose(self, state: MixedState, clients: Ids, server: ServerView) -> Round[Serving]:
        """Let newcomers pick as all clients do."""
        anyone = np.full(len(clients), UNKNOWN, np.int64)
        sends = self._make_shared_base(server.layout).send(state.models, anyone)
        replies: Replies = yield Exchange(clients, ChooseIdentity(ALL_SAMPLES), sends)
        return serve_picked(state.models, clients, replies)

    def _make_shared_base(self, layout: Layout) -> SharedBase:
        common = self.map.common(layout)
        return SharedBase(common, layout.everything - common)
