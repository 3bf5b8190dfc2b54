"""The items that come with the package: each can be run, and their claims are those of the printed numbers."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from coterie.errors import BadInput
from coterie.grouping.layers import candidates
from coterie.models.networks import build
from coterie.studies.papers import result
from coterie.studies.papers.claims import Reference, references
from coterie.studies.papers.item import FULL, list_items, load_item
from coterie.studies.papers.quantities import built_in
from coterie.studies.papers.result import judge_published

DOCS = Path(__file__).parents[3] / "docs"


def test_there_are_items_of_six_papers() -> None:
    papers = {"FedTSDP", "FeSEM", "FedCPS", "LayerCFL", "DC-PFL", "FedEM"}
    assert {load_item(name).paper for name in list_items()} == papers
    assert len(list_items()) == sum(
        path.name.endswith(".toml") for path in files("coterie.studies.papers.items").iterdir()
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


@pytest.mark.parametrize("name", list_items())
def test_a_file_says_what_a_reader_of_its_claims_needs(name: str) -> None:
    item = load_item(name)
    assert all(scale.reduces or scale.stand_in for key, scale in item.scales.items() if key != FULL)
    assert not {*item.quantities[FULL]} & {*built_in(item.metrics)}
    for claim in item.claims:
        assert claim.headline == bool(claim.why) == bool(claim.brief), claim.text
        assert len({*claim.pool}) == len(claim.pool) != 1, claim.text
        # Without a setting of its own, a quantity is of the pooled settings or of the only one there is.
        named = {reference.setting for reference in references(claim.links)}
        assert "" not in named if len(item.settings) > 1 and not claim.pool else not (claim.pool and named - {""})


def test_what_comparing_a_layer_of_vgg16_saves_is_what_is_said() -> None:
    """Which decides LayerCFL's claim of 6.47 times less computing, whatever is trained."""
    layout = build("vgg16", {"head": "full"}, (32, 32, 3), 10, 0)[1]
    sizes = {}
    for layers in ("feature_skew", "label_skew", "conv"):
        selections, chosen = candidates(layout, layers)
        sizes[layers] = list(selections.values())[chosen].size
    saved = {layers: layout.trainable.size / size for layers, size in sizes.items()}
    (claim,) = [claim for claim in load_item("layercfl-computing").claims if "6.47" in claim.text]
    said = claim.finding["large"]
    assert f"{sizes['feature_skew']:,} of {layout.trainable.size:,} parameters" in said
    assert re.search(rf"{sizes['label_skew']:,} .* {saved['label_skew']:.0f} times", said, re.DOTALL)
    assert f"{saved['conv']:.1f} times" in " ".join(said.split())
    # That is what was counted, too, and the claim is called what it is.
    counted = result.read(DOCS / "reproduction/layercfl-computing-large.json")
    means = [counted.mean_and_sd(Reference("multiplications", name, "")) for name in ("CFL", "LayerCFL")]
    (cfl, _), (own, _) = (mean for mean in means if mean is not None)
    assert cfl / own == pytest.approx(saved["feature_skew"], rel=1e-4)
    assert claim.verdict is not None
    assert claim.verdict[0] == "identity"
