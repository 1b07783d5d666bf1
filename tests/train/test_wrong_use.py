"""Odd use: one clear message before any work, and nothing is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import checkpoint, data, losses, nn, ops, optim, random, train, tree

RNG = np.random.default_rng(0)
X = RNG.standard_normal((50, 6)).astype(np.float32)
Y = RNG.integers(0, 3, 50).astype(np.int32)
IMAGES = RNG.integers(0, 256, (50, 4, 4, 1)).astype(np.uint8)


def mlp(inputs: int = 6, hidden: int = 16) -> nn.Module:
    first, second = random.split(random.key(0))
    return nn.Sequential(nn.Dense(inputs, hidden, key=first), nn.relu, nn.Dense(hidden, 3, key=second))


def trainer(model: Any = None, loss: Any = losses.cross_entropy, **settings: Any) -> train.Trainer:
    settings = {"batch_size": 8, "device": "host", **settings}
    optimizer = settings.pop("optimizer", None) or optim.adam(0.01)
    return train.Trainer(mlp() if model is None else model, loss, optimizer, **settings)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


Wrong = tuple[Callable[[], train.Trainer], Any, dict[str, Any], type[Exception], str]


def wrong(
    error: type[Exception], message: str, made: Callable[[], train.Trainer] = trainer, given: Any = (X, Y), **fit: Any
) -> Wrong:
    return made, given, fit, error, message


def loss_of_three(prediction: Any, target: Any) -> Any:
    return prediction[:3, 0]


def loss_of_pairs(prediction: Any, target: Any) -> Any:
    return (prediction - target) ** 2


def mean_loss(prediction: Any, target: Any) -> Any:
    return ops.mean(prediction)


def image_trainer(**settings: Any) -> train.Trainer:
    return trainer(nn.Sequential(nn.Flatten(), mlp(16)), **settings)


DATA: dict[str, Wrong] = {
    "label range": wrong(
        losses.LabelError, r"^train: labels\[\d+\] is 3, expected a class from 0 to 2; \d+ of 50", given=(X, Y + 1)
    ),
    "negative label": wrong(losses.LabelError, r"^train: labels\[\d+\] is -1", given=(X, Y - 1)),
    "huge label": wrong(losses.LabelError, r"labels\[0\] is 1099511627776", given=(X, Y.astype(int) * 0 + 2**40)),
    "float labels": wrong(
        ag.DTypeError, r"^train: targets are f32\[50\]: labels of classes are integers.*astype\(np.int32\)",
        given=(X, Y.astype(np.float32)),
    ),
    "bool labels": wrong(ag.DTypeError, r"^train: targets are bool\[50\]", given=(X, Y > 1)),
    "rank of labels": wrong(
        ag.ShapeError, r"^train: cross_entropy: integer labels for logits f32\[8,3\].*\(8,\), found \(8, 1\)",
        given=(X, Y[:, None]),
    ),
    "width": wrong(
        ag.ShapeError, r"^train: Dense\(6 -> 16\) takes .*found f32\[8,5\].*\n  at layer 0, .*test_wrong_use.py:\d+",
        given=(X[:, :5], Y),
    ),
    "image": wrong(
        ag.ShapeError, r"^train: Dense\(16 -> 16\).*found f32\[8,20\]", image_trainer,
        (np.zeros((50, 5, 4, 1), np.uint8), Y),
    ),
    "channels first": wrong(
        ag.ShapeError, r"^train: Conv2D.*found f32\[8,1,28,28\]",
        lambda: trainer(nn.Sequential(nn.Conv2D(1, 3, 3, key=random.key(0)), lambda x: ops.mean(x, (1, 2)))),
        (np.zeros((50, 1, 28, 28), np.uint8), Y),
    ),
    "augmented": wrong(
        ag.ShapeError, r"^train: RandomCrop is for images .*found f32\[8,6\]",
        lambda: trainer(augment=data.Augment([data.RandomCrop(2)])),
    ),
    "batch": wrong(
        ag.ShapeError, "^train: batch_size=64 is more than the 50 samples", lambda: trainer(batch_size=64)
    ),
    "f64": wrong(
        ag.DTypeError, r"^train: inputs are f64\[50,6\], wider than every parameter.*astype\(np.float32\)",
        given=(X.astype(np.float64), Y),
    ),
    "integers": wrong(ag.DTypeError, r"^train: matmul of i64\[8,6\]", given=(X.astype(np.int64), Y)),
    "lengths": wrong(data.DataError, "^train: .*50.*40", given=(X, Y[:40])),
    "nan": wrong(data.DataError, r"^train: inputs\[3, 2\] is nan", given=(np.where(X[3, 2] == X, np.nan, X), Y)),
    "empty": wrong(data.DataError, "^train: inputs is empty", given=(X[:0], Y[:0])),
    "no targets": wrong(data.DataError, "^train: the data set has no targets", given=X),
    "a list": wrong(data.DataError, "^train: expected a Dataset, a tuple .*found list", given=[X, Y]),
    "validation width": wrong(ag.ShapeError, r"^validation: Dense\(6 -> 16\).*f32\[8,5\]", validation=(X[:, :5], Y)),
    "validation labels": wrong(losses.LabelError, r"^validation: labels\[\d+\] is 3", validation=(X, Y + 1)),
    "validation rank": wrong(ag.ShapeError, "^validation: cross_entropy", validation=(X, Y[:, None])),
    "validation f64": wrong(ag.DTypeError, "^validation: inputs are f64", validation=(X.astype(np.float64), Y)),
    "validation empty": wrong(data.DataError, "^validation: inputs is empty", validation=(X[:0], Y[:0])),
    "loss of three": wrong(
        ag.ShapeError, r"^train: the loss 'loss_of_three' must give one value a sample.* 8, found f32\[3\]",
        lambda: trainer(loss=loss_of_three),
    ),
    "mean": wrong(
        ag.ShapeError, "^train: the loss 'mean_loss' gives one scalar, so the samples", lambda: trainer(loss=mean_loss)
    ),
    "integer loss": wrong(
        ag.DTypeError, r"^train: the loss .* must give floats, found i32\[8\]", lambda: trainer(loss=lambda p, y: y)
    ),
    "loss that broadcasts": wrong(
        ag.ShapeError, r"^train: the loss 'loss_of_pairs' gives f32\[8,8\] for f32\[8,1\], f32\[8\], which is",
        lambda: trainer(nn.Dense(6, 1, key=random.key(0)), loss_of_pairs), given=(X, X[:, 0]),
    ),
    "metric that broadcasts": wrong(
        ag.ShapeError, r"^train: the metric 'm' gives f32\[8,8\] .*reshape what was broadcast",
        lambda: trainer(
            nn.Dense(6, 1, key=random.key(0)), lambda p, t: (p[:, 0] - t) ** 2, metrics={"m": loss_of_pairs}
        ),
        given=(X, X[:, 0]),
    ),
    "no loss": wrong(
        ag.ShapeError, "^train: the loss .* must give one value a sample, found NoneType",
        lambda: trainer(loss=lambda p, y: None),
    ),
    "metric of three": wrong(
        ag.ShapeError, r"^train: the metric 'm' must give one value a sample.*f32\[3\]",
        lambda: trainer(metrics={"m": loss_of_three}),
    ),
    "mean metric": wrong(
        ag.ShapeError, "^train: the metric 'm' gives one scalar", lambda: trainer(metrics={"m": mean_loss})
    ),
    "epochs": wrong(ag.SettingError, "^fit: epochs must be a whole number .*found 0", epochs=0),
    "negative epochs": wrong(ag.SettingError, "found -3", epochs=-3),
    "half an epoch": wrong(ag.SettingError, "found 1.5", epochs=1.5),
    "checkpoint_every": wrong(ag.SettingError, "^fit: checkpoint_every .*found 0", checkpoint_every=0),
    "keep": wrong(ag.SettingError, "^fit: keep .*found 0", keep=0),
    "resume": wrong(ag.SettingError, '^fit: resume must be None or "latest", found True', resume=True),
    "lone callback": wrong(ag.SettingError, "^fit: callbacks must be a list", callbacks=train.EarlyStopping("loss")),
    "no callbacks": wrong(ag.SettingError, "^fit: callbacks must be a list.*found None", callbacks=None),
    "empty run": wrong(ag.SettingError, "^fit: run must be the path of a directory, or None, found ''", run=""),
    "run 3": wrong(ag.SettingError, "^fit: run must be the path of a directory, or None, found 3", run=3),
    "verbose": wrong(ag.SettingError, "^fit: verbose must be True or False, found 'no'", verbose="no"),
    "class": wrong(ag.SettingError, "^fit: callbacks must be a list.*EarlyStopping", callbacks=[train.EarlyStopping]),
    "monitor": wrong(
        ag.NameMissing, "EarlyStopping monitors 'val_loss', and .* will have epoch, step, loss, .*: pass validation",
        callbacks=[train.EarlyStopping()],
    ),
    "monitored metric": wrong(
        ag.NameMissing, "BestCheckpoint monitors 'acc'.*loss, val_loss, learning_rate",
        callbacks=[train.BestCheckpoint("acc")], validation=(X, Y),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("made", "given", "fit", "error", "message"), DATA.values(), ids=DATA)
def test_fit_refuses_before_any_work(
    made: Any, given: Any, fit: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    directory, own = tmp_path / "run", made()
    with pytest.raises(error, match=message):
        own.fit(given, **{"epochs": 1, "run": directory, "verbose": False, **fit})
    assert not directory.exists()
    assert own.engine is None


SETTINGS: dict[str, tuple[Callable[[], Any], str]] = {
    "batch_size 0": (lambda: trainer(batch_size=0), "^Trainer: batch_size .*found 0"),
    "batch_size 8.0": (lambda: trainer(batch_size=8.0), "^Trainer: batch_size .*found 8.0"),
    "accumulate": (lambda: trainer(accumulate=3), "batch_size=8 must be a multiple of accumulate=3"),
    "accumulate 0": (lambda: trainer(accumulate=0), "^Trainer: accumulate .*found 0"),
    "seed": (lambda: trainer(seed=-1), "^Trainer: seed .*found -1"),
    "precision": (lambda: trainer(precision="f16"), "^Trainer: precision must be 'f32' or 'bf16', found 'f16'"),
    "steps": (lambda: trainer(steps_per_dispatch=0), 'steps_per_dispatch must be "auto" or at least 1, found 0'),
    "stream": (lambda: trainer(stream="auto"), "stream must be None, True or False, found 'auto'"),
    "shuffle": (lambda: trainer(shuffle="no"), "^Trainer: shuffle must be True or False, found 'no'"),
    "graph_capture": (lambda: trainer(graph_capture=1), "^Trainer: graph_capture must be True or False, found 1"),
    "deterministic": (lambda: trainer(deterministic=None), "^Trainer: deterministic must be True or False, found None"),
    "of the other trainer": (
        lambda: train.AutoregressiveTrainer(mlp(), optim.adam(1e-3), context=2, batch_size=0),
        "^AutoregressiveTrainer: batch_size .*found 0",
    ),
    "loss": (lambda: trainer(loss="cross_entropy"), "^Trainer: loss must be a function, found 'cross_entropy'"),
    "optimizer": (lambda: trainer(optimizer=optim.adam), "optimizer must be an optim.Optimizer.*found <function adam"),
    "model": (lambda: trainer(lambda x: x), "model must be an nn.Module that can be called, found <function"),
    "class": (lambda: trainer(nn.Sequential), "model must be an nn.Module"),
    "no parameters": (lambda: trainer(nn.Sequential(nn.relu)), "the model Sequential has no parameters to train"),
    "metrics": (lambda: trainer(metrics=[train.metrics.accuracy]), "metrics must be functions by name"),
    "metric": (lambda: trainer(metrics={"accuracy": 1}), "the metric 'accuracy' must be a function, found 1"),
    "metric's name": (lambda: trainer(metrics={"loss": mean_loss}), "a metric cannot be called 'loss'"),
    "validated": (lambda: trainer(metrics={"val_a": mean_loss}), "a metric cannot be called 'val_a'"),
    "augment": (lambda: trainer(augment=[data.RandomCrop(1)]), "augment must be a function"),
    "clip_norm": (lambda: trainer(clip_norm=-1.0), "max_norm .*found -1.0"),
    "ema": (lambda: trainer(ema=1.5), "decay .*found 1.5"),
}


@pytest.mark.parametrize(("made", "message"), SETTINGS.values(), ids=SETTINGS)
def test_settings_are_refused_where_they_are_given(made: Callable[[], Any], message: str) -> None:
    with pytest.raises(ag.SettingError, match=message):
        made()


RESUMED: dict[str, tuple[Callable[[], train.Trainer], dict[str, Any], str]] = {
    "no resume": (trainer, {"resume": None}, 'already holds a run .*resume="latest"'),
    "model": (partial(trainer, mlp(6, 17)), {}, r'model.0.w: saved "f32\[6,16\]", now "f32\[6,17\]"'),
    "fewer layers": (
        partial(trainer, nn.Sequential(nn.Dense(6, 3, key=random.key(0)))), {}, r'model.2.w: saved .*, now missing'
    ),
    "optimizer": (partial(trainer, optimizer=optim.sgd(0.1)), {}, 'optimizer: saved "adam", now "sgd"'),
    "ema": (partial(trainer, ema=0.9), {}, r'optimizer: saved "adam", now "adam\+ema"'),
    "batch": (partial(trainer, batch_size=16), {}, "batch_size: saved 8, now 16"),
    "seed": (partial(trainer, seed=3), {}, "seed: saved 0, now 3"),
    "precision": (partial(trainer, precision="bf16"), {}, 'precision: saved "f32", now "bf16"'),
    "order": (partial(trainer, shuffle=False), {}, "shuffle: saved true, now false"),
    "samples": (trainer, {"train": (X[:40], Y[:40])}, "samples: saved 50, now 40"),
    "callbacks": (trainer, {"callbacks": [train.Callback()]}, "written with 0 callbacks, now there are 1"),
}  # fmt: skip


@pytest.mark.parametrize(("made", "fit", "message"), RESUMED.values(), ids=RESUMED)
def test_another_run_is_refused_and_left_alone(
    made: Callable[[], train.Trainer], fit: dict[str, Any], message: str, tmp_path: Path
) -> None:
    trainer().fit((X, Y), 1, run=tmp_path, verbose=False)
    before, own = contents(tmp_path), made()
    with pytest.raises(ag.CheckpointError, match=message):
        own.fit(**{"train": (X, Y), "epochs": 2, "run": tmp_path, "resume": "latest", "verbose": False, **fit})
    assert contents(tmp_path) == before
    assert own.engine is None


@pytest.mark.parametrize(
    "damage",
    [
        {"epoch": -1}, {"step": None}, {"sums": 3}, {"history": [1]}, {"callbacks": None}, {"best": 0},
        {"best_steps": ["a"]}, {"best_steps": [3]}, None, "x", [],
    ],
    ids=str,
)  # fmt: skip
def test_a_checkpoint_that_does_not_say_where_it_stood_is_refused(damage: Any, tmp_path: Path) -> None:
    trainer().fit((X, Y), 1, run=tmp_path, verbose=False)
    path = train.latest(tmp_path)
    assert path is not None
    saved = checkpoint.load(path)
    position = json.loads(saved.metadata["user.trainer"])
    position = {**position, **damage} if isinstance(damage, dict) else damage
    for text in (json.dumps(position), json.dumps(position)[:-1]):
        checkpoint.save(path, saved.tensors, {**saved.metadata, "user.trainer": text})
        before = contents(tmp_path)
        with pytest.raises(ag.CheckpointError, match=r"does not say where training stood: .*Error"):
            trainer().fit((X, Y), 2, run=tmp_path, resume="latest", verbose=False)
        assert contents(tmp_path) == before


def test_two_trainings_in_one_directory_at_once_are_refused(tmp_path: Path) -> None:
    """Also where the second one would go on with the first; when that has ended, it may."""

    class Second(train.Callback):
        def on_dispatch(self, trainer: Any, step: int, values: Any) -> None:
            with pytest.raises(ag.CheckpointError, match=f"another training works in {tmp_path} now: wait"):
                second.fit((X, Y), 1, run=tmp_path, resume="latest", verbose=False)
            seen.append(step)

    second, seen = trainer(), []
    trainer(steps_per_dispatch=1).fit((X, Y), 1, run=tmp_path, callbacks=[Second()], verbose=False)
    assert len(seen) == 7
    assert second.engine is None
    with pytest.raises(ag.CheckpointError, match="written with 1 callbacks, now there are 0"):
        second.fit((X, Y), 2, run=tmp_path, resume="latest", verbose=False)
    second.fit((X, Y), 2, run=tmp_path, resume="latest", callbacks=[train.Callback()], verbose=False)


def test_a_changed_setting_of_the_optimizer_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It may be meant, as a smaller rate for the rest; the same one, built in another place, is no change."""
    trainer().fit((X, Y), 1, run=tmp_path, verbose=False)
    same = train.Trainer(mlp(), losses.cross_entropy, optim.adam(0.01), batch_size=8, device="host")
    same.fit((X, Y), 2, run=tmp_path, resume="latest", verbose=False)
    assert not caplog.messages
    trainer(optimizer=optim.adam(0.001)).fit((X, Y), 3, run=tmp_path, resume="latest", verbose=False)
    assert [message for message in caplog.messages if "begun with another training step" in message]
    caplog.clear()
    trainer(optimizer=optim.adam(0.001)).fit((X, Y), 4, run=tmp_path, resume="latest", verbose=False)
    assert not caplog.messages


def test_other_data_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer().fit((X, Y), 1, run=tmp_path, verbose=False)
    trainer().fit((X, Y.copy()), 2, run=tmp_path, resume="latest", verbose=False)
    assert not caplog.messages
    trainer().fit((X + 1, Y), 3, run=tmp_path, resume="latest", verbose=False)
    assert caplog.messages == [f"{tmp_path} was begun on other data. It goes on with the new ones"]


@pytest.mark.parametrize("kind", ["file", "below a file", "read-only"])
def test_a_directory_that_cannot_be_written_to(kind: str, tmp_path: Path) -> None:
    """Found before the program is compiled; what stands there is left as it is."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "closed").mkdir()
    os.chmod(tmp_path / "closed", 0o555)
    directory = {"file": "file", "below a file": "file/run", "read-only": "closed/run"}[kind]
    own = trainer()
    with pytest.raises(
        ag.CheckpointError, match=rf"cannot save checkpoints in {tmp_path / directory}: .*Choose another"
    ):
        own.fit((X, Y), 1, run=tmp_path / directory, verbose=False)
    os.chmod(tmp_path / "closed", 0o755)
    assert own.engine is None
    assert (tmp_path / "file").read_text() == "mine"
    assert not list((tmp_path / "closed").iterdir())


def test_a_callback_of_the_user_may_add_what_the_next_one_monitors() -> None:
    class Add(train.Callback):
        def on_epoch_end(self, trainer: Any, epoch: int, record: dict[str, Any]) -> None:
            record["own"] = -epoch

    stopping = train.EarlyStopping("own", patience=1)
    history = trainer().fit((X, Y), 3, callbacks=[Add(), stopping], verbose=False)
    assert history["own"] == [0, -1, -2]


def test_before_anything_is_trained() -> None:
    made = trainer()
    with pytest.raises(ag.SettingError, match="nothing has been trained or restored yet"):
        _ = made.state
    assert all(a is b for a, b in zip(tree.leaves(made.model), tree.leaves(made.objective.model), strict=True))
    assert made.executables == 0


def test_restore_refuses_what_is_no_state_of_the_trainer() -> None:
    """Before the first fit and after it, with the name of an array."""
    own, wider = trainer(), trainer(optimizer=optim.sgd(0.1, momentum=0.9))
    wider.fit((X, Y), 1, verbose=False)
    for state, message in (({}, r"opt\.count is missing"), (wider.state, r"opt\.momentum.* is none that it has")):
        for _ in range(2):
            with pytest.raises(ag.ShapeError, match=message):
                own.restore(state)
            own.fit((X, Y), 1, verbose=False)
    with pytest.raises(ag.SettingError, match=r"restore: expected what Trainer\.state gives, found None"):
        own.restore(None)  # type: ignore[arg-type]


def test_integers_of_numpy_are_as_good_as_others(tmp_path: Path) -> None:
    four = np.int64(4)
    own = trainer(batch_size=np.int64(8), accumulate=four, seed=np.int32(1), steps_per_dispatch=np.int64(1))
    own.fit((X, Y), np.int64(1), run=tmp_path / "run", keep=four, checkpoint_every=four, verbose=False)
    other = trainer(batch_size=8, accumulate=4, seed=1, steps_per_dispatch=1)
    other.fit((X, Y), 1, verbose=False)
    assert all(np.array_equal(a, b) for a, b in zip(tree.leaves(own.state), tree.leaves(other.state), strict=True))


def test_nothing_is_lost_by_a_call_that_is_refused() -> None:
    own = trainer()
    own.fit((X, Y), 1, verbose=False)
    state = own.state
    for given in ((X[:, :5], Y), (X, Y + 1), (X[:4], Y[:4])):
        with pytest.raises(ag.AntegradError):
            own.fit(given, 2, verbose=False)
    own.fit((X, Y), 2, verbose=False)
    whole = trainer()
    whole.fit((X, Y), 2, verbose=False)
    assert int(state["step"]) == 7
    for found, expected in zip(ag.tree.leaves(own.state), ag.tree.leaves(whole.state), strict=True):
        assert np.array_equal(found, expected)
