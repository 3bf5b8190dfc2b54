"""What is refused of a network of one's own, in one sentence, before any work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

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
