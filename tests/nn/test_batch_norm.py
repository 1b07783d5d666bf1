"""Batch normalization: torch's numbers over several steps, sample weights, and batches that are too small."""

from __future__ import annotations

import numpy as np
import pytest

import antegrad as ag
from antegrad import nn, ops
from antegrad.ir.types import DTYPES
from tests.nn.layer_checks import call, check_bf16, check_layer
from tests.support import assert_close, devices


def layer(rng: np.random.Generator, features: int = 3, **keywords) -> nn.BatchNorm:
    drawn = [rng.uniform(0.5, 2, features).astype("f") for _ in range(4)]
    names = ["scale", "bias", "mean", "var"]
    return nn.BatchNorm(features, **keywords).with_parameters(dict(zip(names, drawn, strict=True)))


def trained(model, x, weights=None):
    return nn.training_call(model, x, sample_weights=weights)


def test_evaluation_uses_the_running_statistics(rng: np.random.Generator) -> None:
    model, x = layer(rng), rng.normal(size=(2, 4, 3)).astype("f")
    check_layer(model, x, order=1)
    expected = (x.astype(np.float64) - model.mean) / np.sqrt(model.var + 1e-5) * model.scale + model.bias
    assert_close(model(x), expected, 1e-6, "evaluation")


def test_parameters_and_state_have_names(rng: np.random.Generator) -> None:
    model = nn.Sequential(nn.BatchNorm(3), nn.relu)
    assert list(model.named_parameters()) == ["0.scale", "0.bias", "0.mean", "0.var"]
    assert nn.state_paths(model) == {"0.mean", "0.var"}
    assert model.parameter_count() == 6
    assert nn.BatchNorm(3, dtype="bf16").mean.dtype == np.float32


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("momentum", [0.1, 0.7])
def test_three_steps_as_torch(momentum: float, device: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    model, theirs = layer(rng, momentum=momentum), torch.nn.BatchNorm2d(3, momentum=momentum)
    arrays = {k: torch.tensor(v) for k, v in model.named_parameters().items()}
    names = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "var"}
    theirs.load_state_dict({name: arrays[own] for name, own in names.items()}, strict=False)
    program = None
    for _ in range(3):
        x = rng.normal(5, 3, size=(4, 2, 3, 3)).astype("f")
        program = program or ag.capture(trained, model, x)
        y, changed = program.run(model, x, device=device)
        expected = theirs(torch.tensor(x).movedim(-1, 1)).movedim(1, -1).detach().numpy()
        assert_close(np.asarray(y), expected.astype(np.float64), 1e-6, "result")
        model = changed
        assert_close(np.asarray(model.mean), theirs.running_mean.numpy().astype(np.float64), 1e-6, "mean")
        assert_close(np.asarray(model.var), theirs.running_var.numpy().astype(np.float64), 1e-6, "var")


def test_gradient_in_training(rng: np.random.Generator) -> None:
    x, weights = rng.normal(size=(4, 3)), np.array([1.0, 1, 0, 1])
    ag.check_gradient(lambda model, x: trained(model, x)[0], layer(rng), x)
    ag.check_gradient(lambda model, x: trained(model, x, weights)[0], layer(rng), x, order=1)


def test_the_state_takes_no_part_in_derivatives(rng: np.random.Generator) -> None:
    def moved(x):
        return ops.sum(trained(nn.BatchNorm(3), x)[1].mean)

    np.testing.assert_array_equal(ag.grad(moved)(rng.normal(size=(4, 3)).astype("f")), np.zeros((4, 3)))


@pytest.mark.parametrize("device", devices())
def test_weight_zero_leaves_a_sample_out(device: str, rng: np.random.Generator) -> None:
    model, x = layer(rng), rng.normal(2, 3, size=(5, 2, 3)).astype("f")
    padded = np.concatenate([x, np.full((3, 2, 3), 1e4, "f")])
    weights = np.float32([1] * 5 + [0] * 3)
    y, after = ag.capture(trained, model, x).run(model, x, device=device)
    z, same = ag.capture(trained, model, padded, weights).run(model, padded, weights, device=device)
    assert_close(np.asarray(z)[:5], np.asarray(y, np.float64), 4e-7, "result")
    for name, expected in after.named_parameters().items():
        found = same.named_parameters()[name]
        assert_close(np.asarray(found), np.asarray(expected, np.float64), 4e-7, name)


def test_weights_count_as_copies(rng: np.random.Generator) -> None:
    model, x = layer(rng), rng.normal(size=(3, 3)).astype("f")
    _, twice = trained(model, x[[0, 0, 1, 2]])
    _, weighted = trained(model, x, np.float32([2, 1, 1]))
    np.testing.assert_allclose(weighted.mean, twice.mean, rtol=1e-6)
    np.testing.assert_allclose(weighted.var, twice.var, rtol=1e-6)


@pytest.mark.parametrize("device", devices())
def test_case_bn_batch_one(device: str) -> None:
    """One value a channel: the result is the bias, the running variance stays. An error would end a run whose last
    batch has one sample."""
    model, x = nn.BatchNorm(2), np.float32([[1, 2]])
    for weights in (None, np.float32([1])):
        y, after = ag.capture(trained, model, x, weights).run(model, x, weights, device=device)
        np.testing.assert_array_equal(y, [[0, 0]])
        np.testing.assert_allclose(after.mean, [0.1, 0.2], rtol=1e-6)
        np.testing.assert_array_equal(after.var, [1, 1])
    gradient = ag.grad(lambda x: ops.sum(trained(model, x)[0]))(x)
    np.testing.assert_array_equal(gradient, [[0, 0]])


def test_a_batch_without_a_sample_changes_nothing(rng: np.random.Generator) -> None:
    model = layer(rng)
    for x, weights in ((np.zeros((0, 3), "f"), None), (np.ones((2, 3), "f"), np.zeros(2, "f"))):
        y, after = trained(model, x, weights)
        assert np.isfinite(y).all()
        np.testing.assert_array_equal(after.mean, model.mean)
        np.testing.assert_array_equal(after.var, model.var)


def test_a_large_offset_cancels() -> None:
    y, after = trained(nn.BatchNorm(1), np.float32([[10000], [10001], [10002]]))
    np.testing.assert_allclose(y[:, 0], [-1.22474, 0, 1.22474], atol=1e-5)
    np.testing.assert_allclose(after.var, [1.0], rtol=1e-6)


def test_bf16_is_computed_in_f32(rng: np.random.Generator) -> None:
    x = rng.normal(100, 1, size=(8, 3))
    check_bf16(layer(rng), x)
    check_bf16(lambda x: trained(nn.BatchNorm(3), x)[0], x)
    assert trained(nn.BatchNorm(3), x.astype(DTYPES["bf16"]))[1].var.dtype == np.float32


def test_a_layer_called_twice_moves_twice(rng: np.random.Generator) -> None:
    class Twice(nn.Module):
        norm: nn.BatchNorm

        def __call__(self, x, y):
            return self.norm(x), self.norm(y)

    x, y = rng.normal(size=(2, 4, 3)).astype("f")
    _, both = nn.training_call(Twice(nn.BatchNorm(3)), x, y)
    expected = trained(trained(nn.BatchNorm(3), x)[1], y)[1]
    np.testing.assert_array_equal(both.norm.mean, expected.mean)
    np.testing.assert_array_equal(both.norm.var, expected.var)


def test_vmap_trains_every_model_by_itself(rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 4, 3)).astype("f")
    y, after = ag.vmap(trained, in_axes=(None, 0))(nn.BatchNorm(3), x)
    for index in range(2):
        expected, changed = trained(nn.BatchNorm(3), x[index])
        np.testing.assert_allclose(y[index], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(after.var[index], changed.var, rtol=1e-6)


def test_misfits() -> None:
    model = nn.Sequential(nn.BatchNorm(4))
    with pytest.raises(ag.ShapeError, match=r"BatchNorm\(4\) .*size 4, .*found f32\[2,3\]\n  at layer 0, .*test_batch"):
        model(np.zeros((2, 3), "f"))
    with pytest.raises(ag.ShapeError, match=r"float\[2\] .* a batch of f32\[2,4\], found f32\[3\]\n  at layer 0"):
        trained(model, np.zeros((2, 4), "f"), np.ones(3, "f"))


def test_it_prints_as_an_affine_map(rng: np.random.Generator) -> None:
    """Evaluation is one factor and one shift a channel, so that it folds into the layer before."""
    program = ag.simplify(ag.capture(call, layer(rng), ag.spec((4, 3))))
    names = [equation.primitive.name for equation in program.equations if equation.output.type.shape == (4, 3)]
    assert [name for name in names if name != "broadcast_in_dim"] == ["subtract", "multiply", "add"]
