"""Training on several ranks, which the host runs in lockstep, against training on one device."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antegrad import SettingError, ShapeError, data, losses, nn, ops, optim, parallel, random, train, tree
from antegrad.capture import capture
from antegrad.nn import context
from antegrad.parallel import feeds, processes
from antegrad.parallel.programs import RankPrograms

RANKS = (1, 2, 3, 4)
LEVELS = (0, 1, 2, 3)
X = np.random.default_rng(0).standard_normal((103, 7)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 5, 103).astype(np.int32)
IMAGES = np.random.default_rng(2).integers(0, 256, (30, 6, 6, 3)).astype(np.uint8)
LABELS = np.random.default_rng(3).integers(0, 4, 30).astype(np.int32)
TOKENS = np.random.default_rng(4).integers(0, 11, 500)


def strategy(ranks: int, level: int, **settings: Any) -> parallel.Strategy:
    mesh = parallel.mesh(ranks, device="host")
    return parallel.zero(level, mesh, **settings) if level else parallel.ddp(mesh, **settings)


def mlp() -> nn.Module:
    """Shapes that no number of ranks divides."""
    return nn.Sequential(nn.Dense(7, 13, key=random.key(0)), ops.tanh, nn.Dense(13, 5, key=random.key(1)))


def trained(
    where: parallel.Strategy | None, optimizer: optim.Optimizer | None = None, model: Any = None, **settings: Any
) -> train.Trainer:
    """Two epochs on samples of which the last batch is short."""
    settings = {"batch_size": 12, "device": None if where else "host", **settings}
    made = train.Trainer(
        mlp() if model is None else model, losses.cross_entropy, optimizer or optim.adam(1e-2), parallel=where,
        **settings,
    )  # fmt: skip
    made.fit((X, Y), 2, validation=(X[:31], Y[:31]), verbose=False)
    return made


def differences(one: Any, other: Any) -> dict[str, float]:
    named = tree.named_leaves(other)
    return {name: float(np.abs(leaf - named[name]).max(initial=0)) for name, leaf in tree.named_leaves(one).items()}


def assert_close(made: train.Trainer, alone: train.Trainer, within: float = 2e-6) -> None:
    found = differences(made.state, alone.state)
    assert max(found.values()) <= within, found


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("ranks", RANKS)
def test_a_training_is_that_on_one_device(ranks: int, level: int) -> None:
    alone, made = trained(None), trained(strategy(ranks, level))
    assert_close(made, alone)
    np.testing.assert_allclose(made.fitting.history.steps, alone.fitting.history.steps, rtol=1e-6)  # pyright: ignore
    assert made.fitting.history[-1]["val_loss"] == pytest.approx(alone.fitting.history[-1]["val_loss"], rel=1e-6)  # pyright: ignore
    np.testing.assert_allclose(made.predict(X), alone.predict(X), atol=1e-5)


@pytest.mark.parametrize("ranks", [2, 3])
def test_all_levels_have_the_bits_of_ddp(ranks: int) -> None:
    """The sum over the ranks is in their order whether each keeps all of it or its part, and no other sum is divided.

    Exactly so on the host, where every operation is rounded by itself; XLA for CPU joins products and sums, in other
    places for shards than for whole arrays, and the levels part in the last bits after the first step.
    """
    alike = [trained(strategy(ranks, level)).state for level in LEVELS]
    for other in alike[1:]:
        assert set(differences(alike[0], other).values()) == {0.0}


OPTIMIZERS: dict[str, Callable[[], optim.Optimizer]] = {
    "momentum": lambda: optim.sgd(0.1, momentum=0.9),
    "decay": lambda: optim.adamw(1e-2, weight_decay=0.1, mask=optim.decay_matrices),
    "clip": lambda: optim.chain(optim.clip_by_global_norm(0.3), optim.adam(1e-2)),
    "ema": lambda: optim.chain(optim.adam(1e-2), optim.ema(0.9)),
    "adafactor": lambda: optim.adafactor(1e-2),
    "muon": lambda: optim.muon(1e-2),
    "lion": lambda: optim.lion(1e-3),
    "rmsprop": lambda: optim.rmsprop(1e-3),
    "schedule": lambda: optim.adam(optim.schedules.warmup_cosine(1e-2, 4, 20)),
}


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_can_be_sharded(name: str, level: int) -> None:
    """Also those that need whole matrices, masks by shape, and norms of everything."""
    optimizer = OPTIMIZERS[name]()
    within = 1e-4 if name in ("muon", "adafactor") else 5e-6  # they normalize, which enlarges a last bit
    assert_close(trained(strategy(3, level), optimizer), trained(None, optimizer), within)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("settings", [{"accumulate": 3}, {"clip_norm": 0.2}, {"ema": 0.9}, {"shuffle": False}], ids=str)
def test_settings_of_the_trainer(settings: dict[str, Any], level: int) -> None:
    made, alone = trained(strategy(2, level), **settings), trained(None, **settings)
    assert_close(made, alone)
    one, other = (each.evaluate((X, Y))["loss"] for each in (made, alone))
    assert one == pytest.approx(other, rel=1e-5)


@pytest.mark.parametrize("level", LEVELS)
def test_bf16(level: int) -> None:
    """Each rank rounds its own sums to bf16, so losses differ by some of its units, 0.4 % each."""
    made, alone = trained(strategy(2, level), precision="bf16"), trained(None, precision="bf16")
    np.testing.assert_allclose(made.fitting.history.steps, alone.fitting.history.steps, rtol=0.02)  # pyright: ignore
    assert made.state["param"]["0.w"].dtype == np.float32
    assert set(differences(made.state, trained(strategy(2, 0), precision="bf16").state).values()) == {0.0}


@pytest.mark.parametrize("level", LEVELS)
def test_streamed_data_give_the_same_bits(level: int) -> None:
    one, other = (trained(strategy(3, level), stream=stream) for stream in (False, True))
    assert set(differences(one.state, other.state).values()) == {0.0}
    assert one.fitting.history[-1]["val_loss"] == other.fitting.history[-1]["val_loss"]  # pyright: ignore


@pytest.mark.parametrize("level", [0, 2])
def test_small_buckets_give_the_same_bits(level: int) -> None:
    one, other = (trained(strategy(4, level, bucket_bytes=size)) for size in (1, 2**20))
    assert set(differences(one.state, other.state).values()) == {0.0}


def normalized() -> nn.Module:
    layers = nn.Conv2D(3, 4, 3, key=random.key(0)), nn.BatchNorm(4), ops.tanh, nn.Flatten()
    return nn.Sequential(*layers, nn.Dense(144, 4, key=random.key(1)))


def on_images(
    where: parallel.Strategy | None, model: nn.Module, count: int | None = None, **settings: Any
) -> train.Trainer:
    made = train.Trainer(
        model, losses.cross_entropy, optim.sgd(0.05), batch_size=12, parallel=where,
        device=None if where else "host", **settings,
    )  # fmt: skip
    made.fit((IMAGES, LABELS) if count is None else (IMAGES[:count], LABELS[:count]), 2, verbose=False)
    return made


@pytest.mark.parametrize("level", LEVELS)
def test_synchronised_batch_normalization_is_that_of_one_device(level: int) -> None:
    """Also where samples of the last batch have the weight 0, all of them on the last ranks."""
    made, alone = (on_images(where, normalized()) for where in (strategy(3, level, sync_batch_norm=True), None))
    assert_close(made, alone, 1e-5)


def test_batch_normalization_by_rank_keeps_one_state() -> None:
    """Each rank normalizes by its own samples, so the result is another one; the running statistics are their mean."""
    made, alone = (on_images(where, normalized()) for where in (strategy(3, 0), None))
    assert max(differences(made.state, alone.state).values()) > 1e-4
    frozen = nn.Sequential(nn.BatchNorm(3), nn.Flatten(), nn.Dense(108, 4, key=random.key(1)))
    made, alone = (on_images(where, frozen, 12) for where in (strategy(3, 0), None))
    # Of parts of one size the mean of the means is the mean of all.
    np.testing.assert_allclose(made.state["state"]["0.mean"], alone.state["state"]["0.mean"], rtol=1e-5)
    np.testing.assert_allclose(made.state["state"]["0.var"], alone.state["state"]["0.var"], rtol=1e-2)


def test_dropout_masks_differ_by_rank_and_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are all alike, and without keys of their own the ranks would have the same masks."""
    seen: list[Any] = []
    model = nn.Sequential(nn.Dropout(0.5), nn.Dense(7, 5, key=random.key(0)))
    x, y = np.ones((8, 7), np.float32), np.zeros(8, np.int32)
    for ranks in (1, 2, 2, 4):
        made = train.Trainer(
            model, losses.cross_entropy, optim.sgd(0.1), batch_size=8, parallel=strategy(ranks, 0), seed=5
        )
        seen.append(made.fit((x, y), 3, verbose=False).steps)
    np.testing.assert_array_equal(seen[1], seen[2])
    assert not np.array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[1], seen[3])
    alone = train.Trainer(model, losses.cross_entropy, optim.sgd(0.1), batch_size=8, device="host", seed=5)
    np.testing.assert_allclose(alone.fit((x, y), 3, verbose=False).steps, seen[0], rtol=1e-6)
    monkeypatch.setattr(RankPrograms, "step_key", lambda self, key: key)
    alike = train.Trainer(model, losses.cross_entropy, optim.sgd(0.1), batch_size=8, parallel=strategy(2, 0), seed=5)
    assert not np.array_equal(alike.fit((x, y), 3, verbose=False).steps, seen[1])


def test_augmentation_does_not_depend_on_the_ranks() -> None:
    augment = data.Augment([data.HorizontalFlip(), data.RandomCrop(2)])
    model = nn.Sequential(nn.Flatten(), nn.Dense(108, 4, key=random.key(0)))
    made, alone = (on_images(where, model, augment=augment) for where in (strategy(4, 1), None))
    assert_close(made, alone)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_windows_of_a_text(ranks: int, level: int) -> None:
    """Each rank holds a part of the text; windows that begin in it may end in the next one."""

    def run(where: parallel.Strategy | None) -> train.AutoregressiveTrainer:
        config = nn.models.GPTConfig(vocabulary=11, context=8, layers=1, heads=2, features=8)
        made = train.AutoregressiveTrainer(
            nn.models.GPT(config, key=random.key(0)), optim.adam(1e-2), context=8, batch_size=6, parallel=where,
            device=None if where else "host",
        )  # fmt: skip
        made.fit(TOKENS, 6, eval_every=3, validation=TOKENS[:80], verbose=False)
        return made

    made, alone = run(strategy(ranks, level)), run(None)
    assert_close(made, alone, 1e-5)
    assert made.val_loss(TOKENS) == pytest.approx(alone.val_loss(TOKENS), rel=1e-5)
    np.testing.assert_array_equal(made.generate([1, 2], 5), alone.generate([1, 2], 5))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8, np.int16, np.bool_, np.int64], ids=str)
def test_rows_pass_between_ranks_bit_for_bit(dtype: Any) -> None:
    """NaN, infinities, -0.0 and extreme integers among them."""
    from antegrad.parallel.placement import OnMesh
    from antegrad.train.feeds import EpochFeed, streams

    values = np.array([np.nan, -0.0, np.inf, -np.inf, 1e-7], np.float32) if np.dtype(dtype).kind == "f" else None
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 255, (11, 3)).astype(dtype) if values is None else rng.choice(values, (11, 3)).astype(dtype)
    if np.dtype(dtype).kind == "i":
        rows[0] = np.iinfo(dtype).min
    place = OnMesh(strategy(3, 0))
    feed = place.feed(EpochFeed(11, 6), 11)
    key = np.asarray(random.key(0))
    carried = feed.started(key, np.int32(0))
    whole = EpochFeed(11, 6).rows((rows, rows), carried, key, np.int32(0), np.int32(0))
    types = place.data_types(feed, (rows, rows))
    from antegrad.capture import capture

    program = capture(
        lambda data, carried, seed: feed.rows(data, carried, seed, np.int32(0), np.int32(0)).x,
        types, feed.carried, key,
    )  # fmt: skip
    parts = feed.divided((rows, rows))
    size = tree.leaves(types)[0].shape[0]
    arguments = [[*(np.asarray(part[r * size : (r + 1) * size]) for part in parts), carried, key] for r in range(3)]
    found = np.concatenate([result[0] for result in parallel.run_ranks(program, arguments)])
    assert found.tobytes() == np.asarray(whole.x).tobytes()
    assert streams(key)[0].shape == (2,)


def test_wrong_use() -> None:
    with pytest.raises(ShapeError, match=r"batch_size=10 does not divide among 4 ranks: take a multiple of 4"):
        trained(strategy(4, 0), batch_size=10)
    with pytest.raises(ShapeError, match=r"4 ranks and accumulate=2: take a multiple of 8"):
        trained(strategy(4, 0), batch_size=12, accumulate=2)
    with pytest.raises(SettingError, match=r"level must be 1, 2 or 3, found 4"):
        parallel.zero(4)
    with pytest.raises(SettingError, match=r"device='host' and parallel=... are both given"):
        train.Trainer(mlp(), losses.cross_entropy, optim.sgd(0.1), device="host", parallel=strategy(2, 0))
    with pytest.raises(SettingError, match=r"parallel must be parallel.ddp\(\) or parallel.zero\(level\), found 'ddp'"):
        train.Trainer(mlp(), losses.cross_entropy, optim.sgd(0.1), parallel="ddp")  # pyright: ignore
    for wrong in (0, True, 2.5):
        with pytest.raises(SettingError, match=rf"mesh: data must be a whole number in .*, found {wrong}"):
            parallel.mesh(wrong)  # pyright: ignore
    with pytest.raises(SettingError, match=r"mesh: device must be the name of a platform, such as 'cpu', found 3"):
        parallel.mesh(2, device=3)  # pyright: ignore
    with pytest.raises(SettingError, match=r"lockstep: here must be one of the 2 ranks, counted from 0, found 1\.5"):
        parallel.run_ranks(capture(lambda x: x, X[0]), [[X[0]]] * 2, here=1.5)  # pyright: ignore
    assert parallel.zero(np.int64(2), parallel.mesh(np.int64(2), device="host"), bucket_bytes=np.int64(9)).level == 2


def test_a_loss_that_is_nan_names_the_rank() -> None:
    x = X.copy()
    x[50] = np.nan
    made = train.Trainer(
        mlp(), losses.cross_entropy, optim.sgd(0.1), batch_size=12, parallel=strategy(3, 2), shuffle=False
    )
    with pytest.raises(FloatingPointError, match=r"the loss of step 4 .* on rank 0: "):
        made.fit(data.Dataset(x, Y, finite=False), 1, verbose=False)
    assert made.state["failed"] == 4


def test_large_batches_are_exchanged_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same bits; a rank then never looks up the rows of the whole batch at once."""
    whole = trained(strategy(3, 0), batch_size=24).state
    monkeypatch.setattr(feeds, "EXCHANGED_BYTES", 3 * 2 * (7 + 1) * 4)
    made = trained(strategy(3, 0), batch_size=24)
    assert set(differences(made.state, whole).values()) == {0.0}
    assert made.engine is not None
    equations = made.engine.program.all_equations()
    shapes = [eq.input_types[0].shape for eq in equations if eq.primitive.name == "reduce_scatter"]
    assert (6, 7) in shapes
    assert (24, 7) not in shapes


# what a review found


@pytest.mark.parametrize("unroll", [False, True])
def test_batch_normalization_inside_repeat_is_synchronised(unroll: bool) -> None:
    def model() -> nn.Module:
        def layer(key: Any) -> nn.Module:
            return nn.Sequential(nn.Dense(8, 8, key=key), nn.BatchNorm(8), ops.tanh)

        first, last = nn.Dense(7, 8, key=random.key(1)), nn.Dense(8, 5, key=random.key(2))
        return nn.Sequential(first, nn.Repeat(layer, 3, key=random.key(3), unroll=unroll), last)

    where = strategy(2, 0, sync_batch_norm=True)
    assert_close(trained(where, optim.sgd(0.05), model()), trained(None, optim.sgd(0.05), model()), 1e-5)


@pytest.mark.parametrize("ranks", [0, 3])
def test_a_nan_in_a_part_of_an_accumulated_batch_is_blamed(ranks: int) -> None:
    x = X.copy()
    x[58] = np.nan
    where = strategy(ranks, 1) if ranks else None
    made = train.Trainer(
        mlp(), losses.cross_entropy, optim.sgd(0.1), batch_size=12, parallel=where, shuffle=False, accumulate=2,
        device=None if where else "host",
    )  # fmt: skip
    place = "on rank 2: " if ranks else ""
    with pytest.raises(FloatingPointError, match=rf"step 4 .*\. {place}sequential_gradient: the first NaN .* input x"):
        made.fit(data.Dataset(x, Y, finite=False), 1, verbose=False)


def test_a_nan_behind_synchronised_statistics_is_not_denied() -> None:
    x = IMAGES.astype(np.float32)
    x[3] = np.nan
    made = train.Trainer(
        normalized(), losses.cross_entropy, optim.sgd(0.1), batch_size=12, shuffle=False,
        parallel=strategy(3, 0, sync_batch_norm=True),
    )  # fmt: skip
    with pytest.raises(FloatingPointError, match=r"its layers exchange statistics, so no rank can be looked at alone"):
        made.fit(data.Dataset(x, LABELS, finite=False), 1, verbose=False)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_parameters_of_16_bits_train_alike_on_all_ranks(dtype: str) -> None:
    """Sums over a batch would leave the range of f16, and so would the number of values by which they are divided."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((1024, width)).astype(np.float32) for width in (2, 200))

    def run(where: parallel.Strategy | None, accumulate: int = 1) -> np.ndarray:
        model = nn.Dense(2, 200, key=random.key(0), dtype=dtype)
        made = train.Trainer(
            model, losses.mean_squared_error, optim.sgd(1.0), batch_size=512, parallel=where, accumulate=accumulate,
            device=None if where else "host",
        )  # fmt: skip
        return made.fit((x, y * 10), 3, verbose=False).steps

    alone = run(None)
    assert alone[-1] < alone[0]
    for other in (run(strategy(2, 0)), run(strategy(4, 2)), run(None, 4)):
        np.testing.assert_allclose(other, alone, rtol=2e-3)


@pytest.mark.parametrize("ranks", [0, 2, 4])
def test_metrics_count_samples_where_the_loss_counts_tokens(ranks: int) -> None:
    """All labels of two ranks of four are ignored by the loss; the metric has them."""
    x = np.random.default_rng(0).standard_normal((16, 7)).astype(np.float32)
    y = np.where(np.arange(16) // 4 % 2, -1, 1).astype(np.int32)
    made = train.Trainer(
        nn.Dense(7, 5, key=random.key(0)), partial(losses.cross_entropy, ignore_index=-1), optim.sgd(0.1),
        batch_size=16, metrics={"first": lambda prediction, y: ops.convert(prediction[:, 0] > 0, "f32")}, shuffle=False,
        parallel=strategy(ranks, 0) if ranks else None, device=None if ranks else "host",
    )  # fmt: skip
    expected = float((made.predict(x)[:, 0] > 0).mean())
    assert made.fit((x, y), 1, verbose=False)[-1]["first"] == pytest.approx(expected)
    assert 0.1 < expected < 0.9
    expected = float((made.predict(x)[:, 0] > 0).mean())
    assert made.evaluate((x, y))["first"] == pytest.approx(expected)


@pytest.mark.parametrize("level", LEVELS)
def test_a_state_that_does_not_fit_is_refused(level: int) -> None:
    made = trained(strategy(4, level))
    state = made.state
    for name, wrong in (("0.w", state["param"]["0.w"].T.copy()), ("2.b", np.zeros(8, np.float32))):
        with pytest.raises(ShapeError, match=rf"the state does not fit: param.{name} must be f32"):
            made.restore({**state, "param": {**state["param"], name: wrong}})
    lost = {name: leaf for name, leaf in state["param"].items() if name != "2.b"}
    with pytest.raises(ShapeError, match=r"the state does not fit the training: param.2.b is missing"):
        made.restore({**state, "param": lost})


class Counting(nn.Module):
    """Counts samples by their first value, in integers that the layers keep."""

    w: Any
    seen: Any = nn.state()

    def __init__(self) -> None:
        self._set(w=ops.ones((7, 5)), seen=ops.zeros((), "i32"))

    def __call__(self, x: Any) -> Any:
        context.update("seen", self.seen + ops.sum(ops.convert(x[:, 0] > 0, "i32")))
        return x @ self.w


def test_integers_that_layers_keep_are_the_same_on_all_ranks() -> None:
    """The largest of all ranks, in the program: otherwise each device would go on with one of its own."""
    states = [
        trained(strategy(4, 0), optim.sgd(0.1), Counting(), **more).state["state"]["seen"]
        for more in ({}, {"steps_per_dispatch": 1}, {"stream": True})
    ]
    assert states[0] == states[1] == states[2] > 0


def test_a_parameter_called_count_does_not_shard_the_step_count() -> None:
    class Scaled(nn.Module):
        count: Any

        def __init__(self) -> None:
            self._set(count=ops.ones(()))

        def __call__(self, x: Any) -> Any:
            return x[:, :5] * self.count

    rate = optim.schedules.warmup_cosine(1e-2, 4, 20)
    made = trained(strategy(4, 1), optim.chain(optim.adam(rate)), Scaled())
    assert made.learning_rate() == pytest.approx(trained(None, optim.chain(optim.adam(rate)), Scaled()).learning_rate())


def test_validation_sets_that_ranks_do_not_divide_are_checked_before_any_work() -> None:
    def mean_error(prediction: Any, y: Any) -> Any:
        return ops.mean(ops.square(prediction - ops.expand_dims(ops.convert(y, "f32"), 1)))

    made = train.Trainer(mlp(), mean_error, optim.sgd(0.1), batch_size=12, parallel=strategy(4, 0))
    with pytest.raises(ShapeError, match=r"validation: the loss .* gives one scalar"):
        made.fit((X[:96], Y[:96]), 1, validation=(X[:6], Y[:6]), verbose=False)
    assert made.engine is None


def test_one_of_several_processes_that_trains_alone_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before `initialize`, too, as the launcher's variables say; else each of them would write into one directory."""
    monkeypatch.setattr(processes, "_run", processes._Run())
    assert (parallel.count(), parallel.index(), parallel.leader()) == (1, 0, True)
    monkeypatch.setenv("ANTEGRAD_PROCESS_COUNT", "3")
    monkeypatch.setenv("ANTEGRAD_PROCESS_INDEX", "2")
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1")
    assert (parallel.count(), parallel.index(), parallel.leader()) == (3, 2, False)
    for where in (None, strategy(2, 0)):
        caplog.clear()
        train.Trainer(
            mlp(), losses.cross_entropy, optim.sgd(0.1), parallel=where, device=None if where else "host", batch_size=4
        )
        assert "this is process 2 of 3, and it trains by itself" in caplog.text


def test_another_number_of_ranks_is_no_other_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Resuming with it is promised; with another learning rate it is said."""

    def run(ranks: int, rate: float, epochs: int) -> None:
        made = train.Trainer(
            mlp(), losses.cross_entropy, optim.sgd(rate), batch_size=12, parallel=strategy(ranks, 2)
        )
        made.fit((X, Y), epochs, run=tmp_path, resume="latest", verbose=False)

    run(4, 0.1, 1)
    run(2, 0.1, 2)
    assert "another training step" not in caplog.text
    run(2, 0.2, 3)
    assert "another training step" in caplog.text
    assert json.loads((tmp_path / "config.json").read_text())["config"]["parallel"] == "ZeRO-2 on 2 devices"
