"""Every default is that of the method's page in docs/methods/."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.catalogue import Entry
from coterie.methods import DCPFL, FLIS, FedTSDP, Method, PerFedAvg
from tests.federated import planted, same, train
from website.methods import own_methods


@pytest.mark.parametrize("entry", own_methods(), ids=lambda entry: entry.name)
def test_defaults_are_what_a_method_has_that_is_made_without_any(entry: Entry) -> None:
    """As they are listed and as they are bound; tests/test_method_pages.py holds the pages' tables to them."""
    assert not any(setting.required for setting in entry.settings)
    assert entry.bind({}) == vars(entry.target()) == {setting.name: setting.default for setting in entry.settings}


UNSET: list[tuple[Method[Any], Method[Any], Method[Any]]] = [
    (FedTSDP(h=0.0), FedTSDP(h=0.0, shared=2.0), FedTSDP(h=0.0, shared=1.5)),  # all layers, of which there are 2
    (DCPFL(dynamic=False), DCPFL(dynamic=False, cut=0.8), DCPFL(dynamic=False, cut=0.7)),  # a fixed cut
    (PerFedAvg(), PerFedAvg(alpha=0.1, beta=0.1), PerFedAvg(alpha=0.1, beta=0.09)),  # 6.9: the learning rate
    (PerFedAvg(), PerFedAvg(alpha=0.1), PerFedAvg(alpha=0.09)),
    (FLIS("hc"), FLIS("hc", join="hierarchy", threshold=0.45), FLIS("hc", join="hierarchy", threshold=0.5)),
    (FLIS("hc", "threshold"), FLIS("hc", "threshold", threshold=0.96), FLIS("hc", "threshold", threshold=0.5)),
    (FLIS(), FLIS(join="threshold", threshold=0.4), FLIS(threshold=0.39)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("unset", "written", "other"), UNSET, ids=[repr(case[0]) for case in UNSET])
def test_settings_that_are_left_out_mean_what_the_pages_say(
    unset: Method[Any], written: Method[Any], other: Method[Any]
) -> None:
    """The same bits as with the value written out, and other bits with one close to it."""
    federation = planted("feature", sizes=[40 + 3 * i for i in range(20)])
    run, as_written, differently = (train(method, federation, 6) for method in (unset, written, other))
    assert same(run.state, as_written.state)
    assert not same(run.state, differently.state)


def test_public_samples_that_methods_ask_for() -> None:
    """FedTSDP's is the whole official test set, 10,000 images (docs/methods/fedtsdp.md, D21); FLIS's 2,500."""
    assert FedTSDP().needs.public == 10_000
    assert FLIS().needs.public == 2500
