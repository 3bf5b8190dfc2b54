"""A user's own data: files and folders, read into plain columns."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, Literal
from zipfile import ZipFile, ZipInfo

import numpy as np
import polars as pl
from numpy.typing import NDArray

from coterie.clients.data.read import hub, images, storage
from coterie.clients.data.read.columns import (
    PER_SAMPLE,
    USUAL,
    Columns,
    Named,
    check_lengths,
    find_mask,
    join_mask,
    make_columns,
    pick_roles,
    sort_places,
)
from coterie.clients.data.read.tables import (
    join_tables,
    read_csv,
    read_csv_table,
    read_header,
    read_parquet,
    without_counters,
)
from coterie.errors import BadInput, count_of, nearest_first, shorten

ENDINGS = (".csv", ".npz", ".parquet")
SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods")
ACCEPTED = "a .csv, .npz or .parquet file, a folder of them, or a folder of images"


def read_columns(path: Path, labelled: bool = True, named: Named = USUAL) -> Columns:
    """Read a file; or a folder of files, each of which is one client unless they have a client column.

    A folder may also hold images (`images.read_images`), or be what `datasets.save_to_disk` wrote. Where data need
    not be `labelled`, their labels are None if there are none.

    Raises:
        BadInput: the path is missing, of an unknown kind, damaged, or lacks features or labels.
    """
    if not path.is_dir():
        return without_counters([_read_file(_existing(path), labelled, named)])[0]
    if is_saved_dataset(path):
        return hub.read_saved(path, labelled, named)
    if members := _members(path):
        files = without_counters([_read_file(file, labelled, named) for file in members])
        pooled = pool(str(path), files)
        if passed_over := [file for file in _visible(path) if file not in members and file.is_file()]:
            names = shorten([file.name for file in passed_over])
            note = f"not read: {names} in {path}; a client's file must be .csv, .npz or .parquet"
            pooled = replace(pooled, notes=(*pooled.notes, note))
        if named.asks and all(file.users is None for file in files) and (place := find_places(path)):
            note = (
                f"each file in {path} is one client; if that is right, set split=by-user, and if column {place!r} "
                f"names the clients, set client={place}"
            )
            pooled = replace(pooled, notes=(*pooled.notes, note))
        return pooled
    if arrays := _array_files(path):
        return _columns_of(path, {name: _read_array(file) for name, file in arrays.items()}, labelled, named)
    return images.read_images(path, labelled, named)


def check_path(path: Path, labelled: bool = True, named: Named = USUAL) -> list[str]:
    """What is wrong with a path, from names and headers alone."""
    try:
        names_clients(path, named, labelled)
    except BadInput as error:
        return error.problems
    return []


def names_clients(path: Path, named: Named = USUAL, labelled: bool = False) -> bool:
    """Return whether data say who each sample belongs to; only headers are read.

    Raises:
        BadInput: the path is missing, of an unknown kind, damaged, or lacks features or labels.
    """
    if not path.is_dir():
        return _name_roles(_existing(path), labelled, named)["client"] is not None
    if is_saved_dataset(path):
        return hub.names_clients(path, named)
    if members := _members(path):
        faults = {}
        for file in members:
            try:
                _name_roles(file, labelled, named)
            except BadInput as error:
                faults[file.name] = error
        if faults:
            first, count = next(iter(faults.values())), f"{len(faults)} of {count_of(len(members), 'file')}"
            said, few = [first.problems, first.told], 2 * len(faults) < len(members)
            if few:  # then no setting is at fault, whatever the advice says
                said = [[text.partition("; ")[0] for text in texts] for texts in said]
            if few or len(faults) > 1:
                more = f"{count} in {path} cannot be read, mend them or move them away: {shorten([*faults])}"
                said = [[*texts, more] for texts in said]
            raise BadInput(*said)
        return True
    if arrays := _array_files(path):
        return _keys(list(arrays), path, labelled, named)[1]["client"] is not None
    return images.names_clients(path, labelled, named)


def find_places(path: Path) -> str | None:
    """Return a column of a table, or of a folder's tables, that might name the clients.

    Of each file the first rows are looked at. None where there is no such column, where each file has one value of
    it, or where it has another value in each row. Of several columns, the first of `columns.PLACES`.
    """
    files = _members(path) if path.is_dir() else [path]
    tables = [file for file in files if file.suffix != ".npz"]
    heads = [
        read_csv_table(f, HEADER_ROWS) if f.suffix == ".csv" else pl.scan_parquet(f).head(HEADER_ROWS).collect()
        for f in tables
    ]
    names = sort_places(heads[0].columns) if heads else []
    return next(
        (n for n in names if any(n in head.columns and 1 < head[n].n_unique() < head.height for head in heads)),
        None,
    )


def _existing(path: Path) -> Path:
    """Return the path of a file that may be read.

    Raises:
        BadInput: it is not there, or of an unknown kind.
    """
    if not path.is_file():
        raise BadInput(f"data = {str(path)!r} is no file or folder; give {ACCEPTED}")
    if path.suffix not in ENDINGS:
        saved = "; save it as CSV" if path.suffix.lower() in SPREADSHEETS else ""
        raise BadInput(
            f"data = {str(path)!r} ends in {path.suffix or 'nothing'!r}; it must be a .csv, .npz or .parquet file"
            f"{saved}"
        )
    return path


def list_names(path: Path) -> list[str]:
    """Return what the columns or arrays of a file are called."""
    if path.suffix != ".npz":
        return list(_schema(path))
    with _archive(path) as members:
        return list(members)


def find_unkept(path: Path, names: Sequence[str]) -> list[str]:
    """Return why columns of data cannot be kept beside what is made of them, one sentence each."""
    files = column_files(path)
    if names and not files:
        return [f"{path} has no named columns, so that none can be kept; leave {shorten(names)} out"]
    found = []
    for file in files if names else []:
        there = list_names(file)
        found += [
            f"column {name!r} cannot be kept: {file} has none of that name; its columns: "
            f"{shorten(nearest_first(name, there))}"
            for name in names
            if name not in there
        ]
    return found


def read_kept(path: Path, columns: Columns, names: Sequence[str], named: Named = USUAL) -> pl.DataFrame:
    """Return what says which sample is which: whose it is, under the name of that column, and the columns `names`.

    Values of a `.csv` file are the texts that stand there.

    Args:
        path: a file or a folder.
        columns: what was read of it, whose rows these are.
        names: columns that `find_unkept` finds nothing wrong with.
        named: as for `read_columns`.

    Raises:
        BadInput: a file is damaged, or an array of one of these names has several entries a sample.
    """
    files = column_files(path)
    clients = [_name_roles(file, labelled=False, named=named)["client"] for file in files]
    client = clients[0] if files else None  # files may write it in other letters
    tables = []
    for file, own in zip(files, clients, strict=True):
        wanted = list(dict.fromkeys(name for name in (own, *names) if name is not None))
        table = _read_as_written(file, wanted)
        tables.append(table if own is None or client is None else table.rename({own: client}))
    table = pl.concat(tables, how="vertical_relaxed") if tables else pl.DataFrame()
    if client is not None or columns.users is None:
        return table
    return pl.DataFrame({"client": columns.users, **table.to_dict()})


def column_files(path: Path) -> list[Path]:
    """Return the files of data that have named columns; empty for other data."""
    if path.is_dir():
        return [] if is_saved_dataset(path) else _members(path)
    return [path] if path.suffix in ENDINGS else []


def _read_as_written(path: Path, names: Sequence[str]) -> pl.DataFrame:
    if path.suffix == ".csv":
        return read_csv_table(path, texts=names).select(names)
    if path.suffix == ".parquet":
        table = pl.read_parquet(path, columns=list(names))
        for name, kind in table.schema.items():
            if kind.is_nested() or kind in (pl.Binary, pl.Object):
                raise BadInput(f"{path}: column {name} is of type {kind}; to be kept it needs one value a sample")
        return table
    held = {name: array for name, array in read_arrays(path).items() if name in names}
    if wide := [name for name, array in held.items() if array.ndim != 1]:
        raise BadInput(f"{path}: {wide[0]} has shape {held[wide[0]].shape}; to be kept it needs one entry a sample")
    return pl.DataFrame(held)


def is_saved_dataset(path: Path) -> bool:
    """Return whether a folder is what `datasets.save_to_disk` wrote."""
    return any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))


_DAMAGE = (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What NumPy and zipfile raise on files that are cut, altered, encrypted or something else altogether."""


@contextmanager
def _archive(path: Path) -> Iterator[dict[str, tuple[ZipFile, ZipInfo]]]:
    """Open a `.npz` file and give its arrays by name; none is read yet.

    Raises:
        BadInput: it says that far more is in it than any compression leaves.
        zipfile.BadZipFile: it is no archive.
    """
    with ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > max(ALWAYS_UNPACKED, MOST_COMPRESSED * path.stat().st_size):
            raise BadInput(f"{path} would unpack to {unpacked:,} bytes; save it without compression")
        arrays = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        yield {member.filename.removesuffix(".npy"): (archive, member) for member in arrays}


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of a `.npz` file; pickled objects are refused.

    Raises:
        BadInput: the file is damaged, or holds pickled objects.
    """
    try:
        with _archive(path) as members:
            return {name: _read_member(path, *member) for name, member in members.items()}
    except BadInput:
        raise
    except _DAMAGE as error:
        raise BadInput(_unreadable(path, error)) from None


ALWAYS_UNPACKED = 1 << 26
"""Bytes of an archive's arrays that are unpacked however small the archive is."""

MOST_COMPRESSED = 200
"""How many times an archive is unpacked beyond that; samples that one can learn from shrink less."""

PIECE_BYTES = 1 << 20
"""Bytes of a member that are read at once."""


def _read_member(path: Path, archive: ZipFile, member: ZipInfo) -> NDArray[Any]:
    """Return one array; of a large one that is not compressed, as a mapping of the file, which is not writable.

    Memory is taken only where the header, the list of members and the file agree on how much it is.
    """
    with archive.open(member) as stream:
        shape, by_columns, kind, size = _read_array_header(stream)
        begin = stream.tell()
        stored = member.compress_type == zipfile.ZIP_STORED
        if begin + size != member.file_size or (stored and member.compress_size != member.file_size):
            raise ValueError("the header says another length")
        axes = shape[::-1] if by_columns else shape
        if stored and size and storage.is_large(size):
            found = np.asarray(np.memmap(path, kind, "r", _find_data(path, member) + begin, axes))
        else:
            found = storage.allocate(axes, kind)
            raw = found.reshape(-1).view(np.uint8) if size else np.empty(0, np.uint8)
            for start in range(0, size, PIECE_BYTES):
                raw[start : start + PIECE_BYTES] = np.frombuffer(stream.read(PIECE_BYTES), np.uint8)
        while stream.read(PIECE_BYTES):
            pass  # at the end the checksum is compared
        return found.transpose() if by_columns else found


def _read_array_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, whether columns come first, type, and bytes, as it stands at the beginning of a `.npy` file.

    Raises:
        ValueError: there is no such header, or the array would hold pickled objects.
    """
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_columns, kind = read(stream)
    except Exception as error:  # noqa: BLE001  # what NumPy and the parser of Python behind it raise is a dozen kinds
        raise ValueError(f"no header of an array ({type(error).__name__})") from None
    if kind.hasobject:
        raise ValueError("the array holds pickled objects")
    if min(shape, default=0) < 0:
        raise ValueError("a length is negative")
    return shape, by_columns, kind, prod(shape) * kind.itemsize


def _find_data(path: Path, member: ZipInfo) -> int:
    """Return where the data of a member begin in its archive: behind a header, its name and a further field."""
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)
        name, further = struct.unpack("<HH", file.read(4))
    return int(member.header_offset) + 30 + int(name) + int(further)


def _unreadable(path: Path, error: BaseException) -> str:
    if "pickle" in str(error) and "object" in str(error).lower():
        return f"{path} holds pickled objects, which are never loaded; save plain arrays of numbers or strings"
    return f"{path} is damaged or not what its name says ({type(error).__name__}); replace it"


def _members(folder: Path) -> list[Path]:
    return [file for file in _visible(folder) if file.suffix in ENDINGS and file.is_file()]


def _visible(folder: Path) -> list[Path]:
    """Return what a folder holds but for what a system hides there, such as .DS_Store and ._north.csv."""
    return sorted((file for file in folder.iterdir() if not file.name.startswith(".")), key=_by_name)


def _array_files(folder: Path) -> dict[str, Path]:
    """Return the files of a folder that holds one array each, by the names of the arrays."""
    return {file.stem: file for file in sorted(folder.glob("*.npy"), key=_by_name)}


def _by_name(file: Path) -> str:
    """Sort files alike everywhere: paths of Windows compare without regard to case."""
    return file.name


def _read_array(path: Path) -> NDArray[Any]:
    """Return the array of a `.npy` file; a large one as a mapping of the file, which is not writable."""
    try:
        with path.open("rb") as stream:
            *_, size = _read_array_header(stream)
            if stream.tell() + size > path.stat().st_size:
                raise ValueError("the header says another length")
        mode: Literal["r"] | None = "r" if storage.is_large(path.stat().st_size) else None
        return np.asarray(np.load(path, mode, allow_pickle=False))
    except _DAMAGE as error:
        raise BadInput(_unreadable(path, error)) from None


def _read_file(path: Path, labelled: bool, named: Named) -> Columns:
    if path.suffix == ".npz":
        return _columns_of(path, read_arrays(path), labelled, named)
    return (read_csv if path.suffix == ".csv" else read_parquet)(path, labelled, named)


HEADER_ROWS = 100
"""Rows of a `.csv` file by which its columns' types are known before all of it is read."""


def _schema(path: Path) -> dict[str, Any]:
    return dict(read_csv_table(path, HEADER_ROWS).schema if path.suffix == ".csv" else pl.read_parquet_schema(path))


def _name_roles(path: Path, labelled: bool, named: Named) -> Mapping[str, str | None]:
    """Return what a file calls the roles beside its features; its data are not read.

    Raises:
        BadInput: it does not open, or does not name its features and labels.
    """
    try:
        if path.suffix == ".npz":
            with _archive(path) as members:
                return _keys(list(members), path, labelled, named)[1]
        return read_header(_schema(path), str(path), labelled, named).roles
    except BadInput:
        raise
    except (*_DAMAGE, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise BadInput(_unreadable(path, error)) from None


def _keys(
    names: list[str], path: Path, labelled: bool, named: Named
) -> tuple[str, dict[str, str | None], list[str]]:
    """The name of the features, those of the roles beside them, and arrays that are neither."""
    features = named.pick("features", names, str(path), needed=True)
    assert features is not None
    roles = pick_roles(names, str(path), labelled, named)
    roles["columns"] = named.pick("columns", names, str(path), needed=False)
    known = {features, find_mask(features, names), *roles.values()}
    return features, roles, [name for name in names if name not in known]


def _is_text(values: NDArray[Any]) -> bool:
    """Whether an array holds no text with a code that no character has, such as half of a pair."""
    if values.dtype.kind != "U" or not values.dtype.itemsize:
        return True
    points = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="))).reshape(-1).view(np.uint32)
    return not ((points > 0x10FFFF) | ((points >= 0xD800) & (points <= 0xDFFF))).any()


def _columns_of(path: Path, held: dict[str, NDArray[Any]], labelled: bool, named: Named) -> Columns:
    """Return named arrays as columns."""
    key, roles, others = _keys(list(held), path, labelled, named)
    if broken := [name for name, values in held.items() if not _is_text(values)]:
        raise BadInput(
            f"{path}: the array {broken[0]} holds a text that is not valid Unicode; save it again with valid texts"
        )
    names = None if roles["columns"] is None else held[roles["columns"]]
    features: NDArray[Any] | pl.DataFrame = held[key]
    if (mask := find_mask(key, held)) is not None:
        features = join_mask(held[key], held[mask], str(path))
    if names is not None:
        are_named = held[key].shape[1:] == names.shape and len(set(names.tolist())) == len(names)
        if not are_named or held[key].dtype.kind not in "biufUS":
            raise BadInput(
                f"{path}: {roles['columns']} has shape {names.shape} and {key} {held[key].shape}, of type "
                f"{held[key].dtype}; it must name each feature once, and these must be numbers or text"
            )
        features = pl.DataFrame(held[key], schema=[str(name) for name in names])
    return make_columns(str(path), features, roles, held, key, others)


def pool(where: str, files: list[Columns]) -> Columns:
    """Put files or clients one after the other; a file without a client column is a client.

    Raises:
        BadInput: they do not go together.
    """
    if all(file.users is None for file in files):
        files = [_as_client(file, Path(file.where).stem) for file in files]
    return replace(_stack(files), where=where)


def _as_client(file: Columns, name: str) -> Columns:
    """Return the samples as those of one client, who numbers its own segments."""
    segments = None if file.segments is None else np.array([f"{name} {segment}" for segment in file.segments])
    return replace(file, users=np.full(len(file.features), name), segments=segments)


def join_tests(columns: Columns, tests: Columns) -> Columns:
    """Return training samples, whose split is open where they do not say it, and behind them samples to test with.

    Raises:
        BadInput: the two do not go together, or the samples to test with say that they are for something else.
    """
    said = tests.given_split
    if said is not None and ((said == 0) | (said == 1)).any():
        row = int(np.argmax((said == 0) | (said == 1)))
        raise BadInput(
            f"{tests.where}: split in row {row} says that it is not for testing, though all samples of "
            "data.test_path are; leave split out there"
        )
    if isinstance(tests.features, pl.DataFrame):
        left_out = [name for name in columns.ignored or () if name in tests.features.columns]
        tests = replace(tests, features=tests.features.drop(left_out))
    if columns.given_split is None:
        columns = replace(columns, given_split=np.full(len(columns.features), -1, np.int8))
    # A row is told of by its place in both files, not by its line in one of them.
    return _stack([columns, replace(tests, given_split=np.full(len(tests.features), 2, np.int8), lines=None)])


def _stack(parts: list[Columns]) -> Columns:
    """Return several parts of data one behind the other, called as the first.

    Raises:
        BadInput: they do not go together.
    """
    for other in parts[1:]:
        _check_alike(parts[0], other)
    for part in parts:
        check_lengths(part)
    tables = [(part.where, part.features) for part in parts if isinstance(part.features, pl.DataFrame)]
    beside: dict[str, Any] = {name: _joined([getattr(part, name) for part in parts]) for name in PER_SAMPLE}
    return replace(
        parts[0],
        features=join_tables(tables) if tables else storage.join([np.asarray(part.features) for part in parts]),
        notes=tuple(note for part in parts for note in part.notes),
        ignored={name: why for part in parts for name, why in (part.ignored or {}).items()},
        **beside,
    )


def _joined(arrays: list[NDArray[Any] | None]) -> NDArray[Any] | None:
    there = [array for array in arrays if array is not None]
    return np.concatenate(there) if len(there) == len(arrays) else None


def _check_alike(first: Columns, other: Columns) -> None:
    """Refuse two parts of data that do not go together.

    Raises:
        BadInput: one has named columns or another role, and the other has not; or shapes or types differ.
    """
    for field, what in ALIKE.items():
        own, others = (_describe(getattr(part, field), field) for part in (first, other))
        if own != others:
            raise BadInput(f"{other.where} has {what}: {others}, and {first.where} has {own}; make them alike")


def _describe(values: NDArray[Any] | pl.DataFrame | None, field: str) -> str:
    """Say of a part of data what must be the same in all others."""
    if values is None:
        return "none"
    if isinstance(values, pl.DataFrame):
        return "named columns"
    kind = "numbers" if values.dtype.kind in "biuf" else "text"
    shape = f"of shape {values.shape[1:]} each"
    return f"{kind} {shape}" if field in ("features", "labels") else shape


ALIKE = {
    "features": "features",
    "labels": "labels",
    "users": "a client column",
    "given_split": "a split",
    "segments": "segments",
    "groups": "a group",
}
"""Fields of `Columns` in which parts that are put together must be alike, and what a message calls them."""
