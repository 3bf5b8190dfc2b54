"""The items that come with the package: each can be run, and their claims are those of the printed numbers."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from coterie.errors import BadInput
from coterie.experiments.papers.item import FULL, list_items, load_item
from coterie.experiments.papers.result import judge_published
from coterie.models.deep import vgg16


def test_there_are_items_of_five_papers() -> None:
    assert {load_item(name).paper for name in list_items()} == {"FedTSDP", "FeSEM", "FedCPS", "LayerCFL", "DC-PFL"}
    assert len(list_items()) == sum(
        path.name.endswith(".toml") for path in files("coterie.experiments.papers.items").iterdir()
    )


@pytest.mark.medium
@pytest.mark.parametrize("name", list_items())
def test_an_item_can_be_run_at_every_scale(name: str, data_folder: Path, tmp_path: Path) -> None:
    item = load_item(name)
    assert {"small", "medium"} <= set(item.scales)
    for scale in item.scales:
        comparison, problems = item.comparison(scale), []
        try:
            comparison.check(tmp_path)
        except BadInput as error:
            problems = error.problems
        # Data that are fetched from a hub may be missing for the paper's own setting, and that alone.
        assert [problem for problem in problems if scale != FULL or "'hub:" not in problem] == []


@pytest.mark.parametrize("name", list_items())
def test_claims_hold_on_the_printed_numbers(name: str) -> None:
    item = load_item(name)
    for claim, links in zip(item.claims, judge_published(item), strict=True):
        if links is None:
            assert claim.published_exception is None, claim.text
        else:
            assert all(holds for _, holds in links) != bool(claim.published_exception), (claim.holds, links)


def test_the_share_of_vgg16s_convolutions_is_that_of_the_finding() -> None:
    """Which decides LayerCFL's claim of 6.47 times less computing, whatever is trained."""
    model = vgg16((32, 32, 3), 10, head="full")
    sizes = {name: weights.numel() for name, weights in model.named_parameters()}
    convolutions = sum(size for name, size in sizes.items() if name.startswith("conv"))
    said = next(claim.finding["medium"] for claim in load_item("layercfl-computing").claims if "6.47" in claim.text)
    assert f"{convolutions / 1e6:.1f} of {sum(sizes.values()) / 1e6:.1f} million parameters" in said
    assert f"which is {sum(sizes.values()) / convolutions:.1f} times" in said
    first = max(size for name, size in sizes.items() if size <= 512 * 4096 and not name.startswith("conv"))
    assert (
        f"the first dense layer alone ({first / 1e6:.1f} million, {sum(sizes.values()) / first:.0f} times)" in said
    )
