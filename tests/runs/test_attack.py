"""Hostile clients: what they send, what is left out of it, and that a method with a robust rule withstands them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl
import pytest
import torch

import coterie
from coterie import BadInput, Experiment
from coterie.clients.rules.local_update import LocalUpdate
from coterie.methods.aggregation import Aggregation
from coterie.methods.exchange import Exchange, Replies, Send
from coterie.models.layout import Part
from coterie.runs.hooks.attack import Attackers, choose_attackers, mark_images, poison_data
from coterie.runs.hooks.screening import (
    find_starts,
    leave_out,
    measure_updates,
    screen_updates,
    weigh_by_trust,
)
from coterie.runs.schema.experiment import prepare
from coterie.runs.schema.sections import Attack
from coterie.runs.setup import load_federation

RULES = get_args(Aggregation.model_fields["rule"].annotation)
CLIENTS = np.arange(6)
DATA = {"name": "digits", "split": "rotated(2)", "clients": 10}


def experiment(method: Any = "fedavg", rounds: int = 2, **sections: Any) -> Experiment:
    run = {"rounds": rounds, "workers": 1, **sections.pop("run", {})}
    training = {"lr": 0.1, "batch_size": 16}
    return Experiment(data=DATA, method=method, run=run, training=training, **sections)


def last(wanted: Experiment) -> dict[str, Any]:
    *_, end = coterie.rounds(wanted, [])
    return dict(end.metrics)


def asked(updates: Any, numbers: Any = None) -> tuple[Exchange, Replies]:
    """Six clients who were sent models of 0, 10, 20 in turn, and what they made of them."""
    matrix = torch.arange(3.0)[:, None].repeat(1, 4) * 10
    rows = CLIENTS % 3
    exchange = Exchange(CLIENTS, LocalUpdate(), {"model": Send(matrix, rows)})
    models = matrix[torch.from_numpy(rows)] + torch.tensor(updates)[:, None] * torch.ones(4)
    replies = Replies(CLIENTS, CLIENTS + 1, {"model": models}, numbers or {}, {}, {})
    return exchange, replace(replies, update_lengths=measure_updates(exchange, replies, CLIENTS))


def attackers(kind: Any, clients: tuple[int, ...] = (1, 4), **settings: Any) -> Attackers:
    attack = Attack(share=0.3, kind=kind, **settings)
    return Attackers(attack, np.array(clients), 6, np.array([0, 0, 0, 1, 1, 1]), 0)


def test_updates_out_of_proportion_are_left_out() -> None:
    exchange, replies = asked([1.0, 2.0, 1.0, 1.0, 50.0, 3e17])
    kept = screen_updates(exchange, replies, 10.0)
    assert kept.clients.tolist() == [0, 1, 2, 3]
    assert kept.samples.tolist() == [1, 2, 3, 4]
    assert list(kept.missing) == [4, 5]
    assert "33.3 times" in kept.missing[4]
    assert len(screen_updates(exchange, replies, 100.0)) == 5
    assert screen_updates(exchange, replies, "off") is replies
    assert len(screen_updates(*asked([0.0] * 4 + [1.0, 9.0]), 2.0)) == 6  # no bound is a multiple of nothing


def test_of_two_updates_each_is_held_against_its_model() -> None:
    exchange, replies = asked([1.0, 1.0, 1e9, 1.0, 1.0, 1.0])
    two = leave_out(replies, dict.fromkeys((0, 3, 4, 5), "away"))
    kept = screen_updates(exchange, two, 10.0)
    assert kept.clients.tolist() == [1]
    assert "6.67e+07 times" in kept.missing[2]


def test_updates_are_weighed_by_trust() -> None:
    """FLTrust, Eq. 2 to 4, of two trusted clients that know different tasks."""
    start, updates = (
        torch.zeros(1, 3),
        torch.tensor([[2.0, 0, 0], [6, 6, 0], [-1, 0, 0], [0, 0, 3], [0, 9, 9], [1, 0, 0]]),
    )
    exchange = Exchange(CLIENTS, LocalUpdate(), {"model": Send(start, np.zeros(6, np.int64))})
    replies = Replies(CLIENTS, CLIENTS + 1, {"model": updates}, {}, {}, {})
    found = weigh_by_trust(exchange, replies, np.array([0, 3]))
    assert found.clients.tolist() == [0, 1, 3, 4, 5]
    assert list(found.missing) == [2]
    one, other, root = np.array([0, 1, 4]), np.array([2, 3]), 0.5**0.5
    scores, lengths = np.array([1, root, 1]), np.array([[2.0, 0, 0], [2 * root, 2 * root, 0], [2, 0, 0]])
    assert found.models[one].mean(0).numpy() == pytest.approx(scores @ lengths / scores.sum())
    scores, lengths = np.array([1, root]), np.array([[0.0, 0, 3], [0, 3 * root, 3 * root]])
    assert found.models[other].mean(0).numpy() == pytest.approx(scores @ lengths / scores.sum())
    nobody = weigh_by_trust(exchange, leave_out(replies, {0: "away"}), np.array([0]))
    assert not len(nobody)
    assert "no trusted" in nobody.missing[5]


@pytest.mark.medium
def test_with_trusted_clients_a_hostile_half_is_withstood() -> None:
    trust = {"rule": "fltrust", "trusted": ["client 0", "client 1"]}
    attack = {"share": 0.5, "kind": "sign-flip", "strength": 5.0}
    wanted = experiment(rounds=4, aggregation=trust, attack=attack)
    assert last(wanted)["accuracy"] > last(wanted.updated({"aggregation": {}}))["accuracy"] + 0.2


def test_an_update_begins_where_its_client_was_sent() -> None:
    exchange, replies = asked([1.0] * 6, {"choice": np.array([2.0, 0, 1, 2, 9, 0])})
    assert find_starts(exchange, replies, CLIENTS)[:, 0].tolist() == [0, 10, 20, 0, 10, 20]
    chosen = replace(exchange, send={"models": Send.all(exchange.send["model"].matrix, CLIENTS)})
    assert find_starts(chosen, replies, CLIENTS)[:, 0].tolist() == [20, 0, 10, 20, 20, 0]
    send = exchange.send["model"]
    part = replace(exchange, send={"model": Send(send.matrix, send.rows, Part.of([(1, 3)]))})
    assert find_starts(part, replies, np.array([2]))[0].isnan().tolist() == [True, False, False, True]
    nothing = replace(exchange, send={"model": Send(send.matrix, np.array([-1, 0, 1, 2, 0, 1]))})
    assert find_starts(nothing, replies, CLIENTS)[:, 0].isnan().tolist() == [True] + [False] * 5
    # As in FLIS, where the server is not told which of several models a client takes: the nearest.
    silent = replace(replies, numbers={})
    assert find_starts(chosen, silent, CLIENTS)[:, 0].tolist() == [0, 10, 20, 0, 10, 20]
    # As in DC-PFL, whose clients receive in one exchange and train in the next; a later model lies over both.
    empty, zeros = replace(exchange, send={}), np.zeros(4, np.int64)
    some = Exchange(CLIENTS[2:], LocalUpdate(), {"initial": Send(send.matrix, zeros)})
    assert find_starts(empty, silent, CLIENTS, [exchange])[:, 0].tolist() == [0, 10, 20, 0, 10, 20]
    assert find_starts(empty, silent, CLIENTS, [some])[:, 0].isnan().tolist() == [True, True] + [False] * 4
    assert find_starts(exchange, silent, CLIENTS, [some])[:, 0].tolist() == [0, 10, 20, 0, 10, 20]


def test_trust_without_a_known_start_gives_numbers() -> None:
    """Where nobody was sent a model the mean of the trusted stands for it; what is far from it is cut."""
    exchange, replies = asked([1.0, 2.0, 3.0, 1.0, 2.0, 500.0])
    found = weigh_by_trust(replace(exchange, send={}), replies, np.array([0, 1]))
    assert bool(found.models.isfinite().all())
    assert float(found.models.max()) < 50


@pytest.mark.medium
@pytest.mark.parametrize("method", ["dcpfl", "flis"])
def test_trusted_clients_do_no_harm_where_starts_are_told_elsewhere(method: str) -> None:
    trust = {"rule": "fltrust", "trusted": ["client 0", "client 1"]}
    wanted = experiment(method, 3, aggregation=trust)
    assert last(wanted)["accuracy"] > last(wanted.updated({"aggregation": {}}))["accuracy"] - 0.1


def test_what_hostile_clients_send() -> None:
    exchange, replies = asked([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])

    def struck(kind: str, **settings: Any) -> list[float]:
        found = attackers(kind, **settings).strike(exchange, replies, 1)
        honest = [0, 2, 3, 5]
        assert torch.equal(found.models[honest], replies.models[honest])
        return [float(found.models[row, 0]) for row in (1, 4)]

    assert struck("sign-flip") == [10 - 2, 10 - 5]
    assert struck("sign-flip", strength=3.0) == [10 - 6, 10 - 15]
    assert struck("scale") == [10 + 200, 10 + 500]
    assert struck("zero") == [0, 0]
    assert struck("mimic") == [float(replies.models[0, 0])] * 2
    assert struck("ipm", strength=2.0) == pytest.approx([10 - 2 * 3.5] * 2)
    honest = replies.models[[0, 2, 3, 5], 0]
    assert struck("alie", strength=1.5) == pytest.approx([float(honest.mean() - 1.5 * honest.std())] * 2)
    # Members of group 1 that are honest began at 0 and 20, with updates of 4 and 6.
    assert struck("group-poison", target=1) == pytest.approx([10 - 5] * 2)
    noisy = attackers("gaussian").strike(exchange, replies, 1).models - replies.models
    assert float(noisy[1].norm()) > 5 * 2
    assert noisy[0].norm() == 0
    for kind in ("label-flip", "backdoor"):  # they train honestly, on other data
        assert torch.equal(attackers(kind).strike(exchange, replies, 1).models, replies.models)


@pytest.mark.parametrize("kind", ["sign-flip", "scale", "gaussian", "ipm", "alie", "group-poison"])
def test_who_goes_to_the_bound_is_as_long_as_passes(kind: str) -> None:
    exchange, replies = asked([1.0, 7.0, 1.0, 1.0, 0.1, 1.0])
    found = replace(attackers(kind, strength="bound"), bound=3.0).strike(exchange, replies, 1)
    again = measure_updates(exchange, found, CLIENTS)["model"]
    assert again == pytest.approx(found.update_lengths["model"], rel=1e-5)
    assert again[[1, 4]] == pytest.approx([6, 6], rel=0.01)
    assert len(screen_updates(exchange, found, 3.0)) == 6
    assert screen_updates(exchange, found, 2.9).clients.tolist() == [0, 2, 3, 5]
    usual = attackers(kind).strike(exchange, replies, 1)
    starts = find_starts(exchange, replies, CLIENTS)
    alike = torch.cosine_similarity(found.models - starts, usual.models - starts)
    assert alike.tolist() == pytest.approx([1.0] * 6, abs=1e-4)


def test_all_hostile_clients_are_of_the_group_that_is_named() -> None:
    wanted = experiment(attack={"share": 0.3, "kind": "zero", "group": 1}, run={"seed": 3})
    whole = load_federation(prepare(wanted))
    found = choose_attackers(wanted, whole, whole.n, np.array([1]))
    assert whole.true_groups is not None
    assert whole.true_groups[found.clients].tolist() == [1, 1, 1]
    assert 1 not in found.clients


def test_what_is_not_finite_is_refused_as_from_anybody() -> None:
    exchange, replies = asked([1.0] * 6)
    found = attackers("nan").strike(exchange, replies, 1)
    assert found.clients.tolist() == [0, 2, 3, 5]
    assert list(found.missing) == [1, 4]


def test_who_aims_at_a_group_says_it_chose_as_its_members_did() -> None:
    exchange, replies = asked([1.0] * 6, {"choice": np.array([0.0, 0, 0, 2, 0, 2])})
    found = attackers("group-poison", target=1).strike(exchange, replies, 1)
    assert found.numbers["choice"].tolist() == [0, 2, 0, 2, 2, 2]


def test_columns_that_did_not_cross_stay_so() -> None:
    exchange, replies = asked([1.0] * 6)
    replies.models[:, 0] = torch.nan
    for kind in ("sign-flip", "scale", "gaussian", "zero", "alie", "ipm", "mimic", "group-poison"):
        found = attackers(kind).strike(exchange, replies, 1).models
        assert found[:, 0].isnan().all()
        assert found[:, 1:].isfinite().all()
    assert len(screen_updates(exchange, replies, 10.0)) == 6


def test_hostile_clients_train_on_spoilt_data_and_are_not_tested() -> None:
    wanted = experiment()
    whole = load_federation(prepare(wanted))
    flipped = poison_data(whole, attackers("label-flip"))
    assert flipped.test_samples[[1, 4]].tolist() == [0, 0]
    assert (np.delete(flipped.test_samples, [1, 4]) == np.delete(whole.test_samples, [1, 4])).all()
    (before, labels), (after, others) = whole.slice(1, "train"), flipped.slice(1, "train")
    assert torch.equal(before, after)
    assert torch.equal(others, 9 - labels)
    assert torch.equal(flipped.slice(0, "train")[1], whole.slice(0, "train")[1])
    assert re.search(r"^2 .*\(label-flip\).* client 1, client 4$", flipped.notes[-1])
    marked = poison_data(whole, attackers("backdoor", target=3))
    inputs, labels = marked.slice(4, "train")
    changed = (inputs != whole.slice(4, "train")[0]).flatten(1).any(1)
    assert 0.4 < changed.float().mean() < 0.6
    assert (labels[changed] == 3).all()
    assert torch.equal(whole.inputs, load_federation(prepare(wanted)).inputs)


def test_a_mark_is_bright_in_every_form_of_images() -> None:
    assert int(mark_images(torch.zeros(2, 8, 8, 1, dtype=torch.uint8)).sum()) == 2 * 16 * 255
    floats = torch.rand(2, 8, 8, 3)
    found = mark_images(floats)
    assert (found[:, -4:, -4:] == floats.max()).all()
    assert torch.equal(found[:, :4], floats[:, :4])


@pytest.mark.medium
def test_a_backdoor_works_on_the_mean_and_is_logged(tmp_path: Path) -> None:
    attack = {"share": 0.2, "kind": "backdoor", "target": 3}
    result = coterie.run(experiment(rounds=5, attack=attack, run={"folder": str(tmp_path)}))
    log = coterie.RunFolder(result.folder).log().filter(pl.col("name") == "attack success")
    assert log["round"].to_list() == [1, 2, 3, 4, 5]
    assert log["value"][-1] > 0.5


@pytest.mark.medium
@pytest.mark.parametrize("method", ["fesem", "ifca", "fedper"])
def test_methods_that_average_can_be_robust(method: str) -> None:
    robust = {"rule": "multi-krum", "norm_bound": 20.0}
    attack = {"share": 0.2, "kind": "scale", "strength": 1e6}
    found = last(experiment(method, aggregation=robust, attack=attack))
    assert np.isfinite(found["loss"])
    assert found["failed"] == 2


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"aggregation": {"hostile": 0.3}}, "hostile .*trimmed-mean, krum, multi-krum or bulyan"),
        ({"aggregation": {"rule": "fltrust"}}, "fltrust .*trusted"),
        (
            {"aggregation": {"rule": "fltrust", "trusted": ["client 99"]}},
            r"aggregation\.trusted 'client 99' .*client 9\b",
        ),
        ({"attack": {"kind": "scale"}}, "share .*above 0"),
        ({"attack": {"share": 0.01}}, r"attack\.share = 0\.01 .*0 of 10"),
        ({"attack": {"share": 0.2, "kind": "backdoor", "target": 10}}, r"attack\.target = 10 .*class, 0 to 9"),
        ({"attack": {"share": 0.2, "kind": "group-poison", "target": 2}}, r"attack\.target = 2 .*group, 0 to 1"),
        ({"attack": {"share": 0.8, "group": 1}}, r"attack\.share = 0\.8 .*8 of 10 .*group 1 .*0\.5"),
        (
            {"attack": {"share": 0.2, "strength": "bound"}, "aggregation": {"norm_bound": "off"}},
            r"attack\.strength = 'bound' .*aggregation\.norm_bound = 'off'",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        last(experiment(**sections))


def test_one_that_says_it_has_a_billion_samples_counts_as_a_hundred_others() -> None:
    samples = np.array([50, 60, 10**9, 40])
    assert Aggregation().cap_samples(samples).tolist() == [50, 60, 5500, 40]
    assert Aggregation(max_weight=2.0).cap_samples(samples).tolist() == [50, 60, 110, 40]
    assert Aggregation(max_weight="off").cap_samples(samples) is samples
    assert Aggregation().cap_samples(samples[:2]) is not None


@pytest.mark.medium
def test_a_leaf_does_not_wait_for_who_never_answers() -> None:
    """One faulty client kept all others of CFL from being grouped."""
    found = last(experiment("cfl", rounds=20, attack={"share": 0.1, "kind": "nan"}))
    assert found["groups"] > 1
