"""Tensors in a safetensors file of our own making: the library reads it, and nothing large is copied."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from coterie.runtime.tensor_file import Stacked, as_tensor, replace_file

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SIGNED = [torch.int64, torch.int32, torch.int16, torch.int8]
UNSIGNED = [torch.uint64, torch.uint32, torch.uint16, torch.uint8]
KINDS = [*FLOATS, *SIGNED, *UNSIGNED, torch.bool]


def read(path: Path) -> dict[str, torch.Tensor]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping


def test_the_library_reads_every_kind(tmp_path: Path) -> None:
    given = {str(kind): (torch.arange(35).view(5, 7) * 3).to(kind) for kind in KINDS}
    given |= {"none": torch.empty(0, 3), "one": torch.tensor(2.5), "turned": torch.randn(5, 7).T}
    path = tmp_path / "a.safetensors"
    replace_file(path, {name: Stacked.of(values) for name, values in given.items()}, {"title": "Größe ✓"})
    found = read(path)
    assert found.keys() == given.keys()
    for name, values in given.items():
        assert found[name].dtype == values.dtype
        assert found[name].shape == values.shape
        assert found[name].reshape(-1).view(torch.uint8).equal(values.contiguous().reshape(-1).view(torch.uint8))
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"title": "Größe ✓"}


def test_the_tensors_are_where_the_library_puts_them(tmp_path: Path) -> None:
    given = {
        "b": torch.arange(3),
        "a": torch.randn(5),
        "c": torch.ones(3, dtype=torch.bool),
        "d": torch.randn(2, 2),
    }
    save_file(given, tmp_path / "theirs", {"k": "v"})
    replace_file(tmp_path / "ours", {name: Stacked.of(values) for name, values in given.items()}, {"k": "v"})
    contents = [(tmp_path / name).read_bytes() for name in ("theirs", "ours")]
    tails = [c[8 + int.from_bytes(c[:8], "little") :] for c in contents]
    assert tails[0] == tails[1]
    assert (8 + int.from_bytes(contents[1][:8], "little")) % 8 == 0


@pytest.mark.parametrize("rows", [0, 1, 5, 1000])
@pytest.mark.parametrize("width", [0, 1, 300, 100_000])
def test_rows_from_anywhere_are_one_tensor(rows: int, width: int, tmp_path: Path) -> None:
    rows = min(rows, 20) if width > 1000 else rows
    matrix = torch.randn(2 * rows, width)
    some = [matrix[2 * i] for i in range(rows)]
    replace_file(tmp_path / "a", {"rows": Stacked(some), "more": Stacked.of(matrix[::2])}, {})
    found = read(tmp_path / "a")
    assert found["more"].equal(matrix[::2])
    assert found["rows"].equal(matrix[::2] if rows else torch.empty(0))


def test_arrays_of_any_stride() -> None:
    array = np.arange(24).reshape(4, 6)
    frozen = np.arange(3)
    frozen.setflags(write=False)
    for given in (array, array[::-2, ::3], array.T, np.asfortranarray(array), frozen, np.array(3.5)):
        assert np.array_equal(as_tensor(given).numpy(), given)
    assert as_tensor(array).data_ptr() == array.ctypes.data


MEASURED = """
import resource, sys
from pathlib import Path
import torch
from coterie.runtime.checkpoint import Checkpoints
kept = Checkpoints(Path(sys.argv[1]), "mine")
kept.save(1, {"small": torch.ones(3)})
state = torch.ones(12_500_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
kept.save(2, {"state": state, "again": state[:6_250_000]})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_a_checkpoint_is_not_copied_before_it_is_written(tmp_path: Path) -> None:
    """75 MB are written; the process has at most 20 MB more than before."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path)], capture_output=True, text=True, check=True
    )
    kilobytes = int(done.stdout) / (1024 if sys.platform == "darwin" else 1)
    assert kilobytes < 20_000
