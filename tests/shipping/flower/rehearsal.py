"""A whole federation in this process: both apps, nodes with folders of their own, and faults on demand."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message as FlowerMessage
from safetensors.torch import load_file
from torch import Tensor

import coterie
from coterie.cli.flower_apps import client_app, server_app
from coterie.runs.schema.experiment import Experiment
from coterie.runtime.flower.transport import from_flower, to_flower
from coterie.runtime.remote.codec import VERSION
from coterie.runtime.remote.message import Message, Value
from coterie.shipping.flower.client import answer_message
from tests.shipping.flower.grid import InProcessGrid, rehearsed

Fault = Callable[["Faulty", int, int, Message], Message | FlowerMessage | None]
"""Given the grid, the node, how many messages it got before and the message: another message in its place, Flower's
message that is the answer, or None for nothing."""


class Faulty(InProcessGrid):
    """A grid on which something happens on the way to the clients, or back."""

    def __init__(self, *given: Any, there: Fault | None = None, back: Fault | None = None) -> None:
        super().__init__(*given)
        self.there, self.back = there, back
        self.counts: dict[int, int] = {}

    def _answered(self, message: FlowerMessage) -> FlowerMessage:
        self.message = message
        node, order = message.metadata.dst_node_id, from_flower(message.content)
        count = self.counts[node] = self.counts.get(node, -1) + 1
        changed = None if self.there is None else self.there(self, node - 1000, count, order)
        if isinstance(changed, FlowerMessage):
            return changed
        if changed is not None:
            message.content = to_flower(changed)
        answer = super()._answered(message)
        if self.back is None or answer.has_error():
            return answer
        changed = self.back(self, node - 1000, count, from_flower(answer.content))
        if isinstance(changed, FlowerMessage):
            return changed
        return answer if changed is None else FlowerMessage(to_flower(changed), reply_to=message)


@dataclass
class Place:
    """Where a rehearsal's app, runs and clients' folders are."""

    folder: Path
    nodes: Sequence[Mapping[str, Any]] = field(default_factory=list)
    grid: type[Faulty] = Faulty

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def run(self, experiment: Experiment, *, name: str = "real", **config: Any) -> Path:
        """Run the experiment with all nodes, or go on with it (`resume`); its folder."""
        there, back = config.pop("there", None), config.pop("back", None)
        package = self.folder / "app" / "thin"
        package.mkdir(parents=True, exist_ok=True)
        (package.parent / "experiment.toml").write_text(experiment.to_toml(), encoding="utf-8")
        settings = {"experiment": "experiment.toml", "runs": str(self.runs), "name": name, "wait": 0.1, **config}
        grid = self.grid(client_app(), self.nodes, settings, there=there, back=back)
        rehearsed(server_app(str(package / "server_app.py")), grid, settings)
        return self.runs / (config.get("resume") or name)

    def simulate(self, experiment: Experiment, name: str = "simulated") -> Path:
        """The same in simulation."""
        coterie.run(experiment.updated({"run.folder": str(self.runs), "run.name": name, "run.workers": 1}))
        return self.runs / name


def place(folder: Path, clients: int) -> Place:
    """Nodes that are given the number of a client in a simulated federation."""
    return Place(folder, [{"client": i, "state-dir": str(folder / f"client-{i}")} for i in range(clients)])


def own_data(folder: Path, parts: Sequence[Path], names: str = "clinic-{}", **more: Any) -> Place:
    """Nodes that hold files of their own; `more` is what each is told."""
    nodes: list[dict[str, Any]] = []
    for number, path in enumerate(parts):
        name = names.format(number)
        nodes.append({"client": name, "data": str(path), "state-dir": str(folder / f"state {name}"), **more})
    return Place(folder, nodes)


def greet(
    asked: Experiment | str, node: Mapping[str, Any], told: Mapping[str, Any] | None = None, **more: Value
) -> Message:
    """What a node answers to a hello; `told` is the configuration of the run, `more` what else the message says."""
    text = asked if isinstance(asked, str) else asked.to_toml()
    values: dict[str, Value] = {"version": VERSION, "experiment": text, "asks": "hello", "run": "0" * 32, **more}
    return answer_message(Message(values), node, told or {})


def prolong(run: Path, rounds: int) -> None:
    """Have a run that has ended play some more rounds when it is resumed."""
    path = run / "experiment.toml"
    path.write_text(re.sub(r"(?m)^rounds = \d+", f"rounds = {rounds}", path.read_text("utf-8")), "utf-8")


def state(run: Path) -> dict[str, Tensor]:
    """What the last checkpoint of a run holds of the method's state."""
    last = sorted((run / "checkpoints").glob("*.safetensors"))[-1]
    return {name: values for name, values in load_file(last).items() if name.startswith("state")}


def same(first: Path, second: Path) -> bool:
    """Whether two runs ended in the same bits."""
    one, other = state(first), state(second)
    assert one
    return one.keys() == other.keys() and all(
        torch.equal(one[name].nan_to_num(), other[name].nan_to_num()) for name in one
    )
