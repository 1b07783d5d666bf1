"""Muon: the iteration against a singular value decomposition, steps against torch and optax, shapes and refusals."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax.contrib
import pytest

import antegrad as ag
from antegrad import optim, tree
from antegrad.errors import SettingError, ShapeError
from antegrad.optim.muon import orthogonalized
from tests.support import devices

F32 = np.float32
STEPS = 20
SHAPES = {"b": (4,), "square": (5, 5), "tall": (7, 4), "wide": (3, 6)}


def problem(shapes: dict[str, tuple[int, ...]] = SHAPES) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    """Parameters and gradients in f64."""
    rng = np.random.default_rng(0)
    draws = [{name: rng.normal(size=shape) for name, shape in shapes.items()} for _ in range(STEPS + 1)]
    return draws[0], draws[1:]


def train(optimizer: optim.Optimizer, parameters: Any, gradients: list[Any], device: str = "host") -> Any:
    def step(parameters: Any, state: Any, gradients: Any) -> Any:
        updates, state = optimizer.update(gradients, state, parameters)
        return optim.apply_updates(parameters, updates), state

    state = optimizer.init(parameters)
    program = ag.simplify(ag.capture(step, parameters, state, parameters))
    for gradient in gradients:
        parameters, state = program.run(parameters, state, gradient, device=device)
    return parameters


def only(names: tuple[str, ...], draws: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: draws[name] for name in names}


MATRICES = ("square", "tall", "wide")


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (64, 20), (3, 50)])
def test_singular_values_come_near_one(shape: tuple[int, int], device: str) -> None:
    x = np.random.default_rng(1).normal(size=shape).astype(F32)
    found = np.asarray(ag.capture(orthogonalized, x).run(x, device=device))
    left, _, right = np.linalg.svd(x, full_matrices=False)
    sizes = np.diag(left.T @ found @ right.T)
    np.testing.assert_allclose(found, left * sizes @ right, atol=2e-5)
    assert sizes.min() > 0.68
    assert sizes.max() < 1.21


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_the_size_of_a_gradient_does_not_matter(scale: float) -> None:
    x = np.random.default_rng(1).normal(size=(5, 3)).astype(F32)
    np.testing.assert_allclose(orthogonalized(x * F32(scale)), orthogonalized(x), rtol=0, atol=1e-4)


def test_zeros_stay_zeros() -> None:
    assert not np.asarray(orthogonalized(np.zeros((3, 2), F32))).any()


def test_stacks_are_orthogonalized_layer_by_layer() -> None:
    x = np.random.default_rng(1).normal(size=(3, 5, 4))
    np.testing.assert_allclose(orthogonalized(x), [orthogonalized(layer) for layer in x], rtol=1e-12)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("rms", [None, 0.2])
def test_steps_are_those_of_torch(nesterov: bool, rms: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In f64 and on transposed weights; torch's iteration is in bf16, which is replaced by f64 here."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self.double().clone())
    parameters, gradients = problem()
    own = optim.muon(0.02, momentum=0.9, nesterov=nesterov, weight_decay=0.1, consistent_rms=rms)
    found = train(own, parameters, gradients)
    values = {name: torch.nn.Parameter(torch.tensor(parameters[name].T.copy())) for name in MATRICES}
    theirs = torch.optim.Muon(
        list(values.values()),
        0.02,
        weight_decay=0.1,
        momentum=0.9,
        nesterov=nesterov,
        adjust_lr_fn="match_rms_adamw" if rms else "original",
    )
    for gradient in gradients:
        for name, value in values.items():
            value.grad = torch.tensor(gradient[name].T.copy())
        theirs.step()
    for name, value in values.items():
        np.testing.assert_allclose(found[name], value.detach().numpy().T, rtol=0, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("rms", [None, 0.2])
def test_steps_without_nesterov_are_those_of_optax(rms: float | None) -> None:
    """The biases too, by AdamW."""
    parameters, gradients = problem()
    own = optim.muon(0.02, nesterov=False, weight_decay=0.1, consistent_rms=rms)
    found = train(own, parameters, gradients)
    theirs = optax.contrib.muon(0.02, nesterov=False, weight_decay=0.1, adam_weight_decay=0.1, consistent_rms=rms)
    with jax.enable_x64(True):
        values: Any = {name: jax.numpy.asarray(p) for name, p in parameters.items()}
        state = theirs.init(values)
        for gradient in gradients:
            updates, state = theirs.update({name: jax.numpy.asarray(g) for name, g in gradient.items()}, state, values)
            values = optax.apply_updates(values, updates)
        for name, value in values.items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-7, err_msg=name)


@pytest.mark.parametrize("device", devices())
def test_f32_steps_are_those_in_f64(device: str) -> None:
    parameters, gradients = problem()
    optimizer = optim.muon(0.02, weight_decay=0.1)
    narrow = [{name: leaf.astype(F32) for name, leaf in draws.items()} for draws in (parameters, *gradients)]
    found = train(optimizer, narrow[0], narrow[1:], device)
    for name, value in train(optimizer, parameters, gradients).items():
        assert found[name].dtype == F32
        np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-5, err_msg=name)


def test_the_kernel_of_a_convolution_is_a_matrix_of_its_outputs() -> None:
    kernels, gradients = problem({"w": (3, 3, 2, 5)})
    flat = [{"w": draws["w"].reshape(18, 5)} for draws in (kernels, *gradients)]
    found = train(optim.muon(0.02), kernels, gradients)["w"]
    np.testing.assert_array_equal(found.reshape(18, 5), train(optim.muon(0.02), flat[0], flat[1:])["w"])


def test_stacked_weights_are_single_ones() -> None:
    stacks, gradients = problem({"w": (3, 4, 6)})
    found = train(optim.muon(0.02, stacked="w"), stacks, gradients)["w"]
    for layer in range(3):
        own = [{"w": draws["w"][layer]} for draws in (stacks, *gradients)]
        np.testing.assert_allclose(found[layer], train(optim.muon(0.02), own[0], own[1:])["w"], rtol=1e-9)


def test_the_predicate_chooses_and_the_rest_is_adamw() -> None:
    parameters, gradients = problem()

    def hidden(path: str, parameter: Any) -> bool:
        return parameter.ndim == 2 and path != "tall"

    def mask(path: str, parameter: Any) -> bool:
        return path in ("wide", "tall")

    optimizer = optim.muon(0.02, hidden, weight_decay=0.1, mask=mask)
    found = train(optimizer, parameters, gradients)
    adamw = optim.adamw(0.02, weight_decay=0.1, mask=mask)
    rest = [only(("b", "tall"), draws) for draws in (parameters, *gradients)]
    for name, value in train(adamw, rest[0], rest[1:]).items():
        np.testing.assert_array_equal(found[name], value)
    still, decayed = train(optimizer, parameters, [tree.map(np.zeros_like, parameters)]), 1 - 0.02 * 0.1
    np.testing.assert_allclose(still["wide"], parameters["wide"] * decayed, rtol=1e-12)
    np.testing.assert_array_equal(still["square"], parameters["square"])
    assert [name for name in SHAPES if optimizer.decays(name, parameters[name])] == ["tall", "wide"]


def test_another_optimizer_for_the_rest() -> None:
    parameters, gradients = problem()
    optimizer = optim.muon(0.02, "s*", rest=optim.sgd(0.5))
    rest = [only(("b", "tall", "wide"), draws) for draws in (parameters, *gradients)]
    found = train(optimizer, parameters, gradients)
    for name, value in train(optim.sgd(0.5), rest[0], rest[1:]).items():
        np.testing.assert_array_equal(found[name], value)


def test_the_state_and_the_readings() -> None:
    optimizer = optim.muon(optim.schedules.linear_warmup(1.0, 4), rest=optim.adam(0.25))
    parameters, gradients = problem({"b": (4,), "w": (3, 2)})
    assert optimizer.kind == "muon"
    state = optimizer.init(parameters)
    assert sorted(tree.named_leaves(state)) == ["adam.count", "adam.m.b", "adam.v.b", "muon.count", "muon.m.w"]
    _, state = optimizer.update(gradients[0], state, parameters)
    assert optimizer.readings["learning_rate"](state) == 0.5
    assert optimizer.readings["learning_rate_adam"](state) == 0.25


def test_what_is_no_matrix_is_refused() -> None:
    message = r"muon: the hidden weight 'b' is f64\[4\], and only matrices can be .*: leave it out of `hidden`"
    with pytest.raises(ShapeError, match=message):
        optim.muon(0.02, "*").init(problem()[0])
    with pytest.raises(ShapeError, match=r"muon: the hidden weight 'tall' is f64\[7,4\], a stack, and only"):
        optim.muon(0.02, stacked="tall").init(problem()[0])
    with pytest.raises(SettingError, match=r"muon: every parameter.*\n  choosing no parameter \(1\): matrices"):
        optim.muon(0.02).init({"b": np.zeros(3)})
