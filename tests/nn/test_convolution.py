"""Convolution layers: jax.lax and torch, gradients, groups, and what they refuse."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import antegrad as ag
from antegrad import nn, random
from tests.nn.layer_checks import check_bf16, check_layer
from tests.support import assert_close

KEY = random.key(7)

CONVOLUTIONS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "plain": (nn.Conv2D(3, 4, 3, key=KEY), (2, 5, 4, 3)),
    "strided": (nn.Conv2D(2, 4, (3, 2), stride=(2, 1), padding=1, key=KEY), (1, 5, 4, 2)),
    "dilated": (nn.Conv2D(2, 3, 2, dilation=2, padding="VALID", bias=False, key=KEY), (1, 5, 4, 2)),
    "grouped": (nn.Conv2D(4, 6, 3, groups=2, activation=nn.tanh, key=KEY), (1, 3, 4, 4)),
    "depthwise": (nn.Conv2D(3, 3, 2, groups=3, padding=[(1, 0), 1], key=KEY), (2, 3, 3, 3)),
    "one axis": (nn.Conv1D(3, 4, 3, stride=2, key=KEY), (2, 7, 3)),
    "causal": (nn.Conv1D(2, 2, 3, dilation=2, padding=[(4, 0)], key=KEY), (2, 6, 2)),
}

TRANSPOSED: dict[str, tuple[Any, tuple[int, ...]]] = {
    "plain": (nn.ConvTranspose2D(3, 4, 2, stride=2, key=KEY), (2, 3, 2, 3)),
    "cut": (nn.ConvTranspose2D(3, 2, 3, stride=2, padding=1, bias=False, key=KEY), (1, 3, 2, 3)),
    "grouped": (nn.ConvTranspose2D(4, 6, 3, padding="VALID", groups=2, activation=nn.tanh, key=KEY), (1, 3, 2, 4)),
    "one axis": (nn.ConvTranspose1D(3, 2, 4, stride=2, padding=1, key=KEY), (2, 5, 3)),
}


def biased(layer: Any, rng: np.random.Generator) -> Any:
    """`layer` with a bias that is not 0."""
    named = layer.named_parameters()
    return layer.with_parameters({n: a if n == "w" else rng.normal(size=a.shape).astype("f") for n, a in named.items()})


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str, rng: np.random.Generator) -> None:
    layer, shape = CONVOLUTIONS[name]
    layer, x = biased(layer, rng), rng.normal(size=shape).astype("f")
    check_layer(layer, x, order=1)
    digits = "HW"[: len(shape) - 2]
    padding = layer.padding if isinstance(layer.padding, str) else _pairs(layer.padding, len(digits))
    with jax.enable_x64(True):
        expected = jax.lax.conv_general_dilated(
            x.astype(np.float64), layer.w.astype(np.float64), layer.stride, padding, rhs_dilation=layer.dilation,
            dimension_numbers=(f"N{digits}C", f"{digits}IO", f"N{digits}C"), feature_group_count=layer.groups,
        )  # fmt: skip
    expected = np.asarray(expected) + (0 if layer.b is None else layer.b)
    assert_close(np.asarray(layer(x)), np.tanh(expected) if layer.activation else expected, 1e-6, name)


def _pairs(padding: Any, count: int) -> list[tuple[int, int]]:
    each = [padding] * count if isinstance(padding, int) else padding
    return [(one, one) if isinstance(one, int) else one for one in each]


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed(name: str, rng: np.random.Generator) -> None:
    layer, shape = TRANSPOSED[name]
    check_layer(biased(layer, rng), rng.normal(size=shape).astype("f"), order=1)


@pytest.mark.parametrize("name", ["cut", "grouped", "one axis"])
def test_transposed_as_torch(name: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    layer, shape = TRANSPOSED[name]
    layer, x = biased(layer, rng), torch.tensor(rng.normal(size=shape).astype("f")).movedim(-1, 1)
    # torch has (inputs, outputs / groups, ...) for a kernel.
    w = torch.tensor(np.moveaxis(layer.w, (-1, -2), (0, 1)).copy())
    function = torch.nn.functional.conv_transpose1d if x.ndim == 3 else torch.nn.functional.conv_transpose2d
    padding = 0 if layer.padding == "VALID" else layer.padding
    bias = None if layer.b is None else torch.tensor(layer.b)
    expected = function(x, w, bias, layer.stride, padding, 0, layer.groups).movedim(1, -1).numpy()
    expected = np.tanh(expected) if layer.activation else expected
    assert_close(np.asarray(layer(x.movedim(1, -1).numpy())), expected.astype(np.float64), 1e-6, name)


@pytest.mark.parametrize("padding", ["SAME", "VALID", 1])
def test_transposed_is_the_adjoint(padding: Any, rng: np.random.Generator) -> None:
    """<conv(a), x> == <a, transposed(x)> for a convolution with the same kernel."""
    up = nn.ConvTranspose2D(3, 2, 3, stride=2, padding=padding, bias=False, key=KEY)
    down = nn.Conv2D(2, 3, 3, stride=2, padding=padding, bias=False, key=KEY).with_parameters({"w": up.w})
    a = rng.normal(size=(1, 7, 9, 2)).astype("f")
    made = down(a)
    x = rng.normal(size=made.shape).astype("f")
    assert float(np.sum(made * x)) == pytest.approx(float(np.sum(a * up(x, output_size=(7, 9)))), rel=1e-5)


def test_a_transposed_kernel_is_drawn_for_its_own_inputs() -> None:
    """Variance 1 / (inputs * window / groups), whatever the outputs are."""
    layer = nn.ConvTranspose2D(64, 512, 3, groups=2, key=KEY)
    assert layer.w.shape == (3, 3, 256, 64)
    assert np.std(layer.w) == pytest.approx((9 * 32) ** -0.5, rel=0.01)


def test_a_transposed_kernel_is_drawn_by_inputs_and_outputs() -> None:
    """Input c of a group and output o have ``10 * c + o``, also where they have changed places."""

    def numbered(key: Any, shape: Any, dtype: Any) -> np.ndarray:
        return np.broadcast_to(10 * np.arange(shape[-2])[:, None] + np.arange(shape[-1]), shape).astype("f")

    layer = nn.ConvTranspose1D(4, 6, 1, groups=2, initializer=numbered, key=KEY)
    np.testing.assert_array_equal(layer.w[0], [[0, 10, 3, 13], [1, 11, 4, 14], [2, 12, 5, 15]])


def test_parameters_have_names() -> None:
    assert repr(nn.Conv2D(3, 8, 3, key=KEY)).startswith("Conv2D(w=f32[3,3,3,8], b=f32[8]")
    assert list(nn.Conv2D(3, 8, 3, key=KEY).named_parameters()) == ["w", "b"]
    assert list(nn.Conv1D(3, 8, 3, bias=False, key=KEY).named_parameters()) == ["w"]
    assert nn.Conv1D(4, 8, 3, groups=2, dtype="bf16", key=KEY).w.shape == (3, 2, 8)


def test_bf16(rng: np.random.Generator) -> None:
    layer = nn.Conv2D(3, 4, 3, dtype="bf16", bias=False, key=KEY)
    wide = nn.Conv2D(3, 4, 3, bias=False, key=KEY).with_parameters({"w": layer.w.astype("f")})
    x = rng.normal(size=(1, 4, 4, 3))
    check_bf16(lambda x: (layer if x.dtype == layer.w.dtype else wide)(x), x)


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (nn.Conv2D(3, 8, (3, 2), key=KEY), (2, 5, 5, 4), r"Conv2D\(3 -> 8, kernel 3x2\) .*\[N, H, W, 3\], found "
         r"f32\[2,5,5,4\]; its kernel is f32\[3,2,3,8\]"),
        (nn.Conv2D(3, 8, 3, key=KEY), (5, 5, 3), r"\[N, H, W, 3\], found f32\[5,5,3\]"),
        (nn.Conv1D(4, 8, 3, groups=2, key=KEY), (2, 5, 2), r"Conv1D\(4 -> 8, kernel 3\) .*\[N, W, 4\], found f32"),
        (nn.ConvTranspose1D(4, 8, 3, key=KEY), (2, 5, 8), r"ConvTranspose1D\(4 -> 8, kernel 3\) .*found f32\[2,5,8\]"),
        (nn.Conv1D(1, 1, 3, padding=0, key=KEY), (2, 2, 1), r"window of 3 .*larger than what it moves over"),
    ],
    ids=["channels", "axes", "groups", "transposed", "small"],
)  # fmt: skip
def test_misfits(layer: Any, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ag.ShapeError, match=message + r"(.|\n)*\n  at layer 0, .*test_convolution.py"):
        nn.Sequential(layer)(np.zeros(shape, np.float32))


def test_sizes_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ag.ShapeError, match="Conv2D: 2 groups do not divide 3 inputs and 4 outputs"):
        nn.Conv2D(3, 4, 3, groups=2, key=KEY)
    with pytest.raises(ag.ShapeError, match=r"Conv2D: kernel must be a number from 1 up or 2 of them, found \(3,\)"):
        nn.Conv2D(3, 4, (3,), key=KEY)
    with pytest.raises(ag.ShapeError, match="Conv1D: stride must be a number from 1 up, found 0"):
        nn.Conv1D(3, 4, 3, stride=0, key=KEY)
