"""The clients of a run and the runtime that reaches them: simulated here or on a cluster, or real ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.data.agree.agreement import Agreement
from coterie.clients.data.agree.population import Population
from coterie.clients.data.divide.augmentation import Augmentation
from coterie.clients.data.federation import Federation, divide
from coterie.clients.data.read import datasets
from coterie.clients.data.read.preparation import Preparation
from coterie.clients.data.read.storage import memory_limit
from coterie.clients.engine.engine import Engine
from coterie.clients.tasks import MEASURES
from coterie.errors import BadInput, unknown
from coterie.methods import ServerView
from coterie.methods.exchange import Ids
from coterie.models.networks import build_network, channels_first, count_tokens, default_network, is_own
from coterie.models.origin import Origin, initialise
from coterie.plugins import consent
from coterie.runs.held_out_clients import hold_out_clients
from coterie.runs.hooks.attack import Attackers, choose_attackers, poison_data
from coterie.runs.promise import find_client_noise
from coterie.runs.schema.experiment import Experiment, Prepared
from coterie.runs.schema.names import AUTO, named_columns, set_metrics
from coterie.runs.schema.sections import Data, Network
from coterie.runs.weights import read_weights
from coterie.runtime.local.runtime import EngineSpec, LocalRuntime
from coterie.runtime.runtime import Runtime

QUARANTINE_AFTER = 3
"""Rounds for clients who hold their own data, where `run.quarantine_after` says nothing."""


@dataclass(frozen=True, eq=False)
class Backend:
    """The clients of a run and the runtime that reaches them.

    Attributes:
        population: all clients; those who are kept out of training come last, so that training knows its own as
            0, 1, … without a gap.
        newcomers: ids of those kept out `[r]`.
        runtime: reaches all of them.
        attackers: those of a simulation who are hostile; None where nobody plays one.
    """

    population: Population
    newcomers: NDArray[np.int64]
    runtime: Runtime
    attackers: Attackers | None = None


def build_simulation(prepared: Prepared, secret: bytes = b"") -> Backend:
    """Set up clients that hold parts of a dataset, on this machine or a Ray cluster (`run.runtime`).

    Raises:
        BadInput: the data cannot be had or divided as asked, or the runtime cannot be begun.
    """
    experiment = prepared.experiment
    settings = experiment.run
    whole, newcomers = hold_out_clients(load_federation(prepared), settings.holdout_clients, experiment.split_seed)
    attackers = None
    if experiment.attack.share:
        trusted = find_trusted(experiment, whole)
        attackers = choose_attackers(experiment, whole, whole.n - len(newcomers), trusted)
        whole = poison_data(whole, attackers)
    spec = engine_spec(prepared, whole, secret)
    place: Any = settings.workers
    kind: Callable[..., Runtime] = LocalRuntime
    if settings.runtime == "ray":
        from coterie.runtime.ray.runtime import RayRuntime

        kind, place = RayRuntime, settings.ray_address
    dropout, timeout = settings.client_dropout, settings.client_timeout
    runtime = kind(spec, whole.samples, dropout, place, timeout, experiment.scale.states_mb)
    return Backend(whole, newcomers, runtime, attackers)


def make_server_view(experiment: Experiment, population: Population, engine: Engine) -> ServerView:
    """Return what a method may know of the clients: counts, shapes, initial models, public inputs."""
    seed, samples = experiment.run.seed, experiment.aggregation.cap_samples(population.samples)
    return ServerView(
        samples,
        engine.layout,
        seed,
        lambda variant: _initial_model(experiment, population, engine, variant),
        population.public,
        experiment.scale,
        experiment.aggregation.for_clients(samples),
        population.features,
        population.classes,
    )


def _initial_model(experiment: Experiment, population: Population, engine: Engine, variant: int) -> Tensor:
    """Return the model `[P]` that training starts from; a variant above 0 is another one."""
    network, seed = experiment.network, experiment.run.seed
    if not is_own(network.name) and network.start is None and network.initial != "kept":
        return initialise(engine.network, engine.layout, seed, variant)
    if not variant:
        return engine.initial.clone()
    origin, features = origin_of(network), population.features
    return build_network(
        network.name, network.settings, features, engine.data.outputs, seed, variant, origin
    ).initial


def find_trusted(experiment: Experiment, population: Population) -> Ids | None:
    """Return the ids of the clients that others are held against; None where nobody is.

    Raises:
        BadInput: a name is that of no client.
    """
    names = experiment.aggregation.trusted
    if names is None:
        return None
    known = {name: client for client, name in enumerate(population.names)}
    if wrong := [unknown("the client of aggregation.trusted", name, known) for name in names if name not in known]:
        raise BadInput(wrong)
    return np.array(sorted(known[name] for name in names), np.int64)


def quarantine_after(experiment: Experiment) -> int | None:
    """Return after how many rounds in a row without a sound answer a client is in quarantine; None for never."""
    asked = experiment.run.quarantine_after
    if asked is None:
        return QUARANTINE_AFTER if experiment.data.is_remote else None
    return None if asked == "never" else asked


def load_federation(prepared: Prepared) -> Federation:
    """Load the data of an experiment on a dataset and divide them among the clients.

    Raises:
        BadInput: the clients hold data of their own, or the data cannot be had or divided as asked.
    """
    experiment, needs = prepared.experiment, prepared.method.needs
    data, run = experiment.data, experiment.run
    if data.is_remote:
        raise BadInput(
            f"data.name = {data.name!r} means that clients hold the data elsewhere; make an app for them with: "
            "coterie flower new, or name a dataset to simulate with"
        )
    public = needs.public if data.public is None else data.public
    # Machines of a cluster share no file.
    with memory_limit(experiment.scale.data_mb if run.runtime == "local" else inf):
        whole = datasets.load(
            data.name,
            public=public > 0,
            task=prepared.task,
            missing=data.missing or "refuse",
            standardise=data.standardise or "none",
            test_path=data.test_path,
            named=replace(named_columns(data), asks=not prepared.split_given),
        )
        if experiment.privacy.unit != "off":
            whole = replace(whole, task=whole.task.unfitted())
        found = divide(
            whole,
            data.split,
            data.clients,
            experiment.split_seed,
            validation=data.validation,
            validation_seed=run.seed,
            test=data.test,
            min_samples=data.min_samples,
            samples_per_client=data.samples_per_client,
            public=public,
            at_most=data.public is None,
            small_clients=data.small_clients,
            min_classes=data.min_classes or 1,
            count_twins=data.name not in datasets.DATASETS,
        )
    task = set_metrics(found.task, experiment.task)
    if wrong := needs.find_wrong_task(experiment.method.name, task):
        raise BadInput(wrong)  # where the data alone say what the task is
    samples = found.to_numbers(found.slice(0, "train")[0][:2])
    outputs, network = found.outputs, experiment.network
    if task.tokens and network.name != AUTO:
        outputs = count_tokens(network.name, network.settings, found.features, outputs, network.output)
    return replace(found, task=task, augment=make_augmentation(data, samples), outputs=outputs)


def make_augmentation(data: Data, inputs: Tensor) -> Augmentation | None:
    """What is done to minibatches of such inputs `[s, *features]`, as numbers; None for nothing.

    Raises:
        BadInput: it cannot be done to them.
    """
    if data.augment is None:
        return None
    found = Augmentation(data.augment)
    found.check(channels_first(inputs[:2]))
    return found


def engine_spec(prepared: Prepared, data: Any, secret: bytes = b"") -> EngineSpec:
    """Return how to build the engine for clients with such `data` (a `Data` that also has `features`).

    Of `secret` comes their noise, where they add any (`PrivateRandomness`).

    Raises:
        BadInput: no network fits such data, and none is named.
    """
    experiment = prepared.experiment
    if data.task.tokens and experiment.network.name == AUTO:
        raise BadInput(
            "network.name = 'auto' is not possible with tokens; it must be a network of your own that takes them, "
            "as package.module:factory"
        )
    run = experiment.run
    upload_noise, example_privacy = find_client_noise(experiment, data, secret)
    return EngineSpec(
        network_name(prepared, data.features),
        experiment.network.settings,
        data.features,
        data,
        experiment.training,
        run.seed,
        run.engine,
        origin_of(experiment.network),
        imports=run.imports or (),
        consent=consent(),
        metrics=tuple(MEASURES[metric] for metric in data.task.metrics),
        upload_noise=upload_noise,
        example_privacy=example_privacy,
    )


def origin_of(network: Network) -> Origin:
    """Return where the weights of a network come from, and what else an experiment says of it.

    Raises:
        BadInput: a file of weights cannot be read.
    """
    head = network.head if isinstance(network.head, tuple) else ()
    weights = None if network.start is None else read_weights(Path(network.start))
    return Origin(network.initial, network.start, weights, network.output, head)


def agreed_preparation(data: Data, agreement: Agreement | None) -> Preparation:
    """Return how all clients of a federation make inputs: as the experiment says, and as they agreed if so."""
    missing, standardise = data.missing or "refuse", data.standardise or "none"
    return (agreement or Agreement()).preparation(missing, standardise, named_columns(data))


def network_name(prepared: Prepared, features: tuple[int, ...]) -> str:
    """Return the network's name; for `auto`, the one that fits data and method."""
    name = prepared.experiment.network.name
    return default_network(features, prepared.method.needs.gaussian) if name == AUTO else name
