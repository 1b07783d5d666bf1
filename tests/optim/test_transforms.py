"""Clipping, chains, weight decay and its masks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import optax
import pytest

import antegrad as ag
from antegrad import optim, tree
from antegrad.errors import SettingError, ShapeError
from tests.support import devices

F32 = np.float32
INF, NAN = float("inf"), float("nan")
RATE = optim.schedules.linear_warmup(1.0, 4)


def arrays(*rows: list[float]) -> list[np.ndarray]:
    return [np.array(row, F32) for row in rows]


def update(optimizer: optim.Optimizer, gradients: Any, device: str, state: Any = None) -> tuple[Any, Any]:
    """One update from a fresh state, with parameters of 1."""
    parameters = tree.map(lambda gradient: np.ones_like(gradient), gradients)
    state = optimizer.init(parameters) if state is None else state
    program = ag.capture(optimizer.update, gradients, state, parameters)
    return program.run(gradients, state, parameters, device=device)


# Clipping


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(
    ("max_norm", "gradients", "expected"),
    [
        (1.0, arrays([3], [4]), [[0.6], [0.8]]),
        (5.0, arrays([3], [4]), [[3], [4]]),
        (100.0, arrays([3], [4]), [[3], [4]]),
        (1.0, arrays([0, 0]), [[0, 0]]),
        (0.0, arrays([0, 0]), [[0, 0]]),
        (0.0, arrays([3], [4]), [[0], [0]]),
    ],
)
def test_case_clip_global_norm(max_norm: float, gradients: Any, expected: list[list[float]], device: str) -> None:
    found, state = update(optim.clip_by_global_norm(max_norm), gradients, device)
    for leaf, values in zip(found, expected, strict=True):
        np.testing.assert_allclose(leaf, values, rtol=1.2e-7)
    assert state["skipped"] == 0


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("bad", [INF, -INF, NAN, 1e30])
def test_case_clip_global_norm_not_finite(bad: float, device: str) -> None:
    """The step is left out and counted; 1e30 has no square in f32."""
    optimizer, state = optim.clip_by_global_norm(1.0), None
    for skipped in (1, 2):
        found, state = update(optimizer, arrays([bad, 1], [2]), device, state)
        assert [leaf.tolist() for leaf in found] == [[0, 0], [0]]
        assert state["skipped"] == skipped
    found, state = update(optimizer, arrays([3, 4], [0]), device, state)
    assert state["skipped"] == 2
    np.testing.assert_allclose(found[0], [0.6, 0.8], rtol=1.2e-7)


def test_clip_is_that_of_optax() -> None:
    rng = np.random.default_rng(0)
    for scale in (0.1, 1, 10):
        gradients = [(scale * rng.normal(size=shape)).astype(F32) for shape in ((3, 4), (5,))]
        expected, _ = optax.clip_by_global_norm(1.5).update(gradients, optax.EmptyState())
        found, _ = update(optim.clip_by_global_norm(1.5), gradients, "host")
        for leaf, truth in zip(found, expected, strict=True):
            np.testing.assert_allclose(leaf, truth, rtol=5e-7)


def test_clip_refuses() -> None:
    for max_norm in (-1.0, INF, NAN, "1", None, True):
        message = rf"clip_by_global_norm: max_norm must be a number in \[0, inf\), found {max_norm!r}"
        with pytest.raises(SettingError, match=message):
            optim.clip_by_global_norm(max_norm)  # pyright: ignore
    for max_value in (-1.0, NAN, "1"):
        with pytest.raises(SettingError, match=rf"clip_by_value: max_value must be .*\], found {max_value!r}"):
            optim.clip_by_value(max_value)  # pyright: ignore


@pytest.mark.parametrize("device", devices())
def test_clip_by_value(device: str) -> None:
    found, state = update(optim.clip_by_value(2.0), arrays([-3, -2, 0.5, INF, NAN]), device)
    np.testing.assert_array_equal(found[0], [-2, -2, 0.5, 2, NAN])
    assert tree.leaves(state) == []


def test_global_norm() -> None:
    assert optim.global_norm({"a": np.array([3.0], F32), "b": np.array([[4.0]], F32)}) == 5
    assert optim.global_norm([np.ones(70000, ml_dtypes.bfloat16)]) == np.sqrt(F32(70000))
    mixed = optim.global_norm([np.array([3], ml_dtypes.bfloat16), np.array([4.0], F32)])
    assert (mixed, mixed.dtype) == (5, np.float32)
    assert optim.global_norm([np.array([3.0]), np.array([4.0], F32)]).dtype == np.float64
    assert optim.global_norm({}) == 0


# Chains


def clipped_adam() -> optim.Optimizer:
    return optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(0.1, weight_decay=0.1))


def test_the_state_of_a_chain_is_named_by_kind() -> None:
    optimizer = optim.chain(
        optim.clip_by_value(1.0), optim.clip_by_global_norm(1.0), optim.clip_by_value(0.5), optim.adam(0.1)
    )
    state = tree.named_leaves(optimizer.init({"w": np.ones(2, F32)}))
    assert sorted(state) == ["adam.count", "adam.m.w", "adam.v.w", "clip_by_global_norm.skipped"]
    assert optimizer.kind == "clip_by_value+clip_by_global_norm+clip_by_value+adam"
    assert "clip_by_value_2" in optimizer.init({"w": np.ones(2, F32)})


@pytest.mark.parametrize("device", devices())
def test_a_chain_feeds_each_part_with_the_updates_before(device: str) -> None:
    optimizer = optim.chain(optim.clip_by_value(4.0), optim.clip_by_global_norm(1.0), optim.sgd(2.0))
    found, _ = update(optimizer, arrays([3], [40]), device)
    np.testing.assert_allclose([leaf[0] for leaf in found], [-1.2, -1.6], rtol=2e-7)
    reverse = optim.chain(optim.sgd(2.0), optim.clip_by_value(4.0))
    assert [leaf.tolist() for leaf in update(reverse, arrays([3], [-1]), device)[0]] == [[-4], [2]]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("bad", [INF, NAN])
def test_a_skipped_step_changes_nothing_but_its_count(bad: float, device: str) -> None:
    """Without the skip, moments of the step before would go on to move the parameters, and decay would shrink them."""
    optimizer = clipped_adam()
    _, before = update(optimizer, arrays([1, 2], [3]), device)
    updates, after = update(optimizer, arrays([bad, 2], [3]), device, before)
    assert [leaf.tolist() for leaf in updates] == [[0, 0], [0]]
    assert after["clip_by_global_norm"]["skipped"] == 1
    for leaf, kept in zip(tree.leaves(after["adamw"]), tree.leaves(before["adamw"]), strict=True):
        np.testing.assert_array_equal(leaf, kept)
    assert before["adamw"]["count"] == 1


def test_a_step_after_a_skipped_one_is_the_step_without_it() -> None:
    optimizer = clipped_adam()
    _, first = update(optimizer, arrays([1, 2], [3]), "host")
    _, skipped = update(optimizer, arrays([NAN, 2], [3]), "host", first)
    direct, _ = update(optimizer, arrays([3, 2], [1]), "host", first)
    detour, _ = update(optimizer, arrays([3, 2], [1]), "host", skipped)
    for leaf, other in zip(direct, detour, strict=True):
        np.testing.assert_array_equal(leaf, other)


def test_chains_nest() -> None:
    """The outer clip, the inner clip, or both leave a step out; each counts its own, and Adam stands still."""
    inner = optim.chain(optim.clip_by_global_norm(2.0), optim.adam(0.1))
    optimizer = optim.chain(optim.clip_by_value(INF), inner, optim.clip_by_global_norm(1.0))
    updates, state = update(optimizer, arrays([NAN]), "host")
    assert updates[0].tolist() == [0]
    assert state["clip_by_global_norm+adam"]["adam"]["count"] == 0
    assert optimizer.readings["skipped"](state) == 1
    updates, state = update(optimizer, arrays([1]), "host", state)
    assert state["clip_by_global_norm+adam"]["adam"]["count"] == 1
    np.testing.assert_allclose(updates[0], [-0.1], rtol=1e-6)
    assert optimizer.readings["skipped"](state) == 1


def test_what_makes_no_chain_is_refused() -> None:
    with pytest.raises(SettingError, match="at least one"):
        optim.chain()
    with pytest.raises(SettingError, match=r"chain: each part must be an Optimizer, found 0\.1"):
        optim.chain(optim.clip_by_value(1.0), 0.1)  # pyright: ignore


# Readings


def test_readings() -> None:
    parameters = {"w": np.ones(2, F32)}
    clipped = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(RATE))
    for optimizer in (optim.sgd(RATE), optim.adam(RATE), clipped):
        state, seen = optimizer.init(parameters), []
        for _ in range(5):
            seen.append(float(optimizer.readings["learning_rate"](state)))
            _, state = optimizer.update(parameters, state, parameters)
        assert seen == [0.25, 0.5, 0.75, 1, 1]
    assert clipped.readings["skipped"](clipped.init(parameters)) == 0
    fixed = optim.adam(0.5)
    assert fixed.readings["learning_rate"](fixed.init(parameters)) == F32(0.5)


RATED = [
    optim.sgd(RATE),
    optim.sgd(RATE, 1e-9),
    optim.adam(RATE, b1=0, b2=0),
    optim.adamw(RATE, b1=0, b2=0),
    optim.rmsprop(RATE, decay=0),
    optim.lion(RATE),
    optim.adafactor(RATE, scale_parameter=False),
]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("optimizer", RATED, ids=lambda optimizer: optimizer.kind)
def test_the_rate_that_is_read_is_the_rate_that_is_applied(optimizer: optim.Optimizer, device: str) -> None:
    """A gradient of 1 moves by one learning rate, and under AdamW by its decay of 1 % more."""
    state, moved = None, []
    for _ in range(5):
        updates, state = update(optimizer, arrays([1]), device, state)
        moved.append(-updates[0].item() / (1.01 if optimizer.kind == "adamw" else 1))
    np.testing.assert_allclose(moved, [0.25, 0.5, 0.75, 1, 1], rtol=2e-7)


def test_readings_of_two_optimizers_in_a_chain_have_two_names() -> None:
    optimizer = optim.chain(optim.sgd(0.5), optim.sgd(0.25))
    state = optimizer.init({"w": np.ones(2, F32)})
    found = {name: float(reading(state)) for name, reading in optimizer.readings.items()}
    assert found == {"learning_rate": 0.5, "learning_rate_sgd_2": 0.25}


# Weight decay


def model() -> dict[str, Any]:
    """A linear layer and a layer norm, all ones."""
    dense = {"w": np.ones((2, 2), F32), "b": np.ones(2, F32)}
    return {"dense": dense, "norm": {"gain": np.ones(2, F32), "bias": np.ones(2, F32)}}


@pytest.mark.parametrize("device", devices())
def test_case_weight_decay_mask(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    optimizer = optim.adamw(0.1, weight_decay=0.1, mask=optim.decay_matrices)
    parameters, state = model(), optimizer.init(model())
    gradients = tree.map(np.zeros_like, parameters)
    program = ag.capture(optimizer.update, gradients, state, parameters)
    updates, _ = program.run(gradients, state, parameters, device=device)
    stepped = tree.named_leaves(optim.apply_updates(parameters, updates))
    np.testing.assert_allclose(stepped.pop("dense.w"), 0.99, rtol=1.2e-7)
    assert all((leaf == 1).all() for leaf in stepped.values())
    optim.decay_report(parameters, optim.decay_matrices)
    assert capsys.readouterr().out == (
        "weight decay: 1 tensors, 4 elements\n"
        "  dense.w  f32[2,2]\n"
        "no weight decay: 3 tensors, 6 elements\n"
        "  dense.b  f32[2]\n"
        "  norm.bias  f32[2]\n"
        "  norm.gain  f32[2]\n"
    )


@pytest.mark.parametrize("transform", ["adamw", "chain"])
def test_masks_see_paths(transform: str) -> None:
    def mask(path: str, parameter: Any) -> bool:
        return path.startswith("norm.")

    decayed = optim.chain(optim.add_decayed_weights(0.5, mask), optim.sgd(1.0))
    optimizer = decayed if transform == "chain" else optim.adamw(1.0, weight_decay=0.5, mask=mask)
    parameters = model()
    updates, _ = optimizer.update(tree.map(np.zeros_like, parameters), optimizer.init(parameters), parameters)
    moved = {path for path, leaf in tree.named_leaves(updates).items() if (leaf == -0.5).all()}
    still = {path for path, leaf in tree.named_leaves(updates).items() if (leaf == 0).all()}
    assert (moved, still) == ({"norm.gain", "norm.bias"}, {"dense.w", "dense.b"})


def test_without_a_mask_all_parameters_decay() -> None:
    optimizer, parameters = optim.adamw(0.1, weight_decay=0.1), model()
    updates, _ = optimizer.update(tree.map(np.zeros_like, parameters), optimizer.init(parameters), parameters)
    for leaf in tree.leaves(updates):
        np.testing.assert_allclose(leaf, -0.01, rtol=1.2e-7)


def test_no_decay_is_adam() -> None:
    gradients = arrays([1, -2], [3])
    plain, _ = update(optim.adam(0.1), gradients, "host")
    for leaf, other in zip(update(optim.adamw(0.1, weight_decay=0.0), gradients, "host")[0], plain, strict=True):
        np.testing.assert_array_equal(leaf, other)


def test_apply_updates_needs_one_structure() -> None:
    with pytest.raises(ShapeError, match=r"apply_updates: at 'b' parameters has nothing and updates has shape \(1,\)"):
        optim.apply_updates({"a": np.ones(1, F32)}, {"a": np.ones(1, F32), "b": np.ones(1, F32)})
