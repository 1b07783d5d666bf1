"""The optimizers: single steps by hand, fifty steps against torch and optax, and what their programs look like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np
import optax
import pytest

import antegrad as ag
from antegrad import optim, tree
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.program import Program
from tests.support import devices

F32 = np.float32
STEPS = 50


def step_program(optimizer: optim.Optimizer, parameters: Any) -> Program:
    """``(parameters, state, gradients) -> (parameters, state)``, simplified."""

    def step(parameters: Any, state: Any, gradients: Any) -> Any:
        updates, state = optimizer.update(gradients, state, parameters)
        return optim.apply_updates(parameters, updates), state

    return ag.simplify(ag.capture(step, parameters, optimizer.init(parameters), parameters))


def train(optimizer: optim.Optimizer, parameters: Any, gradients: list[Any], device: str) -> tuple[Any, Any]:
    """Parameters and state after one step for each of `gradients`."""
    program, state = step_program(optimizer, parameters), optimizer.init(parameters)
    for gradient in gradients:
        parameters, state = program.run(parameters, state, gradient, device=device)
    return parameters, state


def scalar_steps(optimizer: optim.Optimizer, parameter: float, gradients: list[float], device: str) -> float:
    trees = [{"p": np.array(gradient, F32)} for gradient in gradients]
    return train(optimizer, {"p": np.array(parameter, F32)}, trees, device)[0]["p"].item()


# Single steps


@pytest.mark.parametrize("device", devices())
def test_case_adamw_one_step(device: str) -> None:
    optimizer = optim.adamw(0.1, weight_decay=0.1)
    assert scalar_steps(optimizer, 1, [0.5], device) == pytest.approx(0.89, abs=6e-8)
    assert scalar_steps(optimizer, 1, [0], device) == pytest.approx(0.99, abs=6e-8)


@pytest.mark.parametrize("device", devices())
def test_case_sgd_momentum(device: str) -> None:
    assert scalar_steps(optim.sgd(0.1, momentum=0.9), 1, [1, 1], device) == pytest.approx(0.71, abs=6e-8)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("scale", [1e-4, 1, 1e4])
def test_the_first_step_of_adam_has_the_size_of_the_learning_rate(scale: float, device: str) -> None:
    moved = scalar_steps(optim.adam(0.125), 0, [-scale], device)
    assert moved == pytest.approx(0.125 / (1 + 1e-8 / scale), rel=3e-7)


@pytest.mark.parametrize("device", devices())
def test_adam_without_memory_is_sign_descent(device: str) -> None:
    assert scalar_steps(optim.adam(0.25, b1=0, b2=0), 0, [3, -1, -1], device) == pytest.approx(0.25, rel=1e-6)


@pytest.mark.parametrize("device", devices())
def test_a_gradient_of_zero_moves_nothing(device: str) -> None:
    for optimizer in (optim.adam(1.0), optim.sgd(1.0), optim.sgd(1.0, momentum=0.9)):
        assert scalar_steps(optimizer, 3, [0, 0], device) == 3


def test_a_variance_that_rounds_below_zero_is_zero() -> None:
    """A constant gradient of 0.1: the difference of the f32 means ends at -4e-8."""
    optimizer, parameter = optim.rmsprop(1e-9, centered=True), np.zeros(1, F32)
    gradient, state, below = np.full(1, 0.1, F32), optimizer.init(parameter), False
    for _ in range(2000):
        updates, state = optimizer.update(gradient, state, parameter)
        below |= bool(state["v"] < state["m"] ** 2)
        assert np.isfinite(updates).all()
    assert below


def test_decay_uses_the_old_parameter() -> None:
    """p = 1, g = 0.5: decay of the new parameter (0.9) would give 0.891."""
    assert scalar_steps(optim.adamw(0.1, weight_decay=0.1), 1, [0.5], "host") != pytest.approx(0.891, abs=1e-4)


# Fifty steps


def problem() -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    """Parameters of size 1, and gradients whose sizes spread over five orders of magnitude."""
    rng = np.random.default_rng(0)
    parameters = {"b": rng.normal(size=4).astype(F32), "w": rng.normal(size=(5, 4)).astype(F32)}
    sizes = 10.0 ** rng.uniform(-4, 1, STEPS)
    draws = [{name: (s * rng.normal(size=p.shape)).astype(F32) for name, p in parameters.items()} for s in sizes]
    return parameters, draws


ADAM = {"b1": 0.8, "b2": 0.99, "eps": 1e-3}


def relative_step(count: Any) -> Any:
    return jax.numpy.minimum(0.01, 1 / jax.numpy.sqrt(count + 1.0))


MAKERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any, Any], Any] | None]] = {
    "adam": (
        lambda o: o.adam(1e-2),
        lambda o: o.adam(1e-2),
        lambda o, p: o.Adam(p, 1e-2),
    ),
    "adam-eps": (
        lambda o: o.adam(1e-2, **ADAM),
        lambda o: o.adam(1e-2, **ADAM),
        lambda o, p: o.Adam(p, 1e-2, betas=(0.8, 0.99), eps=1e-3),
    ),
    "adamw": (
        lambda o: o.adamw(1e-2, weight_decay=0.1),
        lambda o: o.adamw(1e-2, weight_decay=0.1),
        lambda o, p: o.AdamW(p, 1e-2, weight_decay=0.1),
    ),
    "sgd": (
        lambda o: o.sgd(1e-2),
        lambda o: o.sgd(1e-2),
        lambda o, p: o.SGD(p, 1e-2),
    ),
    "momentum": (
        lambda o: o.sgd(1e-2, 0.9),
        lambda o: o.sgd(1e-2, 0.9),
        lambda o, p: o.SGD(p, 1e-2, momentum=0.9),
    ),
    "nesterov": (
        lambda o: o.sgd(1e-2, 0.9, nesterov=True),
        lambda o: o.sgd(1e-2, 0.9, nesterov=True),
        lambda o, p: o.SGD(p, 1e-2, momentum=0.9, nesterov=True),
    ),
    "sgd-decay": (
        lambda o: o.sgd(1e-2, 0.9, nesterov=True, weight_decay=0.1),
        lambda o: o.chain(o.add_decayed_weights(0.1), o.sgd(1e-2, 0.9, nesterov=True)),
        lambda o, p: o.SGD(p, 1e-2, momentum=0.9, nesterov=True, weight_decay=0.1),
    ),
    "rmsprop": (
        lambda o: o.rmsprop(1e-2),
        lambda o: o.rmsprop(1e-2, 0.99, eps_in_sqrt=False),
        lambda o, p: o.RMSprop(p, 1e-2),
    ),
    "rmsprop-all": (
        lambda o: o.rmsprop(1e-3, 0.95, 1e-3, 0.9, True, 0.1),
        lambda o: o.chain(
            o.add_decayed_weights(0.1), o.rmsprop(1e-3, 0.95, 1e-3, eps_in_sqrt=False, centered=True, momentum=0.9)
        ),
        lambda o, p: o.RMSprop(p, 1e-3, 0.95, 1e-3, momentum=0.9, centered=True, weight_decay=0.1),
    ),
    "lion": (
        lambda o: o.lion(1e-2, 0.8, 0.95, weight_decay=0.1),
        lambda o: o.lion(1e-2, 0.8, 0.95, weight_decay=0.1),
        None,
    ),
    "adafactor": (
        lambda o: o.adafactor(smallest_factored=1, weight_decay=0.1),
        lambda o: o.adafactor(relative_step, min_dim_size_to_factor=1, weight_decay_rate=1e-3),
        lambda o, p: o.Adafactor(p, 1e-2, eps=(1e-30, 1e-3), weight_decay=0.1),
    ),
    "adafactor-plain": (
        lambda o: o.adafactor(1e-3, 0.6, 2.0, scale_parameter=False),
        lambda o: o.adafactor(1e-3, 128, 0.6, multiply_by_parameter_scale=False, clipping_threshold=2.0),
        None,
    ),
    "decayed": (
        lambda o: o.chain(o.add_decayed_weights(0.1), o.sgd(1e-2, 0.9)),
        lambda o: o.chain(o.add_decayed_weights(0.1), o.sgd(1e-2, 0.9)),
        lambda o, p: o.SGD(p, 1e-2, momentum=0.9, weight_decay=0.1),
    ),
}


def by_optax(optimizer: Any) -> dict[str, np.ndarray]:
    """Fifty steps of an optax optimizer in f64."""
    parameters, gradients = problem()
    with jax.enable_x64(True):
        values = {name: jax.numpy.asarray(p, np.float64) for name, p in parameters.items()}
        state = optimizer.init(values)
        for gradient in gradients:
            wide = {name: jax.numpy.asarray(g, np.float64) for name, g in gradient.items()}
            updates, state = optimizer.update(wide, state, values)
            values = optax.apply_updates(values, updates)
        return {name: np.asarray(value) for name, value in values.items()}


def by_torch(make: Callable[[Any, Any], Any]) -> dict[str, np.ndarray]:
    """Fifty steps of a torch optimizer in f64."""
    torch = pytest.importorskip("torch")
    parameters, gradients = problem()
    values = {name: torch.nn.Parameter(torch.tensor(p, dtype=torch.float64)) for name, p in parameters.items()}
    optimizer = make(torch.optim, list(values.values()))
    for gradient in gradients:
        for name, value in values.items():
            value.grad = torch.tensor(gradient[name], dtype=torch.float64)
        optimizer.step()
    return {name: value.detach().numpy() for name, value in values.items()}


def assert_near(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Parameters below 4 in size, within a quarter of a unit in the last place for each step."""
    for name, value in expected.items():
        assert np.abs(value).max() < 4
        np.testing.assert_allclose(found[name], value, rtol=0, atol=STEPS * 2.0**-24, err_msg=name)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", MAKERS)
def test_fifty_steps_are_those_of_optax(name: str, device: str) -> None:
    own, theirs, _ = MAKERS[name]
    found, state = train(own(optim), *problem(), device)
    assert_near(found, by_optax(theirs(optax)))
    assert [int(leaf) for path, leaf in tree.named_leaves(state).items() if path.endswith("count")] == [STEPS]


@pytest.mark.parametrize("name", [name for name, makers in MAKERS.items() if makers[2]])
def test_fifty_steps_are_those_of_torch(name: str) -> None:
    own, _, theirs = MAKERS[name]
    assert theirs is not None
    assert_near(train(own(optim), *problem(), "host")[0], by_torch(theirs))


@pytest.mark.parametrize("name", MAKERS)
def test_captured_and_at_once_are_the_same_bits(name: str) -> None:
    optimizer, (parameters, gradients) = MAKERS[name][0](optim), problem()
    captured, captured_state = train(optimizer, parameters, gradients[:5], "host")
    state = optimizer.init(parameters)
    for gradient in gradients[:5]:
        updates, state = optimizer.update(gradient, state, parameters)
        parameters = optim.apply_updates(parameters, updates)
    for found, expected in ((parameters, captured), (state, captured_state)):
        assert tree.structure(found) == tree.structure(expected)
        for leaf, other in zip(tree.leaves(found), tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(leaf, other)


def test_bias_correction_keeps_the_digits_of_a_slow_second_moment() -> None:
    """1 - 0.99999**t in f32 is off by 0.2 % at t = 1; the first step must still be one learning rate."""
    moved = scalar_steps(optim.adam(0.125, b2=0.99999), 0, [-1], "host")
    assert moved == pytest.approx(0.125, rel=3e-7)


# State


def test_state_has_the_names_of_checkpoints() -> None:
    parameters = {"0": {"w": np.ones((2, 3), F32)}}
    names = {
        "adam": {"count": "i32[]", "m.0.w": "f32[2,3]", "v.0.w": "f32[2,3]"},
        "adamw": {"count": "i32[]", "m.0.w": "f32[2,3]", "v.0.w": "f32[2,3]"},
        "sgd": {"count": "i32[]"},
        "momentum": {"count": "i32[]", "momentum.0.w": "f32[2,3]"},
        "rmsprop": {"count": "i32[]", "v.0.w": "f32[2,3]"},
        "rmsprop-all": {"count": "i32[]", "m.0.w": "f32[2,3]", "momentum.0.w": "f32[2,3]", "v.0.w": "f32[2,3]"},
        "lion": {"count": "i32[]", "m.0.w": "f32[2,3]"},
        "adafactor": {"column.0.w": "f32[3]", "count": "i32[]", "row.0.w": "f32[2]"},
        "adafactor-plain": {"count": "i32[]", "v.0.w": "f32[2,3]"},
    }
    for name, expected in names.items():
        optimizer = MAKERS[name][0](optim)
        assert optimizer.kind == {"momentum": "sgd"}.get(name, name.partition("-")[0])
        state = tree.named_leaves(optimizer.init(parameters))
        assert {path: str(ag.spec(leaf.shape, leaf.dtype)) for path, leaf in state.items()} == expected
        assert all((leaf == 0).all() for leaf in state.values())


def test_state_shares_no_memory() -> None:
    """Arrays that are donated must be distinct."""
    leaves = tree.leaves(optim.adam(1e-3).init({"a": np.ones(3, F32), "b": np.ones(3, F32)}))
    assert len({leaf.ctypes.data for leaf in leaves}) == len(leaves)


def test_a_step_changes_nothing_in_place() -> None:
    parameters, gradients = problem()
    optimizer = optim.adam(1e-2)
    state = optimizer.init(parameters)
    before = [leaf.copy() for leaf in tree.leaves((parameters, state, gradients[0]))]
    optimizer.update(gradients[0], state, parameters)
    for leaf, copy in zip(tree.leaves((parameters, state, gradients[0])), before, strict=True):
        np.testing.assert_array_equal(leaf, copy)


def test_a_bare_array_is_a_tree() -> None:
    optimizer, parameter = optim.adam(0.5), np.zeros(2, F32)
    updates, state = optimizer.update(np.array([1, -1], F32), optimizer.init(parameter), parameter)
    np.testing.assert_allclose(updates, [-0.5, 0.5], rtol=1e-6)
    assert set(tree.named_leaves(state)) == {"count", "m", "v"}


# Element types


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(
    "optimizer",
    [
        optim.adam(1e-3),
        optim.sgd(1e-3, 0.9, weight_decay=0.1),
        optim.adamw(1e-3),
        optim.rmsprop(1e-3, momentum=0.9, centered=True, weight_decay=0.1),
        optim.lion(1e-3, weight_decay=0.1),
        optim.adafactor(smallest_factored=1, weight_decay=0.1),
        optim.muon(1e-3, weight_decay=0.1),
    ],
    ids=lambda o: o.kind,
)
def test_bf16_parameters_have_f32_state_and_updates(optimizer: optim.Optimizer, device: str) -> None:
    parameters = {"b": np.ones(3, ml_dtypes.bfloat16), "w": np.ones((3, 2), ml_dtypes.bfloat16)}
    updates, state = optimizer.update(parameters, optimizer.init(parameters), parameters)
    floats = [leaf for leaf in tree.leaves((updates, state)) if leaf.ndim]
    assert {leaf.dtype for leaf in floats} == {np.dtype(F32)}
    stepped, _ = train(optimizer, parameters, [parameters], device)
    assert stepped["w"].dtype == ml_dtypes.bfloat16


def test_an_update_is_added_in_f32_and_rounded_once() -> None:
    """1 + 2**-8 + 2**-20 is just above the middle of two bf16 values; an update rounded first would land in it."""
    parameters, updates = {"w": np.ones(1, ml_dtypes.bfloat16)}, {"w": np.array([2**-8 + 2**-20], F32)}
    assert float(optim.apply_updates(parameters, updates)["w"][0]) == 1 + 2**-7


def test_updates_below_half_a_unit_of_bf16_are_lost() -> None:
    """What `apply_updates` documents: bf16 parameters stand still where f32 ones move."""
    results = {}
    for dtype in (ml_dtypes.bfloat16, F32):
        parameter = np.ones(1, dtype)
        for _ in range(100):
            parameter = optim.apply_updates(parameter, parameter.astype(F32) * F32(-6e-4))
        results[dtype] = float(parameter[0])
    assert results[ml_dtypes.bfloat16] == 1
    assert results[F32] == pytest.approx(0.9417, abs=5e-5)


def test_f64_parameters_are_trained_in_f64() -> None:
    parameters, gradients = problem()
    wide = [{name: g.astype(np.float64) for name, g in gradient.items()} for gradient in gradients]
    found, state = train(optim.adam(1e-2), {n: p.astype(np.float64) for n, p in parameters.items()}, wide, "host")
    assert state["m"]["w"].dtype == np.float64
    expected = by_optax(optax.adam(1e-2))
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-12)


def test_a_wide_gradient_does_not_widen_the_state() -> None:
    parameters, gradients = {"w": np.ones((3, 2), F32)}, {"w": np.ones((3, 2))}
    for name in MAKERS:
        if name != "decayed":
            optimizer = MAKERS[name][0](optim)
            updates, state = optimizer.update(gradients, optimizer.init(parameters), parameters)
            assert {leaf.dtype for leaf in tree.leaves((updates, state)) if leaf.ndim} == {np.dtype(F32)}, name


def test_integer_parameters_are_refused() -> None:
    for optimizer in (optim.adam(1e-3), optim.sgd(1e-3), optim.adafactor(), optim.lion(1e-3), optim.ema(0.9)):
        with pytest.raises(DTypeError, match=r"parameter 'steps' is i32\[2\], but only float parameters"):
            optimizer.init({"steps": np.zeros(2, np.int32)})


def test_no_parameters_are_trained_in_no_time() -> None:
    for name in MAKERS:
        optimizer = MAKERS[name][0](optim)
        updates, state = optimizer.update({}, optimizer.init({}), {})
        assert updates == {}
        assert [int(leaf) for leaf in tree.leaves(state)] == [1], name


# Wrong use


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        ({"w": np.zeros(3, F32)}, r"adam: at 'w' parameters has shape \(2, 3\) and gradients has shape \(3,\)"),
        ({}, r"at 'w' parameters has shape \(2, 3\) and gradients has nothing"),
        ({"w": np.zeros((2, 3), F32), "x": np.zeros(1, F32)}, r"at 'x' parameters has nothing and gradients has shape"),
    ],
)
def test_gradients_must_fit(gradients: Any, message: str) -> None:
    optimizer, parameters = optim.adam(1e-3), {"w": np.zeros((2, 3), F32)}
    with pytest.raises(ShapeError, match=message):
        optimizer.update(gradients, optimizer.init(parameters), parameters)


def test_a_schedule_gives_one_number() -> None:
    optimizer = optim.sgd(lambda count: np.ones(1, F32))
    with pytest.raises(ShapeError, match=r"a learning rate is one number, .* gave shape \(1,\)"):
        optimizer.update(np.ones(1, F32), optimizer.init(np.ones(1, F32)), np.ones(1, F32))


# Programs


def disc_parameters() -> dict[str, Any]:
    sizes = {"0": (2, 16), "2": (16, 16), "4": (16, 1)}
    return {key: {"b": np.zeros(shape[1], F32), "w": np.zeros(shape, F32)} for key, shape in sizes.items()}


def test_the_program_of_adam_is_lean() -> None:
    """Two lines for the moments and one for the parameter of each tensor; what depends on the step alone, once."""
    program = step_program(optim.adam(0.02), disc_parameters())
    lines = [line.partition("#")[0].strip() for line in program.python().splitlines() if " = " in line]
    assert len(lines) == 5 + 3 * 6
    assert sum("expm1" in line for line in lines) == 2
    for name in ("w0", "b0", "w2", "b2", "w4", "b4"):
        assert sum(line.startswith(f"new_m_{name} = ") for line in lines) == 1
        assert sum(line.startswith(f"new_v_{name} = ") for line in lines) == 1
        assert sum(line.startswith(f"new_{name} = ") for line in lines) == 1
    elementwise = [e for e in program.equations if e.output.type.shape == (16, 16) and e.primitive.broadcasts]
    assert len(elementwise) == 3 + 4 + 5


def test_f32_stays_f32() -> None:
    """Hyperparameters enter weakly typed: nothing is widened, and only the count is converted."""
    for name in MAKERS:
        program = step_program(MAKERS[name][0](optim), disc_parameters())
        types = {equation.output.type.dtype for equation in program.equations}
        assert types <= {np.dtype(F32), np.dtype(np.int32)}, name
        converted = [equation.output.type for equation in program.equations if equation.primitive.name == "convert"]
        assert len(converted) <= (2 if name == "adafactor" else 1), name
        assert all(type.shape == () for type in converted), name
