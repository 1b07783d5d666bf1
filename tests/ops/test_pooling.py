"""Pooling in every arrangement, against JAX and torch, and at ties."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import COMPOSED, EXACT, SUM, devices, run


def each(number: Any, count: int) -> Any:
    return (number,) * count if isinstance(number, int) else number


def windows_by_jax(
    x: Any, fill: float, window: Any, stride: Any = None, padding: Any = "VALID", dilation: Any = 1, layout: Any = None
) -> jax.Array:
    """All windows, their elements along a new first axis."""
    count, first = x.ndim - 2, layout is not None and layout[1] == "C"
    lead, trail = ((1, 1), ()) if first else ((1,), (1,))
    dims, steps, gaps = ((*lead, *each(n, count), *trail) for n in (window, stride or window, dilation))
    if isinstance(padding, str):
        reach = [(size - 1) * gap + 1 for size, gap in zip(dims, gaps, strict=True)]
        padding = jax.lax.padtype_to_pads(x.shape, reach, steps, padding)
    else:
        pairs = [each(pair, 2) for pair in each(padding, count)]
        padding = [*[(0, 0)] * len(lead), *pairs, *[(0, 0)] * len(trail)]
    x = jnp.pad(x, padding, constant_values=fill if x.dtype.kind == "f" else jnp.iinfo(x.dtype).min)
    parts = []
    for place in np.ndindex(*dims):
        start = [p * gap for p, gap in zip(place, gaps, strict=True)]
        stop = [a + n - (d - 1) * gap for a, n, d, gap in zip(start, x.shape, dims, gaps, strict=True)]
        parts.append(jax.lax.slice(x, start, stop, steps))
    return jnp.stack(parts)


def max_by_jax(x: Any, **params: Any) -> jax.Array:
    found = windows_by_jax(x, -math.inf, **params)
    return jnp.take_along_axis(found, jnp.argmax(found, 0)[None], 0)[0]


def sum_by_jax(x: Any, **params: Any) -> jax.Array:
    return jnp.sum(windows_by_jax(x, 0, **params), 0)


def mean_by_jax(x: Any, count_include_pad: bool = True, **params: Any) -> jax.Array:
    counts = windows_by_jax(jnp.ones_like(x), 1 if count_include_pad else 0, **params)
    return sum_by_jax(x, **params) / jnp.sum(counts, 0)


def adaptive_by_jax(x: Any, output_size: Any, layout: Any = None) -> jax.Array:
    first = 2 if layout is not None and layout[1] == "C" else 1
    for axis, m in enumerate(each(output_size, x.ndim - 2), start=first):
        n = x.shape[axis]
        bins = [jax.lax.slice_in_dim(x, i * n // m, -(-(i + 1) * n // m), 1, axis) for i in range(m)]
        x = jnp.stack([jnp.mean(each, axis) for each in bins], axis)
    return x


def squared(pool: Callable[..., Any]) -> Callable[..., Any]:
    """With a second derivative that is not 0."""
    return lambda x, **params: pool(x, **params) ** 2


maxima = partial(cases, "max_pool", jax=max_by_jax, bound=EXACT)
squares = partial(cases, "max_pool", of=squared(ops.max_pool), jax=squared(max_by_jax), bound=COMPOSED)
sums = partial(cases, "sum_pool", jax=sum_by_jax, bound=SUM)
means = partial(cases, "avg_pool", jax=mean_by_jax, bound=SUM)
bins = partial(cases, "adaptive_avg_pool", jax=adaptive_by_jax, bound=SUM)

TIES = "{1 2 2 0 2 -1 2}"

CASES = [
    *maxima("F[2,4,6,3]", window=2),
    *maxima("I[2,5,2]", window=3, stride=2, padding=1),
    *maxima("D[1,7,5,2]", window=3, stride=2, padding="SAME"),
    *maxima("D[1,5,5,2]", window=(3, 2), stride=1, padding=((1, 1), (0, 1))),
    *maxima("D[1,4,5,3,2]", window=2, stride=(2, 1, 2), padding=1),
    *maxima("D[2,3,7]", window=2, stride=3, layout="NCW"),
    *maxima("f64[1,3,7,6]", window=2, stride=2, padding=1, dilation=2, layout="NCHW"),
    *maxima("f64[1,9,2]", window=3, stride=2, dilation=3),
    *maxima("f64[1,5,2]", window=1, stride=2),
    *maxima("f32[1,1,1,1]", window=1),
    *maxima("f32[0,4,4,2]", window=2),
    *maxima("f32[1,20,1]", window=20),
    *maxima("f64[1,9,9,1]", window=9),
    *maxima("i32[1,12,12,1]", window=9, stride=2, padding=2),
    *maxima("f32{1 nan 3 -inf inf -0 0}[1,6,5,2]", window=2, stride=1, derivative=False),
    *maxima(f"f64{TIES}[2,6,5,2]", window=2, differences=False),
    *maxima(f"f64{TIES}[2,6,5,2]", window=3, stride=2, padding=1, differences=False),
    *maxima(f"bf16{TIES}[2,6,5,2]", window=3, stride=1, differences=False),
    *squares("f64[2,4,6,3]", window=2),
    *squares("f64[1,5,5,2]", window=3, stride=2, padding=1),
    *squares("f64[1,5,2]", window=2, stride=1),
    *sums("F[2,4,6,3]", window=2),
    *sums("D[1,5,4,2]", window=3, stride=2, padding=1),
    *sums("D[2,3,7]", window=2, stride=3, layout="NCW"),
    *means("F[2,4,6,3]", window=2),
    *means("F[2,5,2]", window=3, stride=1, padding="SAME"),
    *means("D[1,7,5,2]", window=3, stride=2, padding="SAME", count_include_pad=False),
    *means("D[1,7,5,2]", window=2, padding=1, count_include_pad=False),
    *means("D[1,2,5,4]", window=(3, 2), stride=1, padding=((1, 2), (1, 0)), count_include_pad=False, layout="NCHW"),
    *means("D[1,4,5,3,2]", window=2, stride=(2, 1, 2), padding=1),
    *means("f32[0,4,4,2]", window=2),
    *bins("F[2,6,4,3]", output_size=(3, 2)),
    *bins("F[2,7,5,3]", output_size=3),
    *bins("D[1,3,2]", output_size=5),
    *bins("D[1,2,5,6,4]", output_size=(2, 3, 4), layout="NCDHW"),
    *bins("f32[1,4,4,1]", output_size=1),
    *bins("f32[0,5,2]", output_size=2),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


def gradient_of(function: Callable[[Any], Any], x: np.ndarray, device: str) -> np.ndarray:
    return run(ag.reverse(ag.capture(lambda x: ops.sum(function(x)), x)), [x], device)[1]


@pytest.mark.parametrize("device", devices())
def test_case_maxpool_overlap(device: str) -> None:
    x = np.array([1, 5, 2, 3], np.float32).reshape(1, 4, 1)
    assert run(ag.capture(lambda x: ops.max_pool(x, 2, 1), x), [x], device)[0].ravel().tolist() == [5, 5, 3]
    assert gradient_of(lambda x: ops.max_pool(x, 2, 1), x, device).ravel().tolist() == [0, 2, 0, 1]


@pytest.mark.parametrize("device", devices())
def test_case_maxpool_tie(device: str) -> None:
    x = np.full((1, 3, 1), 2, np.float32)
    assert gradient_of(lambda x: ops.max_pool(x, 2, 1), x, device).ravel().tolist() == [1, 1, 0]


@pytest.mark.parametrize("device", devices())
def test_padding_never_wins(device: str) -> None:
    """Not even over -inf; and a window with a NaN has no winner."""
    x = np.array([-np.inf, -np.inf, 1, np.nan, 3], np.float32).reshape(1, 5, 1)
    assert gradient_of(lambda x: ops.max_pool(x, 3, 1, 1), x, device).ravel().tolist() == [1, 0, 1, 0, 0]
    y = run(ag.capture(lambda x: ops.max_pool(x, 3, 1, 1), x), [x], device)[0].ravel()
    np.testing.assert_array_equal(y, [-np.inf, 1, np.nan, np.nan, np.nan])


@pytest.mark.parametrize("device", devices())
def test_sums_of_16_bit_floats_are_f32(device: str) -> None:
    x = np.full((1, 64, 64, 1), 1, ml_dtypes.bfloat16)
    assert run(ag.capture(lambda x: ops.sum_pool(x, 64), x), [x], device)[0].item() == 4096
    assert run(ag.capture(lambda x: ops.avg_pool(x, 63, 1), x), [x], device)[0].ravel().tolist() == [1] * 4
    assert run(ag.capture(lambda x: ops.adaptive_avg_pool(x, 3), x), [x], device)[0].ravel().tolist() == [1] * 9
    peak = np.where(np.arange(900) == 450, 1, 0).reshape(1, 900, 1).astype(ml_dtypes.bfloat16)
    assert gradient_of(lambda x: ops.max_pool(x, 260, 1), peak, device)[0, 450, 0] == 260


@pytest.mark.parametrize("padding", [0, ((1, 2), (2, 0))])
def test_large_windows_are_pooled_axis_by_axis(padding: Any, rng: np.random.Generator) -> None:
    """With the same values, and the same winners of ties, as `max_by_jax` finds among all elements at once."""
    x = rng.integers(0, 3, size=(2, 9, 8, 2)).astype(np.float64)
    program = ag.capture(lambda x: ops.max_pool(x, (5, 4), 1, padding), x)
    assert sum(equation.primitive is ops.reduce_window_max for equation in program.equations) == 2
    y, pull = ag.vjp(lambda x: ops.max_pool(x, (5, 4), 1, padding), x)
    dy = rng.normal(size=y.shape)
    expected, theirs = jax.vjp(lambda x: max_by_jax(x, window=(5, 4), stride=1, padding=padding), x)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_allclose(np.asarray(pull(dy)).reshape(x.shape), theirs(dy.astype(np.float32))[0], atol=1e-5)


def test_vmap(rng: np.random.Generator) -> None:
    x = rng.normal(size=(3, 2, 5, 4, 2))

    def pool(x: Any) -> Any:
        return ops.max_pool(x, 3, 2, 1) + ops.avg_pool(x, 3, 2, 1, count_include_pad=False)

    found = ag.vmap(pool)(x)
    for example, alone in zip(x, found, strict=True):
        np.testing.assert_allclose(alone, pool(example), rtol=1e-14)


def test_printed_program_comes_back(rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 6, 6, 2)).astype(np.float32)
    program = ag.reverse(ag.capture(lambda x: ops.sum(ops.max_pool(x, 3, 2, 1)), x))
    for found, wanted in zip(
        run(ag.from_python(program.python()), [x], "host"), run(program, [x], "host"), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "larger": (lambda x: ops.max_pool(x, 6), ShapeError, "a window of 6 .*axis 1 has size 5"),
    "padding": (lambda x: ops.avg_pool(x, 2, padding=2), ShapeError, "must be less than the window"),
    "rank": (lambda x: ops.max_pool(x[0, 0], 2), ShapeError, "1 to 3 spatial axes"),
    "window": (lambda x: ops.sum_pool(x, (2, 2, 2)), ShapeError, r"or 2 of them, found \(2, 2, 2\)"),
    "no-window": (lambda x: ops.max_pool(x, 0), ShapeError, "window must be a number from 1 up"),
    "stride": (lambda x: ops.avg_pool(x, 2, 0), ShapeError, "stride must be a number from 1 up"),
    "bins": (lambda x: ops.adaptive_avg_pool(x, 0), ShapeError, "output_size must be a number from 1 up"),
    "no-elements": (lambda x: ops.adaptive_avg_pool(x[:, :0], 2), ShapeError, "axis 1 is empty"),
    "bool": (lambda x: ops.max_pool(x > 0, 2), DTypeError, "number tensors"),
    "integers": (lambda x: ops.avg_pool(ops.convert(x, "i32"), 2), DTypeError, r"i32\[2,5,6,3\]: floats are needed"),
    "integer-bins": (lambda x: ops.adaptive_avg_pool(ops.convert(x, "i32"), 2), DTypeError, "floats are needed"),
    "primitive": (
        lambda x: ops.reduce_window_max(x, (1, 7, 1, 1), (1,) * 4, ((0, 0),) * 4, (1,) * 4), ShapeError, "does not fit",
    ),
    "primitive-params": (
        lambda x: ops.reduce_window_max(x, (1,) * 3, (1,) * 4, ((0, 0),) * 4, (1,) * 4), ShapeError, "needs 4 numbers",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("function", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(function: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as found:
        ag.capture(function, ag.spec((2, 5, 6, 3)))
    assert "test_pooling.py" in str(found.value)


@pytest.mark.parametrize(
    "params",
    [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": (3, 2), "stride": (1, 2)}],
    ids=str,
)
def test_as_in_torch(params: dict[str, Any], rng: np.random.Generator) -> None:
    """Means with and without the padding, maxima with dilation and their gradient, and adaptive bins."""
    torch = pytest.importorskip("torch")
    functional, x = torch.nn.functional, rng.integers(-3, 4, size=(2, 3, 8, 7)).astype(np.float64)
    own = {"window" if key == "kernel_size" else key: value for key, value in params.items()}
    for include in (True, False):
        expected = functional.avg_pool2d(torch.tensor(x), **params, count_include_pad=include).numpy()
        found = ops.avg_pool(x, **own, count_include_pad=include, layout="NCHW")
        np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-14)
    for dilation in (1, 2):
        leaf = torch.tensor(x, requires_grad=True)
        expected = functional.max_pool2d(leaf, **params, dilation=dilation)
        y, pull = ag.vjp(lambda x: ops.max_pool(x, **own, dilation=dilation, layout="NCHW"), x)  # noqa: B023
        np.testing.assert_array_equal(y, expected.detach().numpy())
        dy = rng.normal(size=y.shape)
        expected.backward(torch.tensor(dy))
        np.testing.assert_allclose(np.asarray(pull(dy)).reshape(x.shape), leaf.grad.numpy(), rtol=1e-14)
    for size in (1, (3, 5), (8, 9)):
        expected = functional.adaptive_avg_pool2d(torch.tensor(x), size).numpy()
        np.testing.assert_allclose(ops.adaptive_avg_pool(x, size, layout="NCHW"), expected, rtol=1e-14, atol=1e-14)
