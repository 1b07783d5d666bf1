"""Losses of embeddings: against torch and optax, by hand, at awkward points, and what is refused."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest

import antegrad as ag
from antegrad import losses, ops
from antegrad.errors import DTypeError, SettingError, ShapeError
from tests.support import devices, run

F32 = np.float32


def draws(*shape: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).normal(size=(2, *shape)))


def value_and_gradients(loss: Any, arrays: list[np.ndarray], device: str = "host") -> list[np.ndarray]:
    return run(ag.reverse(ag.capture(lambda *xs: ops.sum(loss(*xs)), *arrays)), arrays, device)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [np.float64, F32])
def test_contrastive_is_the_loss_of_clip(dtype: Any, device: str) -> None:
    """By torch, with the temperature trained too."""
    torch = pytest.importorskip("torch")
    arrays = [*draws(6, 4), np.array(0.2)]
    a, b, temperature = (torch.tensor(array, requires_grad=True) for array in arrays)
    logits = torch.nn.functional.normalize(a) @ torch.nn.functional.normalize(b).T / temperature
    pairs = torch.arange(6)
    expected = sum(torch.nn.functional.cross_entropy(scores, pairs) for scores in (logits, logits.T)) / 2
    expected.backward()
    found = value_and_gradients(
        lambda a, b, t: losses.contrastive(a, b, temperature=t), [array.astype(dtype) for array in arrays], device
    )
    bound = 1e-12 if dtype is np.float64 else 1e-6
    for own, theirs in zip(found, (expected.detach(), a.grad, b.grad, temperature.grad), strict=True):
        np.testing.assert_allclose(own, theirs.numpy(), rtol=0, atol=bound * max(1, np.abs(theirs.numpy()).max()))


@pytest.mark.parametrize("device", devices())
def test_nt_xent_is_that_of_optax(device: str) -> None:
    arrays = draws(5, 3)
    labels = np.concatenate([np.arange(5), np.arange(5)])
    with jax.enable_x64(True):
        reference = jax.value_and_grad(lambda z: optax.losses.ntxent(z, labels, 0.3))
        expected, gradient = reference(jax.numpy.asarray(np.concatenate(arrays)))
    found, da, db = value_and_gradients(lambda a, b: losses.nt_xent(a, b, temperature=0.3), arrays, device)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(np.concatenate([da, db]), gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("axis", [-1, 0])
def test_cosine_distance_is_that_of_optax(axis: int) -> None:
    a, b = draws(5, 3)
    with jax.enable_x64(True):
        expected = optax.losses.cosine_distance(a, b, axis=axis)
    np.testing.assert_allclose(losses.cosine_distance(a, b, axis=axis, reduction="none"), expected, rtol=1e-12)


def test_cosine_distance_by_hand() -> None:
    a, b = np.array([[3, 0], [0, 2], [1, 1], [1, 0]], F32), np.array([[1, 0], [0, -5], [1, -1], [1, 1]], F32)
    found = losses.cosine_distance(a, b, reduction="none")
    np.testing.assert_allclose(found, [0, 2, 1, 1 - np.sqrt(0.5)], rtol=1e-6, atol=1e-7)


def test_pairs_that_are_told_apart_cost_nothing() -> None:
    eye = np.eye(4, dtype=F32)
    for loss in (losses.contrastive, losses.nt_xent):
        np.testing.assert_allclose(loss(eye, 2 * eye, temperature=0.01), 0, atol=1e-6)


def test_pairs_that_are_all_alike_cost_the_logarithm_of_their_number() -> None:
    ones = np.ones((4, 3), F32)
    np.testing.assert_allclose(losses.contrastive(ones, ones), np.log(4), rtol=1e-6)
    np.testing.assert_allclose(losses.nt_xent(ones, ones), np.log(7), rtol=1e-6)


def test_a_single_pair_costs_nothing() -> None:
    a, b = (array.astype(F32) for array in draws(1, 3))
    for loss in (losses.contrastive, losses.nt_xent):
        found = value_and_gradients(loss, [a, b])
        assert all(not np.any(result) for result in found)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", ["contrastive", "nt_xent", "cosine_distance"])
def test_zero_and_huge_vectors_are_finite(name: str, device: str) -> None:
    a, b = (array.astype(F32) for array in draws(4, 3))
    a[0], b[1], a[2] = 0, 0, 1e18
    assert all(np.isfinite(found).all() for found in value_and_gradients(getattr(losses, name), [a, b], device))


def test_a_sharp_temperature_is_finite() -> None:
    a, b = (array.astype(F32) for array in draws(4, 3))
    found = value_and_gradients(lambda a, b: losses.contrastive(a, b, temperature=1e-6), [a, b])
    assert all(np.isfinite(result).all() for result in found)


@pytest.mark.parametrize("name", ["contrastive", "nt_xent"])
def test_refusals(name: str) -> None:
    loss, ones = getattr(losses, name), np.ones((4, 3), F32)
    for temperature in (0, -1.0, float("nan"), float("inf"), "0.1", True):
        message = rf"{name}: temperature must be a number in \(0, inf\), found {temperature!r}"
        with pytest.raises(SettingError, match=message):
            loss(ones, ones, temperature=temperature)
    with pytest.raises(DTypeError, match=rf"{name}: temperature is a number or a float scalar, found f32\[1\]"):
        loss(ones, ones, temperature=np.ones(1, F32))
    with pytest.raises(ShapeError, match=rf"{name}: a and b are \(samples, features\), found f32\[3\]"):
        loss(ones[0], ones[0])
    with pytest.raises(ShapeError, match=rf"{name}: a f32\[4,3\] and b f32\[3,3\] must have one shape"):
        loss(ones, ones[1:])


def test_sequences_have_their_shapes() -> None:
    for logits, labels in (((2, 3, 4), (2, 4)), ((6, 4), (6,)), ((2, 3, 4), (2, 3, 1))):
        with pytest.raises(ShapeError, match=r"sequence_cross_entropy: logits \(batch, time, classes\) and integer"):
            losses.sequence_cross_entropy(np.zeros(logits, F32), np.zeros(labels, np.int32))
