"""Rounds on a GPU (`run.engine = "gpu"`) beside a plain PyTorch loop over the same samples on the same device.

    python -m benchmarks.gpu --write docs/performance.md [--only W1 gpt] [--environments FOLDER] [--device cpu]

It needs a CUDA device, no network and no data: images and texts are made from a seed. W1 and W2 are those of
`benchmarks.peers`; in `resnet18` and `gpt` 100 clients with 30 images or 50 texts each are in every round.

Each is a part. It first trains a few clients for two rounds by the GPU's engine and by the sequential one on the
CPU, without dropout, which every device draws in its own way. Where a number of the two models differs by more than
`ALLOWED`, nothing is timed. Else these take turns:

* coterie: a whole round of FedAvg, one local epoch at batch 10, evaluation of all clients included.
* plain: one model, `torch.optim.SGD` on as many samples, kept on the device, and evaluation on all held-out ones.
* plain, CUDA graph: the same, its step recorded once and replayed.
* plain, 4 streams: four such models and graphs, each on a stream of its own, take minibatches in turn.
* pfl: its round of W1 and W2 in float32, where it is installed, here or in FOLDER/pfl (see `benchmarks.peers`).

The engine has cuDNN compute in exact float32 by deterministic kernels, also for the plain loops of this process;
pfl runs as PyTorch is. A part begins no turn after four minutes of them. Its rows are kept as soon as it ends, with
the reason for what could not be timed: the command goes on where it was cut. To measure it anew, delete its lines.
`--device cpu` stands in for a GPU, with few clients: it shows that all of this runs.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.document_sections import plainly
from benchmarks.engine import Step, epoch, sgd
from benchmarks.kept_cells import fill_marks
from benchmarks.measuring import measured, median, ratios
from benchmarks.modules import CASES, make_data
from benchmarks.peers import WAYS, WORKLOADS, experiment, prepared, started
from benchmarks.smoke import Arguments, make_images, shrink
from coterie.clients.engine import choice, factory
from coterie.clients.engine.device import OnDevice
from coterie.errors import BadInput
from coterie.models.networks import build, channels_first
from coterie.runs.loop import rounds, train
from coterie.runs.schema.experiment import Experiment, prepare
from coterie.runs.schema.refusals import cohort_size
from coterie.runs.session import Session
from coterie.runs.setup import load_federation

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
KEPT = PAGE.with_suffix("") / "gpu.jsonl"
STAND_IN = "cpu"
ALLOWED = 1e-6
"""Up to which two float32 models are equal (docs/methods/conventions.md)."""
TIMED_SECONDS = 240
"""After which a part begins no further turn."""
STREAMS = 4

Row = Mapping[str, Any]
Once = Callable[[], Any]


class Part(NamedTuple):
    """A workload: sections as in `benchmarks.peers`, what makes samples, and what the check changes."""

    sections: Mapping[str, Any]
    make: Callable[[], tuple[Any, Any]]
    check: Mapping[str, float]


def make_texts() -> tuple[dict[str, Any], Any]:
    """Return texts for 100 clients with 60 each."""
    data = make_data(CASES["gpt"], 60)
    return {"input_ids": data.inputs.numpy()}, data.labels.numpy()


def _everybody(network: str, samples: int) -> dict[str, Any]:
    data = {"clients": 100, "samples_per_client": samples, "test": 1 / 6}
    return {"data": data, "network": {"name": network}, "run": {"participation": 1.0}}


CALM = {"training.lr": 0.01, "run.participation": 1.0, "run.rounds": 2, "run.workers": 1}
UNDROPPED = {"network.conv_dropout": 0.0, "network.dense_dropout": 0.0}
PARTS = {
    "W1": Part(WORKLOADS["W1"][1], partial(make_images, 20_000, 32, 3), CALM | UNDROPPED),
    "W2": Part(WORKLOADS["W2"][1], partial(make_images, 12_500, 28, 1), CALM),
    # By norms over ten images, six steps of 0.01 with oneDNN end 5e-3 from those without: 1e-5 tells no less.
    "resnet18": Part(_everybody("resnet18", 36), partial(make_images, 3_600, 32, 3), CALM | {"training.lr": 1e-5}),
    "gpt": Part(_everybody("benchmarks.modules:GPT", 60), make_texts, CALM),
}


@contextmanager
def standing_in() -> Iterator[None]:
    """Let the GPU's engine compute on the CPU."""

    def on_cpu(*given: Any, **more: Any) -> Any:
        return OnDevice(*given, **{**more, "device": torch.device("cpu")})

    with patch.object(choice, "_refuse_gpu", lambda _: None), patch.object(factory, "OnDevice", on_cpu):
        yield


def check(part: Part, whole: Experiment) -> dict[str, Any]:
    """Return how far apart two engines leave a number of the model, and how far one is moved at most."""
    few, models = shrink(whole).updated(part.check), []
    for engine in ("sequential", "gpu"):
        with closing(Session(few.updated({"run.engine": engine}))) as session:
            first, trained = session.state.model.clone(), session.layout.trainable
            for _ in train(session):
                pass
            models.append(session.state.model)
    apart = float((models[0] - models[1]).abs().max())
    moved = float((trained.take(models[0][0]) - trained.take(first[0])).abs().max())
    return {"largest_difference": apart, "largest_move": moved, "timed": apart <= ALLOWED < moved}


def coterie_rounds(stack: ExitStack, whole: Experiment, precision: str) -> Once:
    """Return what plays the next round of a run."""
    played = rounds(whole.updated({"run.engine": "gpu", "run.rounds": 1_000, "training.precision": precision}))
    stack.enter_context(closing(played))  # type: ignore[type-var]  # it is a generator
    return partial(next, played)


def plain_rounds(whole: Experiment, device: str, precision: str, graphs: int = 0) -> Once:
    """Return a round's worth of the plain loop, by so many models with a CUDA graph each or by one without."""
    clients, network, batch = load_federation(prepare(whole)), whole.network, whole.training.batch_size

    def lay_out(count: int, split: Any) -> tuple[Tensor, Tensor]:
        x, y = zip(*(clients.slice(i, split) for i in range(count)), strict=True)
        numbers = torch.cat([clients.to_numbers(own) for own in x])
        return channels_first(numbers).contiguous().to(device), torch.cat(y).to(device)

    samples, held_out = (
        lay_out(cohort_size(clients.n, whole.run.participation), "train"),
        lay_out(clients.n, "test"),
    )
    shapes = network.settings, clients.features, clients.outputs
    models = [build(network.name, *shapes, seed)[0].to(device).train() for seed in range(max(1, graphs))]
    steps = [sgd(model, whole.training.lr, bf16=precision == "bf16") for model in models]
    if graphs:
        steps = [record(step, samples[0][:batch].clone(), samples[1][:batch].clone()) for step in steps]

    def once() -> None:
        epoch(steps, *samples, batch)
        if device != STAND_IN:
            torch.cuda.synchronize()
        models[0].eval()
        with torch.no_grad():
            parts = zip(*(torch.split(both, 500) for both in held_out), strict=True)
            float(sum(cross_entropy(models[0](x), y, reduction="sum") for x, y in parts))
        models[0].train()

    return once


def record(step: Step, x: Tensor, y: Tensor) -> Step:
    """Return the step as a CUDA graph, which reads x and y, on a stream of its own."""
    if not x.is_cuda:
        raise RuntimeError("CUDA graphs and streams need a GPU")
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # libraries set themselves up before anything is recorded
            step(x, y)
    with torch.cuda.graph(graph, stream=stream):
        step(x, y)

    def replay(inputs: Tensor, labels: Tensor) -> None:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            x.copy_(inputs)
            y.copy_(labels)
            graph.replay()
        inputs.record_stream(stream)
        labels.record_stream(stream)

    return replay


def pfl_rounds(stack: ExitStack, name: str, whole: Experiment, given: Namespace) -> Once:
    """Return what has pfl do a round.

    Raises:
        RuntimeError: it is not installed.
    """
    python = WAYS["pfl"].python(given.environments)
    python = Path(sys.executable) if python is None and importlib.util.find_spec("pfl") else python
    if python is None:
        raise RuntimeError("it is not installed")
    os.environ["PFL_PYTORCH_DEVICE"] = given.device
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpu-")))
    prepared(name, whole, folder)
    return stack.enter_context(started(WAYS["pfl"], python, folder, given.repeats + 2, (1, 1))).round


def measure(name: str, given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows of a part: the check first, and nothing more where it fails."""
    part = PARTS[name]
    whole = experiment({**part.sections, "data": {**part.sections["data"], "name": part.make()}})
    whole = shrink(whole) if given.device == STAND_IN else whole
    yield (checked := check(part, whole))
    if not checked["timed"]:
        return
    with ExitStack() as stack:
        makers: dict[str, Callable[[], Once]] = {}
        for precision in ("fp32", "bf16"):
            makers[f"coterie/{precision}"] = partial(coterie_rounds, stack, whole, precision)
            makers[f"plain/{precision}"] = partial(plain_rounds, whole, given.device, precision)
        if name in WORKLOADS:
            makers["pfl/fp32"] = partial(pfl_rounds, stack, name, whole, given)
        for precision in ("fp32", "bf16"):  # last, lest a capture that fails takes others with it
            for way, copies in (("plain, CUDA graph", 1), (f"plain, {STREAMS} streams", STREAMS)):
                makers[f"{way}/{precision}"] = partial(plain_rounds, whole, given.device, precision, copies)
        ways: dict[str, Once] = {}
        for key, make in makers.items():
            way, precision = key.split("/")
            try:
                once = make()
                once()
                ways[key] = once
            except (BadInput, RuntimeError) as problem:
                yield {"way": way, "precision": precision, "not_timed": " ".join(str(problem).split())[:200]}
        times = measured(ways, given.repeats, TIMED_SECONDS)
    for key, seconds in times.items():
        way, precision = key.split("/")
        row = {"way": way, "precision": precision, "repeats": len(seconds), "seconds": median(seconds)}
        row |= {"seconds_least": min(seconds), "seconds_most": max(seconds)}
        times_plain = ratios(seconds, times.get(f"plain/{precision}", seconds))
        yield row | dict(zip(("times_plain", "times_plain_least", "times_plain_most"), times_plain, strict=True))


def read_rows(path: Path) -> list[Row]:
    """Return the rows that are kept in a file, if there is one."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []


def page(text: str, rows: Sequence[Row]) -> str:
    """Return the page with the tables of all GPUs in their place."""
    parts = []
    for on in dict.fromkeys(row["on"] for row in rows if not row["on"].startswith(STAND_IN)):
        shown = [{key: row[key] for key in row if key != "on"} for row in rows if row["on"] == on]
        parts += [f"Measured on {on}.", *plainly(shown)]
    return fill_marks(text, {"gpu": parts or ["Nothing was measured on a GPU so far."]})


def main() -> int:
    """Measure the parts that are missing, keep each at once, and write the page."""
    parser = Arguments("gpu", __doc__, {"device": STAND_IN, "only": ["W2"], "repeats": 1, "kept": False})
    parser.add_argument("--rows", type=Path, default=KEPT, metavar="FILE", help="where rows are kept")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page that gets the tables")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--kept", action="store_true", help="measure nothing")
    parser.add_argument("--repeats", type=int, default=5, help="how often each way is timed, if there is time")
    parser.add_argument("--device", choices=("cuda", STAND_IN), default="cuda", help="cpu stands in for a GPU")
    parser.add_argument("--environments", type=Path, metavar="FOLDER", help="where pfl's environment is")
    given = parser.read()
    if not given.kept and given.device != STAND_IN and not torch.cuda.is_available():
        parser.error("PyTorch finds no CUDA device; --device cpu stands in for one, --kept only writes the page")
    logging.disable(logging.WARNING)
    rows, refused = read_rows(given.rows), False
    for name in () if given.kept else given.only:
        device = STAND_IN if given.device == STAND_IN else torch.cuda.get_device_name()
        about = {"on": f"{device}, PyTorch {torch.__version__}", "part": name}
        if any(about.items() <= row.items() for row in rows):
            continue
        with standing_in() if given.device == STAND_IN else nullcontext():
            found: list[Row] = [about | row for row in measure(name, given)]
        lines = "".join(json.dumps(row) + "\n" for row in found)
        print(lines, end="", flush=True)
        given.rows.parent.mkdir(parents=True, exist_ok=True)
        with given.rows.open("a", encoding="utf-8") as file:
            file.write(lines)
        rows, refused = rows + found, refused or not found[0]["timed"]
    if given.write:
        text = (given.write if given.write.exists() else PAGE).read_text("utf-8")
        given.write.write_text(page(text, rows), encoding="utf-8")
        print(given.write)
    return int(refused)


if __name__ == "__main__":
    sys.exit(main())
