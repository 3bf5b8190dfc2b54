"""Networks of one's own through the command line: what they may be, and what is refused before any work."""

from __future__ import annotations

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
        ([OWN + "nothing"], "network tests.own_networks:nothing gives int; it must give a torch.nn.Module"),
        ([OWN + "broken"], "network tests.own_networks:broken cannot be built: OSError: no weights here"),
        ([OWN + "vectors"], "network tests.own_networks:vectors cannot take samples of 8x8x1"),
        ([OWN + "thousand"], "gives 1000 outputs a sample, and the data need 10; give the network as many"),
        ([OWN + "all_frozen"], "every parameter of the network is frozen; at least one must have requires_grad"),
        ([OWN + "ViT", 'network.head=["classifier"]'], "network.head = 'classifier' is no module"),
        ([OWN + "Recurrent", "network.output=logits"], "network.output = 'logits' is no output"),
        (["network.name=mlp", "network.output=logits"], "network.output = 'logits' is not possible: mlp gives one"),
        ([OWN + "ViT", "network.start=pickle.pt"], "is damaged, or holds more than weights"),
        ([OWN + "ViT", "network.start=other.pt"], "does not fit the network: it lacks token, positions"),
        ([OWN + "ViT", "network.start=shapes.pt"], "head.bias is 3, not 10"),
        (["network.name=given:my.Net@0123"], "was given in Python and cannot be built again from its name"),
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
    assert sentence in " ".join(found.err.split()), found.err
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
