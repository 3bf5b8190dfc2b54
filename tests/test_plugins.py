"""What other packages bring is found by name, imported when asked for, and limited where others write the names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from coterie.catalogue import Catalog
from coterie.clients.rules import OBJECTIVES, RULES
from coterie.clients.tasks.measures import MEASURES
from coterie.errors import BadInput
from coterie.methods import METHODS
from coterie.models.networks import NETWORKS, build
from coterie.plugins import allow, fresh_consent, import_object, offers
from coterie.runs.folder.metrics import RunMetrics
from coterie.runs.schema.experiment import Experiment
from coterie.shipping.model.trained import About, read_model, write_model
from coterie.studies.compare.spec import key_of
from tests.commandline import COTERIE, Terminal
from tests.packages import METHOD, install


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the import path, into which a test installs packages; the current folder is another one."""
    folder, here = tmp_path / "site", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    before = set(sys.modules)
    monkeypatch.setattr(METHODS, "entries", dict(METHODS.entries))
    monkeypatch.setattr(NETWORKS, "entries", dict(NETWORKS.entries))
    yield folder
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def refusal(name: str, catalog: Catalog = METHODS) -> str:
    with pytest.raises(BadInput) as caught:
        catalog[name]
    (sentence,) = caught.value.problems
    return sentence


def listed(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What `coterie list` prints in a fresh process that finds the packages of a folder."""
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [*COTERIE, "list", *words],
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_listing_names_what_packages_offer_and_imports_nothing(site: Path) -> None:
    shouting = METHOD + "\nprint('imported')\n"
    install(site, "some-package", {"methods": {"mine": "some_module:Mine"}}, {"some_module": shouting})
    install(site, "broken", {"methods": {"lost": "not_there:Lost"}})
    install(site, "one", {"methods": {"both": "one:A"}})
    install(site, "other", {"methods": {"both": "other:B"}})
    install(site, "greedy", {"methods": {"fedavg": "greedy:Mine"}})
    done = listed(site, "methods")
    assert (done.returncode, done.stderr) == (0, "")
    assert "A method of a package. (package some-package)" in done.stdout
    assert "lost" in done.stdout
    assert "'both'" in done.stdout
    assert re.search(r"'fedavg' .*greedy", done.stdout)
    assert "imported" not in done.stdout
    asked = listed(site, "methods", "mine")
    assert asked.stdout.startswith("imported\nmine  A method of a package.")
    assert "power = 1.0" in asked.stdout


def test_a_method_of_a_package_is_found_by_its_name(site: Path) -> None:
    install(site, "some-package", {"methods": {"mine": "some_module:Mine"}}, {"some_module": METHOD})
    assert "mine" in offers("coterie.methods")
    assert "some_module" not in sys.modules
    assert "mine" in METHODS
    assert METHODS["mine"].bind({"power": 2.0}) == {"weights": "samples", "power": 2.0}
    allow(["some_module:Mine"])
    assert METHODS["mine"].target is METHODS["some_module:Mine"].target
    Experiment(method={"name": "mine", "power": 2.0}).check()


def test_a_module_may_register_the_name_itself(site: Path) -> None:
    own = METHOD.replace("@dataclass", "from coterie.methods import METHODS\n@METHODS.add('mine')\n@dataclass")
    points = {"mine": "some_module", "yours": "some_module", "same": "some_module:Mine"}
    install(site, "some-package", {"methods": points}, {"some_module": own})
    assert METHODS["mine"].target is METHODS["same"].target
    assert re.search("'yours' .*some-package .*some_module", refusal("yours"))


@pytest.mark.parametrize(
    ("path", "source", "says"),
    [
        (
            "not_there:Mine",
            "",
            "'mine' .*bad .*not_there; .*PYTHONPATH",
        ),
        (
            "bad_module:Mien",
            METHOD,
            r"'mine' .*bad .*'Mien' .*bad_module; .*Mine\?",
        ),
        (
            "bad_module:Mine",
            "import not_installed_at_all",
            "'mine' .*bad .*not_installed_at_all",
        ),
        (
            "bad_module:Mine",
            "raise RuntimeError('no licence\\nfor you')",
            "'mine' .*bad .*RuntimeError: no licence",
        ),
        (
            "bad_module:Mine",
            "def Mine(): pass",
            r"'mine' .*coterie\.methods\.method\.Method",
        ),
        (
            "bad_module:Mine",
            "from coterie.methods import Method\nclass Mine(Method):\n    def start(self, server): ...\n",
            "'mine' .*assignment and newcomer and round",
        ),
        (
            "bad_module:Mine",
            METHOD.replace("float", "'Nothing'"),
            "'mine' .*'Nothing'",
        ),
    ],
)
def test_a_package_that_does_not_work_is_one_sentence(site: Path, path: str, source: str, says: str) -> None:
    install(site, "bad", {"methods": {"mine": path}}, {"bad_module": source})
    install(site, "good", {"methods": {"yours": "good_module:Mine"}}, {"good_module": METHOD})
    assert re.search(says, refusal("mine"))
    assert "mine" not in METHODS
    assert "yours" in METHODS


def test_two_packages_that_claim_a_name_are_one_sentence(site: Path) -> None:
    install(site, "first", {"methods": {"mine": "first_module:Mine"}}, {"first_module": METHOD})
    install(site, "second", {"methods": {"mine": "second_module:Mine"}})
    assert re.search(r"'mine' .*first \(first_module:Mine\)", refusal("mine"))
    allow(["first_module:Mine"])
    assert "first_module:Mine" in METHODS


def test_an_unknown_name_may_be_near_to_one_of_a_package(site: Path) -> None:
    install(site, "some-package", {"methods": {"ownmethod": "some_module:Mine"}})
    assert re.search(r"'own-methd' .*ownmethod\?", refusal("own-methd"))


def test_a_module_of_the_current_folder_is_found_and_stands_behind_all_others(site: Path) -> None:
    for folder in (site, Path()):
        (folder / "in_both.py").write_text(METHOD.replace("package", str(folder.name)), "utf-8")
    Path("in_here.py").write_text(METHOD, "utf-8")
    allow(["in_here:Mine", "in_both:Mine"])
    assert METHODS["in_here:Mine"].summary == "A method of a package."
    assert METHODS["in_both:Mine"].summary == "A method of a site."


def test_the_name_of_a_file_leads_to_what_it_defines(site: Path) -> None:
    """Somebody who has written a file tries its name first; it is read for its classes, and not run."""
    Path("in_here.py").write_text(f"{METHOD}\nraise AssertionError('imported')", "utf-8")
    (Path("deep") / "er.py").parent.mkdir()
    Path("deep/er.py").write_text("class One: ...\ndef two(): ...\nclass _Three: ...\n", "utf-8")
    Path("broken.py").write_text("class One", "utf-8")
    for name, expected in {
        "in_here.py": "in_here:Mine",
        "in_here": "in_here:Mine",
        "deep/er.py": "deep.er:NAME with one of One, two",
        "broken.py": "broken:NAME",
    }.items():
        assert refusal(name).endswith(f" {expected}")
    assert "in_here" not in sys.modules
    assert "in_here:Mine" not in refusal("../in_here.py")


def test_of_a_module_only_what_it_defines_is_suggested(site: Path) -> None:
    Path("in_here.py").write_text(METHOD, "utf-8")
    allow(["in_here:Other"])
    assert refusal("in_here:Other").partition("known: ")[2] == "Mine"


def test_rules_and_objectives_are_never_imported_by_a_name(site: Path) -> None:
    """Their names arrive in messages, which nobody may make a client import by."""
    (site / "trap.py").write_text("raise AssertionError('imported')", "utf-8")
    for catalog in (RULES, OBJECTIVES):
        assert "unknown" in refusal("trap:Rule", catalog)
        assert "unknown" in refusal("subprocess:Popen", catalog)
    assert "trap" not in sys.modules


# ---- the command line

MODULE = METHOD.replace(
    "@dataclass", "from coterie.methods import METHODS\n@METHODS.add('registered')\n@dataclass"
) + (
    "\nimport subprocess\n"
    "def function(x): return x\n"
    "value = 3\n"
    "class Silent:\n    'An observer without functions.'\n"
)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run gone:Mine", "'gone:Mine' .* gone;"),
        ("run own:subprocess.Popen", r"'own:subprocess\.Popen' .* subprocess\b"),
        ("run fedavg --observer nobody", r"run\.observers: .*'nobody' "),
        ("run fedavg --observer own:Silent(x=3)", r"run\.observers: own:Silent\.x "),
    ],
)
def test_refusals(words: str, says: str, site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.py").write_text(MODULE, "utf-8")
    code, _, said = Terminal(capsys)(*words.split())
    assert code == 2, said
    first, *others = said.splitlines()
    assert re.match(f"coterie: .*{says}", first)
    assert not others
    assert not Path("runs").exists()


@pytest.mark.medium
def test_imports_are_added_to_those_of_a_file(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("own", "more"):
        Path(f"{name}.py").write_text("", "utf-8")
    call = Terminal(capsys)
    assert call("new", "a.toml", "--method", "fedavg", "--import", "own").code == 0
    assert Experiment.from_toml(Path("a.toml")).run.imports == ("own",)
    Path("b.toml").write_text('[method]\nname = "fedavg"\n[run]\nimports = ["own"]\n', "utf-8")
    options = ("--rounds", "1", "--workers", "1", "--name", "first", "--data", "digits", "--clients", "3", "-q")
    assert call("run", "b.toml", "--import", "more", "--import", "own", *options).code == 0
    assert Experiment.from_toml(Path("runs/first/experiment.toml")).run.imports == ("own", "more")


# ---- keys


def test_an_experiment_without_anything_new_keeps_its_key(site: Path) -> None:
    experiment = Experiment(method="fedavg")
    assert not {"imports", "observers"} & experiment.tables()["run"].keys()
    Path("own.py").write_text(MODULE, "utf-8")
    watched = experiment.updated({"run.observers": ["own:Silent"]})
    assert key_of(watched) == key_of(experiment), "who watches changes nothing"
    assert key_of(experiment.updated({"run.imports": ["own"]})) != key_of(experiment), "what is imported may"


# ---- models


NETWORK = """
from torch import nn

def net(features, classes, *, width: int = 3):
    return nn.Sequential(nn.Flatten(), nn.Linear(features[0], width), nn.Linear(width, classes))
"""


def test_a_file_of_a_model_imports_only_what_is_allowed(site: Path, tmp_path: Path) -> None:
    install(site, "nets", {"networks": {"slim": "slim_module:net"}}, {"slim_module": NETWORK, "own_net": NETWORK})
    (site / "trap.py").write_text("raise AssertionError('imported')", "utf-8")
    for number, name in enumerate(["slim", "own_net:net", "trap:net"]):
        about_of = "own_net:net" if name.startswith("trap") else name
        with fresh_consent(None):
            allow(["own_net:net"])
            _, layout = build(about_of, {"width": 2}, (4,), 3, 0)
        about = About(name, {"width": 2}, (4,), 3)
        write_model(tmp_path / f"{number}.safetensors", torch.zeros(layout.size), layout, about)
    assert read_model(tmp_path / "0.safetensors").about.network == "slim", "the package is installed"
    with pytest.raises(BadInput, match="'own_net:net'"):
        read_model(tmp_path / "1.safetensors")
    assert read_model(tmp_path / "1.safetensors", ["own_net:net"]).about.network == "own_net:net"
    with pytest.raises(BadInput, match="'trap:net'"):
        read_model(tmp_path / "2.safetensors", ["trap", "own_net:net"])
    assert "trap" not in sys.modules


# ---- metrics

METRIC = """
from coterie.clients.tasks.measures import measure

@measure("module-metric", "module's metric", "the share of ones", "class")
def ones(predicted, targets):
    return float((predicted == 1).double().mean())
"""


def test_a_metric_of_a_package(site: Path) -> None:
    points = {
        "ones-share": "metric_module:ones",
        "module-metric": "metric_module",
        "no-metric": "metric_module:measure",
    }
    install(site, "metrics", {"metrics": points}, {"metric_module": METRIC})
    before = dict(MEASURES.entries)
    try:
        assert "ones-share" in MEASURES
        assert MEASURES["ones-share"].name == "ones-share"
        assert MEASURES["module-metric"].target is MEASURES["ones-share"].target
        assert "one-share" not in MEASURES
        assert RunMetrics.named(["ones-share"]).headline == "macro_ones-share"
        with pytest.raises(BadInput, match=r"metric 'no-metric'.*function"):
            RunMetrics.named(["no-metric"])
    finally:
        MEASURES.entries = before


# ---- what is done with a run later


# ---- what is done with a run later


@pytest.mark.slow
def test_what_is_done_with_a_run_later_imports_what_the_run_did(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call, before, module = Terminal(capsys), dict(METHODS.entries), Path("own_things.py")
    register = "from coterie.methods import METHODS\n@METHODS.add('own-method')\n@dataclass"
    module.write_text(METHOD.replace("@dataclass", register), "utf-8")
    words = "run own-method --import own_things --data digits --clients 3 --rounds 1 --workers 1 --name mine -q"
    assert call(*words.split()).code == 0
    for command in ("predict mine --data digits", "export mine --to m.safetensors"):
        for place in (Path("elsewhere"), module):  # as in other processes, of which the first does not find it
            sys.modules.pop("own_things", None)
            monkeypatch.setattr(METHODS, "entries", dict(before))
            module = module.rename(place)
            done = call(*command.split(), "--allow", "own_things")
            assert (done.code == 0) is (place.suffix == ".py"), done.err
            assert done.code == 0 or re.search(r"run\.imports: .*'own_things'", done.err)
        assert (len(done.err.splitlines()), done.code) == (0, 0)


def test_what_a_module_draws_when_it_is_imported_is_the_same_in_every_process(site: Path) -> None:
    Path("drawn.py").write_text("import torch\n\nweights = torch.rand(3)\n", "utf-8")
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        allow(["drawn:weights"])
        found.append(import_object("network", "drawn:weights").tolist())
        del sys.modules["drawn"]
    assert found[0] == found[1]
