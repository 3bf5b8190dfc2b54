"""Shakespeare by role: which windows a role has, what they hold, and that runs of text stay together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from coterie.clients.data import build, load
from coterie.clients.data.read.shakespeare import MIN_CHARACTERS, RUN, VOCABULARY, WINDOW, cut_windows, encode
from coterie.errors import BadInput

SPEECH = "To be, or not to be: that is the question:\nWhether 'tis nobler in the mind to suffer\n"


def decode(values: np.ndarray) -> str:
    return "".join(VOCABULARY[value] for value in values)


def test_windows_hold_every_character_of_a_role() -> None:
    speeches = [f"{number} {SPEECH}" for number in range(30)]
    inputs, targets, users, names, runs = cut_windows([("h: HAMLET", speeches), ("h: GHOST", ["Mark me.\n"])])
    assert names == ("h: HAMLET",)
    assert inputs.shape == targets.shape == (len(users), WINDOW)
    assert np.array_equal(inputs[:, 1:], targets[:, :-1])
    text = ""
    for run in np.unique(runs):
        found = ""
        for row in np.flatnonzero(runs == run):
            # The next window begins with the last character of the one before; the last one of a run earlier, so
            # that it ends where the run does.
            whole = decode(inputs[row]) + decode(targets[row])[-1]
            shared = max(length for length in range(WINDOW + 1) if found.endswith(whole[:length]))
            found += whole[shared:]
        assert len(found) >= RUN
        text += found
    assert text == "".join(speeches)


def test_a_role_of_few_characters_is_left_out() -> None:
    few, enough = "x" * (MIN_CHARACTERS - 2) + "\n", "x" * (MIN_CHARACTERS - 1) + "\n"
    assert cut_windows([("a", [few]), ("b", [enough])])[3] == ("b",)


def test_characters_have_fixed_numbers() -> None:
    assert encode("\n A~").tolist() == [0, 1, 34, 95]
    assert len(set(VOCABULARY)) == len(VOCABULARY) == 96
    with pytest.raises(BadInput, match=r"'é'.* 96 "):
        encode("caf\u00e9")


def test_a_file_that_is_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shakespeare").mkdir()
    pl.DataFrame({"play": ["a"]}).write_parquet(tmp_path / "shakespeare" / "shakespeare_lines.parquet")
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    with pytest.raises(BadInput, match="damaged"):
        load("shakespeare")


def test_roles_are_clients_and_their_runs_of_text_are_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shakespeare").mkdir()
    letters = np.random.default_rng(0).choice(list("abcdefgh "), (2, 24, 80))
    roles = enumerate(("GHOST", "HAMLET"))
    rows = [("h", role, line // 2, "".join(letters[k, line])) for k, role in roles for line in range(24)]
    table = pl.DataFrame(rows, ["play", "role", "speech", "text"], orient="row")
    table.write_parquet(tmp_path / "shakespeare" / "shakespeare_lines.parquet")
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    data = load("shakespeare")
    assert data.user_names == ("h: GHOST", "h: HAMLET")
    assert (data.outputs, data.classes, data.task.name) == (96, 0, "language")
    assert data.units is not None
    federation = build("shakespeare", "by-user", None, 0)
    assert federation.inputs.dtype == federation.labels.dtype == torch.int64
    of_window = {window.tobytes(): unit for window, unit in zip(data.inputs, data.units, strict=True)}
    train, test = (
        {of_window[w.tobytes()] for client in range(2) for w in federation.slice(client, split)[0].numpy()}
        for split in ("train", "test")
    )
    assert train
    assert test
    assert not train & test
