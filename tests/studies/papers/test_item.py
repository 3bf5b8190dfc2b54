"""Items read from TOML: what each scale runs, and a sentence for each mistake."""

from __future__ import annotations

import re

import pytest

from coterie.errors import BadInput
from coterie.studies.papers.claims import Reference
from coterie.studies.papers.item import list_items, load_item, read_item

from .items import ITEM


def test_what_stands_at_the_top_is_the_full_scale() -> None:
    item = read_item("a-table1", ITEM)
    assert list(item.scales) == ["small", "medium", "full"]
    comparison = item.comparison("full")
    assert comparison.name == "a-table1-full"
    assert comparison.seeds == (0, 1, 2, 3, 4)
    assert [variant.name for variant in comparison.methods] == ["FedAvg", "IFCA", "FedTSDP"]
    assert [variant.name for variant in comparison.settings] == ["IID", "β = 0.2"]
    assert (comparison.measure, comparison.baseline) == ("accuracy", "FedAvg")
    # A further scale stands in its place, with a finding of its own.
    large = '[scales.large]\nreduces = "3 seeds instead of 5"\nseeds = 3\n\n[scales.medium]'
    text = ITEM.replace("[scales.medium]", large).replace(
        "findings.small", 'findings.large = "Flat"\nfindings.small'
    )
    further = read_item("a-table1", text)
    assert (list(further.scales), further.findings["large"]) == (["small", "medium", "large", "full"], "Flat")
    assert further.comparison("large").seeds == (0, 1, 2)


def test_a_scale_is_merged_key_by_key_over_the_top() -> None:
    item = read_item("a-table1", ITEM)
    cells = item.comparison("small").cells()
    assert [cell.method for cell in cells if (cell.setting, cell.seed) == ("IID", 0)] == [
        "FedAvg",
        "FedAvg+FT",
        "IFCA",
    ]
    assert {cell.seed for cell in cells} == {0, 1}
    experiment = next(cell.experiment for cell in cells if cell.method == "IFCA" and cell.setting == "β = 0.2")
    assert (experiment.data.name, experiment.data.clients) == ("digits", 6)
    assert (experiment.data.split, experiment.run.rounds) == ("dirichlet(0.2)", 2)
    assert (experiment.network.name, experiment.method.settings) == ("mlp", {"clusters": 2})
    medium = item.comparison("medium")
    assert (medium.experiment["data"]["name"], medium.experiment["network"]["name"]) == ("mnist", "cnn")
    assert len(medium.seeds) == 5


def test_fedavg_after_adaptation_is_a_row_that_an_item_may_leave_out() -> None:
    assert read_item("x", ITEM).methods == ("FedAvg", "FedAvg+FT", "IFCA", "FedTSDP")
    without = read_item("x", ITEM.replace("seeds = 5", "seeds = 5\nadapted = {}"))
    assert without.methods == ("FedAvg", "IFCA", "FedTSDP")
    assert without.comparison("small").rows == ("FedAvg", "IFCA")


def test_another_network_at_a_scale_drops_the_former_ones_settings() -> None:
    text = ITEM.replace('name = "cnn"', 'name = "cnn"\nchannels = [8, 8]')
    assert read_item("x", text).tables["full"]["experiment"]["network"] == {"name": "cnn", "channels": [8, 8]}
    assert read_item("x", text).tables["small"]["experiment"]["network"] == {"name": "mlp"}


def test_published_numbers_and_what_is_wanted() -> None:
    item = read_item("x", ITEM)
    assert item.published == {
        Reference("accuracy", "FedAvg", "IID"): 67.35,
        Reference("accuracy", "IFCA", "IID"): 70.1,
        Reference("accuracy", "FedAvg", "β = 0.2"): 60.0,
    }
    assert item.wanted_quantities() == ("accuracy", "hop")
    assert (item.unit("accuracy"), item.unit("hop")) == ("%", "")


def test_the_digest_is_of_settings_and_not_of_words() -> None:
    item = read_item("x", ITEM)
    same = read_item(
        "y", ITEM.replace("Few rounds.", "Too few rounds.").replace("IFCA is above", "IFCA lies above")
    )
    assert [same.digest(scale) for scale in same.scales] == [item.digest(scale) for scale in item.scales]
    for old, new, changed in [
        ("experiment.run.rounds = 2", "experiment.run.rounds = 3", ["small"]),
        ('data.split = "iid"', 'data.split = "primary-secondary"', ["small", "medium", "full"]),
        ('at = "max"', 'at = "min"', ["small", "medium", "full"]),
        ('measure = "accuracy"', 'measure = "macro_accuracy"', ["small", "medium", "full"]),
        ("seeds = 2", "seeds = 3", ["small"]),
    ]:
        other = read_item("x", ITEM.replace(old, new))
        assert [scale for scale in item.scales if item.digest(scale) != other.digest(scale)] == changed


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('place = "Table 1"', 'plaec = "Table 1"', "place .*missing"),
        ('place = "Table 1"', 'plaec = "Table 1"', "plaec .*place"),
        ('"hop"]', '"hopp"]', "quantity 'hopp' .*hop"),
        ("accuracy['IFCA', 'IID'] >", "accuracy['IFC', 'IID'] >", "method 'IFC' .*IFCA"),
        ("accuracy['IFCA', 'IID'] >", "accuracy['IFCA', 'II'] >", "setting 'II' .*IID"),
        ("accuracy['IFCA', 'IID'] >", "acuracy['IFCA', 'IID'] >", "quantity 'acuracy' .*accuracy"),
        ("accuracy['IFCA', 'IID'] >", "accuracy['IFCA'] >", r"setting '' .*IID, β = 0\.2"),
        ("accuracy['IFCA', 'IID'] > ", "", r"claims\.0\.holds = \"accuracy\['FedAvg', 'IID'\]\""),
        ("IFCA = 70.1", "IFC = 70.1", "method 'IFC' .*IFCA"),
        ("IFCA = 70.1", "IFCA = nan", r"published\.accuracy\.IID\.IFCA = nan"),
        ('at = "max"', "", r"quantities\.hop = "),
        ('at = "max"', 'at = "most"', r"quantities\.hop\.at = 'most' .*'last', 'first', "),
        ('log = "hopkins"', 'measure = "acuracy"', "measure 'acuracy' .*accuracy"),
        ("scales.medium", "scales.big", "scale 'big' .*full, large, medium, small"),
        ("seeds = 2", "sedes = 2", r"scales\.small\.sedes .*seeds"),
        ('"IFCA"]', '"IFC"]', "method 'IFC' .*IFCA"),
        ("methods.IFCA.method", "methods.IFAC.method", "method 'IFAC' .*IFCA"),
        ('where = "Figure 2"', 'where = "Figure 2"\npool = ["IID", "II"]', "setting 'II' .*IID"),
    ],
)
def test_a_sentence_for_each_mistake(old: str, new: str, said: str) -> None:
    assert old in ITEM
    with pytest.raises(BadInput) as caught:
        read_item("a-table1", ITEM.replace(old, new))
    found = [problem for problem in caught.value.problems if re.match(f"a-table1: {said}", problem)]
    assert len(found) == 1, caught.value.problems


def test_what_is_no_toml_names_the_line() -> None:
    with pytest.raises(BadInput, match=r"x: .*line 3"):
        read_item("x", 'paper = "P"\nplace = "Q"\ntitle = \n')


def test_unknown_names() -> None:
    for scale in ("tiny", "large"):
        with pytest.raises(BadInput, match=f"a-table1 .*{scale}; .*small, medium, full"):
            read_item("a-table1", ITEM).comparison(scale)
    name = list_items()[0]
    with pytest.raises(BadInput, match=f"'{name}x' .*{name}"):
        load_item(name + "x")
