"""What a run would take on given devices: seconds and joules, by a table of devices, without running it again.

Each client has a device. In a round it receives, computes and sends, one after the other, as the run's ledger and
its local passes say; the round lasts until the slowest client is done. Computing costs joules a sample, a link
watts while it sends or receives:

    T_i = 8 down_i / R_down + s samples_i + 8 up_i / R_up          (docs/methods/conventions.md, convention 11)
    E_i = j samples_i + P_down 8 down_i / R_down + P_up 8 up_i / R_up

A device that is on for a while and then off works while it is on; time begins when the run does, with all devices
on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coterie.errors import BadInput, sentences
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment

MEGABIT = 1e6
AtLeastZero = Annotated[float, Field(ge=0)]


class Device(BaseModel):
    """A kind of device: a row of the table. What is not said costs nothing, takes no time, and is always on."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    device: str = ""
    """Its name."""
    seconds_per_sample: AtLeastZero = 0.0
    """Of training on a sample once."""
    joules_per_sample: AtLeastZero = 0.0
    up_mbit: Annotated[float, Field(gt=0)] = 2.0
    """Of the link to the server, Mbit/s."""
    down_mbit: Annotated[float, Field(gt=0)] = 2.0
    up_watts: AtLeastZero = 0.0
    """Of sending, beyond those of doing nothing."""
    down_watts: AtLeastZero = 0.0
    on_seconds: Annotated[float, Field(gt=0)] | None = None
    """How long it is on before it is off; without it, always."""
    off_seconds: AtLeastZero = 0.0

    def elapse(self, begun: float, busy: float) -> float:
        """Return how long it takes for so many seconds of work from a moment on, the time that it is off
        included."""
        if self.on_seconds is None or not self.off_seconds or not busy:
            return busy
        period = self.on_seconds + self.off_seconds
        at = begun % period
        waits = max(0.0, period - at) if at >= self.on_seconds else 0.0
        left = self.on_seconds if waits else self.on_seconds - at
        # The last second of work that ends with an interval is not followed by the time that it is off.
        pauses = 0 if busy <= left else math.ceil((busy - left) / self.on_seconds)
        return waits + busy + pauses * self.off_seconds


class Work(NamedTuple):
    """What a client does in a round."""

    samples: float
    """That it trains on, each as often as it does."""
    up: int
    """Bytes."""
    down: int


class Cost(NamedTuple):
    """What a run takes."""

    seconds: float
    computing: float
    """Joules of all clients."""
    up: float
    down: float
    most: float
    """Joules of the client that spends most."""

    @property
    def joules(self) -> float:
        return self.computing + self.up + self.down


def read_devices(path: Path) -> list[Device]:
    """Read a table of devices, a CSV file whose columns are the fields of `Device`.

    The clients have the devices of its rows in turn: client 0 the first, and after the last row the first again.

    Raises:
        BadInput: the file cannot be read, or a row of it is no device; one sentence each.
    """
    try:
        rows = pl.read_csv(path, infer_schema_length=None).to_dicts()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise BadInput(f"--devices {str(path)!r} cannot be read as CSV: {str(error).splitlines()[0]}") from None
    if not rows:
        raise BadInput(f"--devices {str(path)!r} has no rows; write one for each kind of device")
    devices, problems = [], []
    for number, row in enumerate(rows, 1):
        try:
            devices.append(Device.model_validate({key: value for key, value in row.items() if value is not None}))
        except ValidationError as error:
            said = sentences(error, known=[*Device.model_fields], owner="a device")
            problems += [f"{path}, row {number}: {sentence}" for sentence in said]
    if problems:
        raise BadInput(problems)
    return devices


def price_run(folder: RunFolder, devices: Sequence[Device]) -> Cost:
    """Return what a run's finished rounds take on these devices; evaluations cost nothing.

    A round's local passes are taken to be the same for all that took part; a run that did not count them is taken
    to make `training.epochs`.

    Raises:
        BadInput: a file of the run is damaged, or it has no finished round.
    """
    federation, rounds, ledger = folder.federation(), folder.rounds(), folder.ledger()
    if federation is None or not rounds.height:
        raise BadInput(f"{folder.path} has no finished round, so there is nothing to price")
    train = dict(federation.select("client", "train").iter_rows())
    epochs = float(Experiment.from_toml(folder.experiment_text()).training.epochs)
    traffic: dict[int, dict[int, dict[str, int]]] = {}
    for number, client, way, size in ledger.select("round", "client", "direction", "bytes").iter_rows():
        sums = traffic.setdefault(number, {}).setdefault(client, {"up": 0, "down": 0})
        sums[way] += size
    seconds, spent = 0.0, {client: [0.0, 0.0, 0.0] for client in train}
    for row in rounds.iter_rows(named=True):
        sent = traffic.get(row["round"], {})
        took_part = [client for client, sums in sent.items() if sums["up"]] or [*train]
        share = row["participants"] / len(took_part)
        passes = epochs if row.get("passes") is None else row["passes"] * len(train) / max(row["participants"], 1)
        work = {
            client: Work(
                passes * train.get(client, 0) * share if client in took_part else 0.0,
                *(sent.get(client, {}).get(way, 0) for way in ("up", "down")),
            )
            for client in {*sent, *took_part}
        }
        seconds += _price_round(devices, work, seconds, spent)
    computing, up, down = (sum(each) for each in zip(*spent.values(), strict=True))
    return Cost(seconds, computing, up, down, max(map(sum, spent.values())))


def _price_round(
    devices: Sequence[Device], work: Mapping[int, Work], begun: float, spent: Mapping[int, list[float]]
) -> float:
    """Add the joules of a round to those of each client (computing, up, down); return how long it lasts."""
    lasts = 0.0
    for client, one in work.items():
        device = devices[client % len(devices)]
        up, down = (
            8 * size / (rate * MEGABIT) for size, rate in ((one.up, device.up_mbit), (one.down, device.down_mbit))
        )
        joules = (one.samples * device.joules_per_sample, up * device.up_watts, down * device.down_watts)
        for place, each in enumerate(joules):
            spent[client][place] += each
        lasts = max(lasts, device.elapse(begun, down + one.samples * device.seconds_per_sample + up))
    return lasts
