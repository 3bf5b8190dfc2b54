"""The section of the task: what it does to keys, and what it refuses."""

from __future__ import annotations

import pytest

from coterie.clients.tasks import Regression
from coterie.errors import BadInput
from coterie.methods import FedAvg
from coterie.runs.schema.experiment import Experiment, assemble
from coterie.runs.schema.registry import keys_deciding
from coterie.studies.compare.spec import key_of
from tests.own_tasks import Counts


@pytest.mark.parametrize("what", ["training", "tables"])
def test_a_task_that_says_nothing_is_no_part_of_a_key(what: str) -> None:
    tables = Experiment().resolved().tables()
    without = {title: table for title, table in tables.items() if title != "task"}
    assert tables["task"] == {"name": "auto"}
    assert keys_deciding(what, tables) == keys_deciding(what, without)  # type: ignore[arg-type]


def test_a_task_that_is_named_is_part_of_the_key_and_its_metrics_of_that_of_tables() -> None:
    plain, named = Experiment(), Experiment(task="classification")
    measured = Experiment(task={"name": "classification", "metrics": ["accuracy"]})
    assert len({key_of(plain), key_of(named), key_of(measured)}) == 3
    assert keys_deciding("training", named.tables()) == keys_deciding("training", measured.tables())
    assert keys_deciding("training", plain.tables()) != keys_deciding("training", named.tables())


def test_set_names_the_task_and_its_metrics() -> None:
    experiment = assemble({}, {}, ["task.name=classification", 'metrics=["accuracy"]'])
    assert experiment.task.name == "classification"
    assert experiment.task.metrics == ("accuracy",)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"name": "clasification"}, "'clasification' .*classification"),
        ({"name": "auto", "smoothing": 0.1}, r"task\.name = 'auto' .*task\.smoothing"),
        ({"name": "coterie.methods.scale:Scale"}, r"methods\.scale:Scale' .*coterie\.clients\.tasks\.task\.Task"),
    ],
)
def test_what_is_no_task_is_refused(section: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Experiment(task=section).check()


def test_a_class_is_given_as_itself() -> None:
    given = Experiment(task={"name": Counts, "highest": 50.0}, method=FedAvg)
    assert (given.task.name, given.method.name) == ("tests.own_tasks:Counts", "fedavg")
    assert given == Experiment(task={"name": "tests.own_tasks:Counts", "highest": 50.0}, method="fedavg")
    assert Experiment(task=Regression).task.name == "regression"


def test_a_class_that_no_other_process_could_import_is_refused() -> None:
    class Here(Regression):
        """Of this function."""

    with pytest.raises(BadInput, match=r"no module.*file"):
        Experiment(task=Here)
