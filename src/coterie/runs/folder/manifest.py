"""The digests of a run's files: they show damage that leaves a file readable, as one bit of a number.

A new digest is listed beside the former one before its file is put into place. So the rename that puts it there
makes the digest the valid one, and a kill at any moment leaves a file that is listed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from coterie.runs.folder.files import damaged_file, encode_json, missing_file, read_file, read_json, write_whole

NAME = "manifest.json"

_ABSENT = ""
"""In the place of a digest: there is no such file."""

_State = tuple[int, int, int]
_checked: dict[str, tuple[_State, Collection[str]]] = {}
"""Files that are sound, by path: as they were when this process read them, so that each is read once."""


class Manifest:
    """The list of digests in one run folder.

    Args:
        folder: the run's.
        is_required: says whether the run is of a version that keeps a list; without one nothing is checked.
    """

    def __init__(self, folder: Path, is_required: Callable[[], bool]) -> None:
        self._folder = folder
        self._path = folder / NAME
        self._is_required = is_required
        self._known: tuple[_State, dict[str, list[str]]] | None = None

    def exists(self) -> bool:
        """Return whether the run's files can be checked."""
        return self._path.exists() or self._is_required()

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write files of the run by name, each whole or not at all, and list their digests.

        Where there is no list, this begins one. Files that an earlier one listed are then missing from it, so that
        `check` refuses them.

        Raises:
            BadInput: the list is damaged.
        """
        self._list({name: digest(content) for name, content in files.items()})
        for name, content in files.items():
            write_whole(self._folder / name, content)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files of the run, where they are there.

        Raises:
            BadInput: the list is damaged or missing.
        """
        there = [name for name in names if (self._folder / name).exists()]
        if there and self.exists():
            self._list(dict.fromkeys(there, _ABSENT))
        for name in there:
            (self._folder / name).unlink(missing_ok=True)

    def settle(self) -> None:
        """List the files as they are alone: what was before them is valid no more.

        Raises:
            BadInput: a file or the list is damaged or missing.
        """
        listed = self._read()
        if listed is None:
            return
        for name in listed:
            self.check(name)
        now = {
            name: digests if len(digests) == 1 else [self._find_digest(name)] for name, digests in listed.items()
        }
        if now != listed:
            self._save(now)

    def check(self, name: str) -> None:
        """Check that a file is as the run wrote it, or is not there where the run wrote none.

        Raises:
            BadInput: it is damaged or missing, or the list itself is.
        """
        path = self._folder / name
        while True:
            listed = self._read()
            if listed is None:
                return
            allowed = listed.get(name, [_ABSENT])
            state = _find_state(path)
            if state is not None and _checked.get(str(path)) == (state, allowed):
                return
            if self._find_digest(name) in allowed:
                if state is not None:
                    _checked[str(path)] = state, allowed
                return
            if self._read() == listed and _find_state(path) == state:  # no other process has just written it
                if state is None:
                    raise missing_file(path, f"{NAME} lists it")
                raise damaged_file(path, ValueError(f"its digest is not the one in {NAME}"))

    def _list(self, digests: Mapping[str, str]) -> None:
        """List digests of files that are about to be written, beside those of the files that are there."""
        listed = (self._read() if self._path.exists() else None) or {}
        former = {name: listed.get(name) or [self._find_digest(name)] for name in digests}
        self._save(
            {**listed, **{name: list(dict.fromkeys([found, *former[name]])) for name, found in digests.items()}}
        )

    def _save(self, listed: dict[str, list[str]]) -> None:
        write_whole(self._path, encode_json({"files": listed, "digest": _digest_list(listed)}))

    def _read(self) -> dict[str, list[str]] | None:
        """Return the digests that each file may have; None for a run without a list."""
        state = _find_state(self._path)
        if state is None:
            if self._is_required():
                raise missing_file(self._path, "the run's files cannot be checked without it")
            return None
        if self._known is None or self._known[0] != state:
            kept = read_json(self._path)
            listed: Any = None if kept is None else kept.get("files")
            if kept is None or not isinstance(listed, dict) or kept.get("digest") != _digest_list(listed):
                raise damaged_file(self._path, ValueError("its contents do not match its digest"))
            self._known = state, listed
        return {name: list(digests) for name, digests in self._known[1].items()}

    def _find_digest(self, name: str) -> str:
        try:
            return digest(read_file(self._folder / name))
        except FileNotFoundError:
            return _ABSENT
        except OSError as error:
            raise damaged_file(self._folder / name, error) from None


def digest(content: bytes) -> str:
    """Return the digest of a file."""
    return blake2b(content, digest_size=16).hexdigest()


def _digest_list(listed: Mapping[str, Any]) -> str:
    return digest(json.dumps(listed, sort_keys=True).encode())


def _find_state(path: Path) -> _State | None:
    """Return what tells a file from another of its name; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
