"""Resizing, patches and pixel shuffling against JAX and torch."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import EXACT, SUM, devices, run


def resize_by_jax(x: Any, shape: Any, method: str = "bilinear", antialias: bool = True) -> jax.Array:
    """With exact weights, which jax.image.resize rounds in the type of x."""
    if method == "nearest":
        return jax.image.resize(x, shape, method)
    for axis, (n, m) in enumerate(zip(x.shape, shape, strict=True)):
        if n != m:
            x = jnp.moveaxis(jnp.tensordot(weights(n, m, antialias), x, ((1,), (axis,))), 0, axis)
    return x


def weights(n: int, m: int, antialias: bool) -> np.ndarray:
    """Triangles about the centres of the samples, each row with sum 1."""
    width = max(Fraction(n, m), Fraction(1)) if antialias else Fraction(1)
    rows = []
    for i in range(m):
        centre = Fraction((2 * i + 1) * n, 2 * m) - Fraction(1, 2)
        row = [max(Fraction(0), 1 - abs(j - centre) / width) for j in range(n)]
        rows.append([float(weight / sum(row)) for weight in row])
    return np.array(rows).reshape(m, n)


def patches_by_jax(
    x: Any, window: Any, stride: Any = 1, padding: Any = "VALID", dilation: Any = 1, layout: str = "NHWC"
) -> jax.Array:
    count = x.ndim - 2
    window, stride, dilation = (n if isinstance(n, tuple) else (n,) * count for n in (window, stride, dilation))
    numbers = {"NHWC": ("NHWC", "HWIO", "NHWC"), "NCHW": ("NCHW", "OIHW", "NCHW"), "NWC": ("NHC", "HIO", "NHC")}
    return jax.lax.conv_general_dilated_patches(x, window, stride, padding, None, dilation, numbers[layout])


def shuffle_by_jax(x: Any, factor: int, layout: str = "NHWC") -> jax.Array:
    first = layout == "NCHW"
    n, c, h, w = (x if first else jnp.moveaxis(x, 3, 1)).shape
    apart = (x if first else jnp.moveaxis(x, 3, 1)).reshape(n, c // factor**2, factor, factor, h, w)
    y = apart.transpose(0, 1, 4, 2, 5, 3).reshape(n, c // factor**2, h * factor, w * factor)
    return y if first else jnp.moveaxis(y, 1, 3)


def unshuffle_by_jax(x: Any, factor: int, layout: str = "NHWC") -> jax.Array:
    """The transpose of the permutation that `shuffle_by_jax` is."""
    inner = jax.eval_shape(lambda x: patches_by_jax(x, factor, factor, layout=layout), x)
    return jax.linear_transpose(lambda y: shuffle_by_jax(y, factor, layout), inner)(x)[0]


resizes = partial(cases, "resize", jax=resize_by_jax, bound=SUM)
cuts = partial(cases, "patches", jax=patches_by_jax, bound=EXACT)

CASES = [
    *resizes("F[2,4,5,3]", shape=(2, 7, 3, 3)),
    *resizes("D[2,4,5,3]", shape=(2, 8, 10, 3)),
    *resizes("D[2,6,9,2]", shape=(2, 3, 3, 2)),
    *resizes("F[1,7,5]", shape=(1, 3, 8), antialias=False, method="linear"),
    *resizes("D[5,4]", shape=(2, 9), antialias=False),
    *resizes("D[3,1]", shape=(1, 4)),
    *resizes("D[3,2,4]", shape=(4, 5, 3), method="trilinear"),
    *resizes("f32[2,3]", shape=(2, 3)),
    *resizes("f32[0,3]", shape=(0, 5)),
    *resizes("A[2,4,5]", shape=(2, 7, 3), method="nearest"),
    *resizes("D[4,5]", shape=(8, 15), method="nearest"),
    *resizes("D[6,9]", shape=(3, 3), method="nearest"),
    *resizes("D[7,1,5]", shape=(4, 3, 6), method="nearest"),
    *cuts("F[2,4,6,3]", window=2, stride=2),
    *cuts("D[2,5,5,2]", window=(2, 3), stride=(2, 1), padding="SAME"),
    *cuts("D[1,3,5,4]", window=2, layout="NCHW"),
    *cuts("D[1,3,5,4]", window=2, stride=2, layout="NCHW"),
    *cuts("D[1,6,6,2]", window=2, stride=2, padding=((1, 0), (0, 1)), dilation=2),
    *cuts("D[2,7,2]", window=3, stride=3, layout="NWC"),
    *cuts("f32[0,4,4,2]", window=2),
    *cases("pixel_shuffle", "F[2,3,2,8]", jax=shuffle_by_jax, bound=EXACT, factor=2),
    *cases("pixel_shuffle", "D[1,9,2,3]", jax=shuffle_by_jax, bound=EXACT, factor=3, layout="NCHW"),
    *cases("pixel_unshuffle", "F[2,4,6,2]", jax=unshuffle_by_jax, bound=EXACT, factor=2),
    *cases("pixel_unshuffle", "D[1,2,3,6]", jax=unshuffle_by_jax, bound=EXACT, factor=3, layout="NCHW"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


@pytest.mark.parametrize("device", devices())
def test_nearest_leaves_infinities_where_they_are(device: str) -> None:
    """It moves elements; a product with zeros would spread NaN."""
    x = np.array([[1, np.inf, np.nan, -2, 5]], np.float32)
    for size, places in ((3, [0, 2, 4]), (7, [0, 1, 1, 2, 3, 3, 4]), (10, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4])):
        program = ag.capture(lambda x, m=size: ops.resize(x, (1, m), "nearest"), x)
        np.testing.assert_array_equal(run(program, [x], device)[0], x[:, places])


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("shape", [(2, 7, 3), (2, 3, 16), (2, 10, 1)])
def test_as_in_jax(shape: tuple[int, ...], antialias: bool, rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 5, 8)).astype(np.float32)
    expected = jax.image.resize(x, shape, "bilinear", antialias)
    np.testing.assert_allclose(ops.resize(x, shape, "bilinear", antialias), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("factors", [2, (2, 3)])
def test_shuffle_and_unshuffle_undo_each_other(factors: Any, rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 4, 6, 12)).astype(np.float32)
    np.testing.assert_array_equal(ops.pixel_unshuffle(ops.pixel_shuffle(x, factors), factors), x)
    np.testing.assert_array_equal(ops.pixel_shuffle(ops.pixel_unshuffle(x, factors), factors), x)


def test_patches_are_the_rows_of_a_convolution(rng: np.random.Generator) -> None:
    x, w = rng.normal(size=(2, 6, 5, 3)), rng.normal(size=(3, 2, 3, 4))
    rows = ops.patches(x, (3, 2), 2, 1)
    found = rows @ w.transpose(2, 0, 1, 3).reshape(-1, 4)
    np.testing.assert_allclose(found, ops.conv(x, w, 2, 1), rtol=1e-12, atol=1e-12)


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "resize-rank": (lambda x: ops.resize(x, (2, 2)), ShapeError, r"f32\[2,5,6,3\]: 4 sizes .*found \(2, 2\)"),
    "resize-negative": (lambda x: ops.resize(x, (2, 2, -1, 3)), ShapeError, "from 0 up"),
    "resize-from-nothing": (lambda x: ops.resize(x[:, :0], (2, 2, 2, 3)), ShapeError, "0 cannot grow"),
    "resize-method": (lambda x: ops.resize(x, (2, 2, 2, 3), "cubic"), ShapeError, "no method 'cubic'"),  # type: ignore[arg-type]
    "resize-integers": (lambda x: ops.resize(ops.convert(x, "i32"), (2,) * 4), DTypeError, r"i32\[2,5,6,3\]: bilinear"),
    "patches": (lambda x: ops.patches(x, 6), ShapeError, "axis 1 has size 5"),
    "patches-rank": (lambda x: ops.patches(x[0, 0], 2), ShapeError, "1 to 3 spatial axes"),
    "shuffle": (lambda x: ops.pixel_shuffle(x, 2), ShapeError, r"\(2, 2\) does not divide the 3 channels"),
    "unshuffle": (lambda x: ops.pixel_unshuffle(x, 2), ShapeError, r"does not divide the spatial sizes \(5, 6\)"),
    "factor": (lambda x: ops.pixel_shuffle(x, 0), ShapeError, "factor must be a number from 1 up"),
}


@pytest.mark.parametrize(("function", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(function: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as found:
        ag.capture(function, ag.spec((2, 5, 6, 3)))
    assert "test_image.py" in str(found.value)


@pytest.mark.parametrize("size", [(3, 4), (7, 5), (16, 9), (8, 7)])
def test_as_in_torch(size: tuple[int, int], rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    functional, x = torch.nn.functional, rng.normal(size=(2, 4, 8, 7))
    tensor = torch.tensor(x)
    for mode, antialias in (("bilinear", False), ("bilinear", True), ("nearest-exact", False)):
        expected = functional.interpolate(tensor, size, mode=mode, antialias=antialias).numpy()
        found = ops.resize(x, (2, 4, *size), mode.partition("-")[0], antialias)  # type: ignore[arg-type]
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    expected = functional.pixel_shuffle(tensor, 2).numpy()
    np.testing.assert_array_equal(ops.pixel_shuffle(x, 2, "NCHW"), expected)
    np.testing.assert_array_equal(ops.pixel_unshuffle(expected, 2, "NCHW"), x)
    unfolded = functional.unfold(tensor, (3, 2), dilation=(1, 2), padding=1, stride=2).numpy()
    np.testing.assert_array_equal(ops.patches(x, (3, 2), 2, 1, (1, 2), "NCHW").reshape(unfolded.shape), unfolded)
