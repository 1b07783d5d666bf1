"""What a run reported: access by name, the best epoch, JSON and the table."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from antegrad.errors import CheckpointError, NameMissing, NonFiniteError
from antegrad.train.history import History

RECORDS: list[dict[str, Any]] = [
    {"epoch": 1, "loss": 0.5, "val_loss": 0.75, "learning_rate": None},
    {"epoch": 2, "loss": np.float32(0.25), "val_loss": 0.5, "learning_rate": None, "accuracy": 0.875},
    {"epoch": 3, "loss": math.nan, "val_loss": 0.5, "learning_rate": None, "accuracy": 0.9},
]


def make() -> History:
    history = History()
    history.add_steps([2.0, 1.0])
    for record in RECORDS:
        history.append(dict(record))
    history.add_steps(np.array([0.1, math.nan, math.inf], np.float32))
    return history


def test_access() -> None:
    history = make()
    assert len(history) == 3
    assert history[0]["loss"] == 0.5
    assert history[-1] is history.records[2]
    assert [record["epoch"] for record in history] == history["epoch"] == [1, 2, 3]
    assert history["accuracy"] == [None, 0.875, 0.9]
    assert history.names == ["epoch", "loss", "val_loss", "learning_rate", "accuracy"]
    assert history.steps.dtype == np.float32
    assert np.array_equal(history.steps, np.array([2, 1, 0.1, math.nan, math.inf], np.float32), equal_nan=True)
    with pytest.raises(IndexError):
        history[3]
    with pytest.raises(NameMissing, match=r"the history has no 'val_los', it has epoch, .*did you mean 'val_loss'"):
        history["val_los"]
    with pytest.raises(NameMissing, match="it has no epoch"):
        History()["loss"]


def test_records_are_kept_as_they_are() -> None:
    history, record = History(), {"epoch": 1}
    history.append(record)
    record["late"] = 2
    assert history["late"] == [2]


def test_best() -> None:
    history = make()
    assert history.best("val_loss")["epoch"] == 2  # the first of equal ones
    assert history.best("val_loss", "max")["epoch"] == 1
    assert history.best("loss")["epoch"] == 2  # not the NaN
    assert history.best("loss", "max")["epoch"] == 1
    assert history.best("accuracy", "max")["epoch"] == 3
    with pytest.raises(NonFiniteError, match="'loss': none of its 2 values is finite"):
        History([{"loss": math.nan}, {"loss": math.inf}]).best("loss")
    with pytest.raises(NonFiniteError):
        history.best("learning_rate")
    with pytest.raises(NameMissing):
        history.best("f1")
    with pytest.raises(ValueError, match="'least'"):
        history.best("loss", "least")  # type: ignore[arg-type]


def test_json() -> None:
    history = make()
    text = history.to_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    found = History.from_json(text)
    assert found.to_json() == text
    assert np.array_equal(found.steps, history.steps, equal_nan=True)
    assert math.isnan(found[2]["loss"])
    assert found[1] == {**RECORDS[1], "loss": 0.25}
    assert len(History.from_json(History().to_json())) == 0


@pytest.mark.parametrize("text", ["", "3", "{}", '{"records": [3], "steps": []}', '{"records": [], "steps": ["a"]}'])
def test_text_that_is_no_history(text: str) -> None:
    with pytest.raises(CheckpointError, match="no history"):
        History.from_json(text)


def test_table() -> None:
    assert str(make()).splitlines() == [
        "epoch  loss  val_loss  learning_rate  accuracy",
        "    1   0.5      0.75                         ",
        "    2  0.25       0.5                    0.875",
        "    3   NaN       0.5                      0.9",
    ]
    assert str(History()) == "no epochs"
    assert repr(make()) == "History(3 epochs, 5 steps: epoch, loss, val_loss, learning_rate, accuracy)"
