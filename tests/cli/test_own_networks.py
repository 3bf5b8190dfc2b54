"""Networks of one's own through the command line: what they may be, and what is refused before any work."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from tests.commandline import Terminal

OWN = "network.name=tests.own_networks:"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ([OWN + "nothing"], r"own_networks:nothing .*int; .*torch\.nn\.Module"),
        ([OWN + "broken"], "own_networks:broken .*OSError: no weights here"),
        ([OWN + "vectors"], "own_networks:vectors .*8x8x1"),
        ([OWN + "thousand"], "1000 .*10"),
        ([OWN + "all_frozen"], "requires_grad"),
        ([OWN + "ViT", 'network.head=["classifier"]'], r"network\.head = 'classifier'"),
        ([OWN + "Recurrent", "network.output=logits"], r"network\.output = 'logits'"),
        (["network.name=mlp", "network.output=logits"], r"network\.output = 'logits' .*mlp"),
        ([OWN + "ViT", "network.start=pickle.pt"], r"pickle\.pt"),
        ([OWN + "ViT", "network.start=other.pt"], r"other\.pt.*token, positions"),
        ([OWN + "ViT", "network.start=shapes.pt"], r"shapes\.pt.*head\.bias .*3, not 10"),
        (["network.name=given:my.Net@0123"], r"my\.Net.*Python"),
    ],
)
def test_what_is_refused(
    settings: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tests.own_networks import ViT

    monkeypatch.chdir(tmp_path)
    torch.save({"fc.weight": torch.zeros(3, 3)}, "other.pt")
    torch.save(ViT(10).state_dict() | {"head.bias": torch.zeros(3)}, "shapes.pt")
    torch.save(Path("a"), "pickle.pt")
    words = [word for setting in settings for word in ("--set", setting)]
    found = Terminal(capsys)("run", "fedavg", "--clients", "4", "--workers", "1", "--quiet", *words)
    assert found.code == 2, found
    assert re.search(sentence, " ".join(found.err.split())), found.err
    assert "Traceback" not in found.err
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


@pytest.mark.medium
def test_a_network_may_know_more_tokens_than_the_data_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tokenizer's vocabulary is larger than the texts of a federation; a smaller one is refused."""
    monkeypatch.chdir(tmp_path)
    terminal = Terminal(capsys)
    tokens = np.random.default_rng(0).integers(0, 9, (80, 7))
    np.savez("texts.npz", tokens=tokens[:, :-1], y=tokens[:, 1:], client=np.repeat(list("abcd"), 20))
    data = ("fedavg", "--data", "texts.npz", "--set", "task.name=language")
    words = (*data, "--network", "tests.own_networks:NextToken", "--workers", "1")
    assert terminal("explain", *words, "--set", "network.vocabulary=4000").code == 0
    run = ("run", *words, "--rounds", "2", "-q", "--baselines", "none")
    assert terminal(*run, "--name", "large", "--set", "network.vocabulary=4000").code == 0
    # At first all tokens are about as likely.
    assert 100 < coterie.load("large").summary["perplexity"] < 16_000
    predict = ("predict", "large", "--data", "texts.npz", "--client", "a", "--out", "p.npz")
    assert terminal(*predict, "--allow", "tests.own_networks:NextToken").code == 0
    with np.load("p.npz") as held:
        assert held["predicted"].shape == (80, 6)
        assert 0 <= held["predicted"].min() <= held["predicted"].max() < 4000
    code, _, said = terminal(*run, "--name", "small", "--set", "network.vocabulary=5")
    assert code == 2
    assert len(said.splitlines()) == 1
    assert "9" in said
