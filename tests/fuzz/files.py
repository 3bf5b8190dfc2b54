"""Data files whose headers lie, that unpack to far more than they are, that are cut off or damaged."""

from __future__ import annotations

import io
import struct
import zipfile
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import polars as pl

from coterie.clients.data.read.files import read_columns
from tests.fuzz.case import Case
from tests.fuzz.values import CONTROLS, MARKS, NUMBERS, TEXTS, damage, damage_bytes

ROWS = 40
SHAPES = (
    *("(40, 4)", "(40,)", "()", "(0,)", "(0, 4)", "(40, 0)", "(1000000000000,)", "(10000000, 10000000)", "(-40,)"),
    *("(-5, -32)", "(18446744073709551616,)", "(4294967296, 4294967296)", "(40, 4, 1)", "(40.0, 4)", "(True, 4)"),
    *("(0, 10000000000000000000000)", "(1,) * 40", "(" * 300, "(" + "1, " * 100 + ")", "None", "'a'", "(40, 4,, )"),
)
TYPES = (
    *("<f4", "<f8", ">f8", "<i8", "|u1", "|b1", "|O", "<U3", "<U1000000000", "|S4", "<M8[s]", "<c16", "|V0", "|V8"),
    *("<f2", "<f16", "", "nonsense", "<i3", "<U0", "[('a', '<f4')]"),
)
EXPERIMENT = "[data]\nname = '{name}'\n{further}[method]\nname = 'fedavg'\n"


def make_file(random: Random) -> Case:
    """Return a case that reads a file, or a folder with one in it, and divides what was in it among clients."""
    make, ending = random.choice(
        ((_make_npz, "npz"), (_make_npz, "npz"), (_make_csv, "csv"), (_make_parquet, "parquet"))
    )
    content = make(random)
    if random.random() < 0.1:
        ending = random.choice(("npz", "csv", "parquet", "npy", "NPZ"))
    name = f"{'folder/' if random.random() < 0.1 else ''}data.{ending}"
    place = name.partition("/")[0]
    files = {name: content}
    if "/" in name and random.random() < 0.5:
        files["folder/other.npz"] = _write_archive({"x": _write_array(_inputs()), "y": _write_array(_labels())})
    further = random.choice(
        ("", "split = 'iid'\nclients = 2\n", "label = 'a'\n", "client = 'b'\nmissing = 'mean'\n")
    )
    files["experiment.toml"] = EXPERIMENT.format(name=place, further=further).encode()

    def read(folder: Path) -> None:
        read_columns(Path(place))

    return Case((read, ("flower", "data", "experiment.toml")), files)


def _inputs() -> np.ndarray:
    return np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4)


def _labels() -> np.ndarray:
    return np.arange(ROWS) % 3


# ---- .npz


def _make_npz(random: Random) -> bytes:
    arrays = {"x": _write_array(_inputs()), "y": _write_array(_labels())}
    if random.random() < 0.3:
        arrays["client"] = _write_array(np.array([_draw_name(random) for _ in range(3)] * 14)[:ROWS])
    if random.random() < 0.15:
        arrays["columns"] = _write_array(np.array([_draw_name(random) for _ in range(4)]))
    name = random.choice(list(arrays))
    what = random.randrange(8)
    if what == 0:
        arrays[name] = write_header(
            f"{{'descr': '<f4', 'fortran_order': False, 'shape': {random.choice(SHAPES)}}}"
        ) + bytes(640)
    elif what == 1:
        kind = random.choice(TYPES)
        descr = kind if kind.startswith("[") else repr(kind)
        order = random.choice(("False", "True"))
        arrays[name] = write_header(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': (40, 4)}}") + bytes(
            1280
        )
    elif what == 2:
        arrays[name] = damage_bytes(arrays[name], random, range(128))
    elif what == 3:
        return _lie_about_sizes(_write_archive(arrays, zipfile.ZIP_DEFLATED), random)
    elif what == 4:
        return _bomb(random.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)))
    elif what == 5:
        odd = random.choice(
            (
                _objects(),
                np.array(5),
                np.zeros((ROWS, 4), complex),
                np.full((ROWS, 4), np.nan),
                np.full(ROWS, 1e300),
                np.array([2**63 - 1, -1] * 20),
                np.array([2**64 - 1] * ROWS, np.uint64),
                np.array(["\x1b[2J", "b"] * 20),
                np.zeros((ROWS, 4), "M8[s]"),
                np.zeros((0, 4)),
            )
        )
        arrays[name] = _write_array(odd)
    archive = _write_archive(arrays, random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    return damage_bytes(archive, random, _records(archive)) if what in (6, 7) else archive


def _objects() -> np.ndarray:
    return np.array([None, "a", {}, 1] * 10, dtype=object)


def _write_array(values: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values, allow_pickle=True)
    return stream.getvalue()


def write_header(text: str) -> bytes:
    """Return the beginning of a `.npy` file whose header is any text."""
    header = text.encode("latin-1", "replace")
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) % 65536) + header


def _write_archive(arrays: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in arrays.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), content, method)
    return stream.getvalue()


def _lie_about_sizes(archive: bytes, random: Random) -> bytes:
    """Return the archive with another length of a member in its list of members."""
    changed = bytearray(archive)
    place = random.choice([i for i in _records(archive) if changed[i : i + 4] == b"PK\x01\x02"])
    for offset in random.choice(((24,), (20,), (20, 24), (42,))):
        lie = random.choice((0, 1, 100, 2**20, 2**31 - 1, 2**32 - 2))
        changed[place + offset : place + offset + 4] = struct.pack("<I", lie)
    return bytes(changed)


def _records(archive: bytes) -> list[int]:
    """Return where the records of a zip file begin."""
    return [i for i in range(len(archive) - 3) if archive[i : i + 2] == b"PK" and archive[i + 2] < 8] or [0]


@cache
def _bomb(method: int) -> bytes:
    """Return an archive of a few kilobytes or megabytes that unpacks to very many zeros."""
    count = 80_000_000
    header = write_header(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({count // 4}, 4)}}")
    return _write_archive({"x": header + bytes(count), "y": _write_array(_labels())}, method)


# ---- tables


def _draw_name(random: Random) -> str:
    name = random.choice(("a", "client 1", "b", *TEXTS[:40], *CONTROLS, *MARKS))
    return name.replace("\x00", "")


def _make_csv(random: Random) -> bytes:
    names = ["a", "b", "label"]
    if random.random() < 0.4:
        names.append(random.choice(("client", "split", "group", "segment", "id", *TEXTS[:20], *CONTROLS)))
    separator = random.choice((",", ",", ",", ";", "\t"))
    rows = [[str(i), str(i * 7 % 5), str(i % 2), f"c{i % 3}"][: len(names)] for i in range(ROWS)]
    for _ in range(random.choice((0, 1, 1, 3))):
        row = random.choice(rows)
        row[random.randrange(len(row))] = random.choice((*NUMBERS, *TEXTS, *CONTROLS, *MARKS))
    text = "\n".join(separator.join(row) for row in [names, *rows]) + "\n"
    if random.random() < 0.5:
        text = damage(text, random)
    content = text.encode("utf-8", "surrogatepass")
    return damage_bytes(content, random) if random.random() < 0.3 else content


def _make_parquet(random: Random) -> bytes:
    columns = {
        "a": range(ROWS),
        "b": [i * 0.5 for i in range(ROWS)],
        "label": [i % 2 for i in range(ROWS)],
        random.choice(("client", "x", "c")): [random.choice(("u", "v", _draw_name(random))) for _ in range(ROWS)],
    }
    if random.random() < 0.2:
        columns["x"] = random.choice(
            ([[1, 2]] * ROWS, [[1], [1, 2]] * 20, [None] * ROWS, [b"a"] * ROWS, [{"a": 1}] * ROWS)
        )
    stream = io.BytesIO()
    pl.DataFrame(columns, strict=False).write_parquet(
        stream, compression=random.choice(("uncompressed", "zstd", "snappy"))
    )
    content = stream.getvalue()
    footer = struct.unpack("<I", content[-8:-4])[0]
    end = range(len(content) - footer - 8, len(content))
    return damage_bytes(content, random, end) if random.random() < 0.8 else content
