"""The moving average of the weights: values by hand, skipped steps, reading, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import antegrad as ag
from antegrad import nn, optim, random, tree
from antegrad.errors import SettingError, ShapeError
from tests.support import devices

F32 = np.float32
NAN = float("nan")


def train(optimizer: optim.Optimizer, parameters: Any, gradients: list[Any], device: str = "host") -> tuple[Any, Any]:
    def step(parameters: Any, state: Any, gradients: Any) -> Any:
        updates, state = optimizer.update(gradients, state, parameters)
        return optim.apply_updates(parameters, updates), state

    state = optimizer.init(parameters)
    program = ag.simplify(ag.capture(step, parameters, state, parameters))
    for gradient in gradients:
        parameters, state = program.run(parameters, state, gradient, device=device)
    return parameters, state


def draws(count: int, dtype: Any = F32) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"b": rng.normal(size=3).astype(dtype), "w": rng.normal(size=(2, 3)).astype(dtype)} for _ in range(count)]


def path_of(parameters: Any, gradients: list[Any]) -> list[dict[str, np.ndarray]]:
    """The parameters after each step of SGD with a rate of 1, in f64."""
    points = [{name: leaf.astype(np.float64) for name, leaf in parameters.items()}]
    for gradient in gradients:
        points.append({name: leaf - gradient[name] for name, leaf in points[-1].items()})
    return points


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("debias", [False, True])
def test_the_average_is_a_geometric_one(debias: bool, device: str) -> None:
    """0.9**k of the point k steps ago; the first point keeps what is left, or with debias nothing."""
    parameters, *gradients = draws(13)
    found, state = train(optim.chain(optim.sgd(1.0), optim.ema(0.9, debias)), parameters, gradients, device)
    points = path_of(parameters, gradients)
    weights = 0.1 * 0.9 ** np.arange(len(gradients) - 1, -1, -1)
    weights = [0, *weights / weights.sum()] if debias else [0.9 ** len(gradients), *weights]
    average = optim.averaged(state, found)
    for name in parameters:
        expected = sum(weight * point[name] for weight, point in zip(weights, points, strict=True))
        np.testing.assert_allclose(average[name], expected, rtol=0, atol=1e-6)
        np.testing.assert_allclose(found[name], points[-1][name], rtol=0, atol=2e-6)
    assert int(state["ema"]["count"]) == len(gradients)


def test_the_average_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    parameters, *gradients = draws(11, np.float64)
    _, state = train(optim.chain(optim.sgd(1.0), optim.ema(0.8)), parameters, gradients)
    points = path_of(parameters, gradients)
    module = torch.nn.ParameterDict({name: torch.tensor(leaf) for name, leaf in points[0].items()})
    theirs = torch.optim.swa_utils.AveragedModel(module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8))
    theirs.update_parameters(module)  # torch's first average is what it is first given
    for point in points[1:]:
        for name, leaf in point.items():
            module[name].data = torch.tensor(leaf)
        theirs.update_parameters(module)
    for name, leaf in optim.averaged(state, parameters).items():
        np.testing.assert_allclose(leaf, theirs.module[name].detach().numpy(), rtol=1e-12)


def test_the_debiased_average_is_that_of_optax() -> None:
    import optax

    parameters, *gradients = draws(8)
    _, state = train(optim.chain(optim.sgd(1.0), optim.ema(0.9, debias=True)), parameters, gradients)
    theirs = optax.ema(0.9, debias=True)
    memory, average = theirs.init(parameters), None
    for point in path_of(parameters, gradients)[1:]:
        average, memory = theirs.update({name: leaf.astype(F32) for name, leaf in point.items()}, memory)
    assert isinstance(average, dict)
    for name, leaf in optim.averaged(state, parameters).items():
        np.testing.assert_allclose(leaf, average[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("debias", [False, True])
def test_a_constant_is_its_own_average(debias: bool) -> None:
    """Exactly, after any number of steps: rounding must not pull on it."""
    parameters = {"w": np.array([0.1, -3.7e5, 1e-30], F32)}
    still = {"w": np.zeros(3, F32)}
    found, state = train(optim.chain(optim.sgd(1.0), optim.ema(0.9999, debias)), parameters, [still] * 20)
    np.testing.assert_array_equal(optim.averaged(state, found)["w"], parameters["w"])


def test_training_is_the_same_with_an_average() -> None:
    parameters, *gradients = draws(5)
    plain, _ = train(optim.adam(0.1), parameters, gradients)
    watched, _ = train(optim.chain(optim.adam(0.1), optim.ema(0.9)), parameters, gradients)
    for name in parameters:
        np.testing.assert_array_equal(plain[name], watched[name])


def test_a_skipped_step_is_not_averaged() -> None:
    parameters, *gradients = draws(4)
    bad = {name: np.full_like(leaf, NAN) for name, leaf in parameters.items()}
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adam(0.1), optim.ema(0.9, debias=True))
    direct, state = train(optimizer, parameters, gradients)
    detour, other = train(optimizer, parameters, [gradients[0], bad, *gradients[1:]])
    for one, two in ((direct, detour), (state["ema"], other["ema"])):
        for leaf, same in zip(tree.leaves(one), tree.leaves(two), strict=True):
            np.testing.assert_array_equal(leaf, same)
    assert int(other["ema"]["count"]) == 3


@pytest.mark.parametrize("device", devices())
def test_bf16_weights_have_an_f32_average(device: str) -> None:
    """Of the rounded weights: 1, and 1 + 2**-7 after a step of 2**-7."""
    parameters = {"w": np.ones(2, ml_dtypes.bfloat16)}
    gradients = [{"w": np.full(2, -(2.0**-7), ml_dtypes.bfloat16)}]
    found, state = train(optim.chain(optim.sgd(1.0), optim.ema(0.75)), parameters, gradients, device)
    assert state["ema"]["average"]["w"].dtype == F32
    np.testing.assert_array_equal(state["ema"]["average"]["w"], F32(1 + 2.0**-9))
    assert optim.averaged(state, found)["w"].dtype == ml_dtypes.bfloat16


def test_the_state_begins_with_a_copy_of_the_parameters() -> None:
    parameters = {"0": {"w": np.array([-0.0, 1.0], F32)}}
    state = optim.ema(0.9).init(parameters)
    assert set(tree.named_leaves(state)) == {"count", "average.0.w"}
    assert state["average"]["0"]["w"].tobytes() == parameters["0"]["w"].tobytes()
    assert not np.shares_memory(state["average"]["0"]["w"], parameters["0"]["w"])


def test_what_is_frozen_has_no_average_and_is_read_as_it_is() -> None:
    parameters, *gradients = draws(3)
    optimizer = optim.freeze(optim.chain(optim.sgd(1.0), optim.ema(0.5)), "b")
    found, state = train(optimizer, parameters, gradients)
    assert [name for name in tree.named_leaves(state) if ".average." in name] == ["sgd+ema.ema.average.w"]
    read = optim.averaged(state, found)
    np.testing.assert_array_equal(read["b"], parameters["b"])
    points = path_of(parameters, gradients)
    expected = points[0]["w"] / 4 + points[1]["w"] / 4 + points[2]["w"] / 2
    np.testing.assert_allclose(read["w"], expected, atol=1e-6)


def test_the_average_of_a_module_is_a_module() -> None:
    layer = nn.Dense(3, 2, key=random.key(0))
    optimizer = optim.chain(optim.sgd(0.1), optim.ema(0.9))
    state = optimizer.init(layer)
    averaged = optim.averaged(state, layer)
    assert isinstance(averaged, nn.Dense)
    np.testing.assert_array_equal(averaged.w, layer.w)


def test_averages_in_groups_are_read_together() -> None:
    parameters, *gradients = draws(2)
    part = optim.chain(optim.sgd(1.0), optim.ema(0.0))
    found, state = train(optim.groups({"b": part}, part), parameters, gradients)
    for name, leaf in optim.averaged(state, parameters).items():
        np.testing.assert_array_equal(leaf, found[name])


def test_two_averages_are_read_one_by_one() -> None:
    parameters, *gradients = draws(2)
    found, state = train(optim.chain(optim.sgd(1.0), optim.ema(0.0)), parameters, gradients)
    both = {"ema": state["ema"], "ema_2": state["ema"]}
    with pytest.raises(SettingError, match="two averages"):
        optim.averaged(both, parameters)
    np.testing.assert_array_equal(optim.averaged(both["ema_2"], parameters)["w"], found["w"])


def test_refusals() -> None:
    for decay in (1.0, -0.1, NAN, "0.9"):
        with pytest.raises(SettingError, match=rf"ema: decay must be a number in \[0, 1\), found {decay!r}"):
            optim.ema(decay)  # pyright: ignore
    with pytest.raises(SettingError, match="ema: debias must be True or False"):
        optim.ema(0.9, debias=1)  # pyright: ignore
    average = optim.chain(optim.sgd(0.1), optim.ema(0.9))
    for parts in ((optim.ema(0.9), optim.sgd(0.1)), (average, optim.clip_by_value(1.0))):
        with pytest.raises(SettingError, match="chain: ema stands last"):
            optim.chain(*parts)
    with pytest.raises(SettingError, match="no average of the weights"):
        optim.averaged(optim.adam(0.1).init({"w": np.ones(2, F32)}), {"w": np.ones(2, F32)})
    state = optim.ema(0.9).init({"w": np.ones(2, F32)})
    with pytest.raises(ShapeError, match=r"at 'w' the average has shape \(2,\) and parameters has shape \(3,\)"):
        optim.averaged(state, {"w": np.ones(3, F32)})
    with pytest.raises(ShapeError, match=r"at 'w' the average has shape \(2,\) and parameters has nothing"):
        optim.averaged(state, {"v": np.ones(2, F32)})
