"""The conventions at the awkward points: kinks, ties, zeros, infinities, empty tensors and repeated places.

The expected values stand here as literals, because libraries differ on them; each is the rule of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.types import BF16
from tests.support import assert_close, devices, run

INF, NAN = float("inf"), float("nan")

on_devices = pytest.mark.parametrize("device", devices())


def f32(values: Any) -> np.ndarray:
    return np.asarray(values, np.float32)


def value(function: Callable[..., Any], device: str, *arrays: Any) -> Any:
    """What `function` gives on `device`: one array, or a list of several."""
    results = run(ag.capture(function, *arrays), arrays, device)
    return results[0] if len(results) == 1 else results


def gradient(function: Callable[..., Any], device: str, *arrays: Any, wrt: Sequence[int] | None = None) -> Any:
    """The gradient of the sum of what `function` gives, for each of `wrt` (by default all) of its arguments."""
    chosen = range(len(arrays)) if wrt is None else wrt
    program = ag.capture(lambda *xs: ops.sum(function(*xs)), *arrays)
    results = run(ag.reverse(program, [program.input_names[i] for i in chosen]), arrays, device)[1:]
    return results[0] if len(results) == 1 else results


def curvature(function: Callable[..., Any], device: str, x: np.ndarray) -> np.ndarray:
    """The gradient of the sum of the gradient."""
    return gradient(ag.grad(lambda x: ops.sum(function(x))), device, x)


def weighted(function: Callable[[Any], Any], weights: Any) -> Callable[[Any], Any]:
    """`function` with its result under the cotangent `weights`."""
    return lambda x: function(x) * f32(weights)


def check(actual: Any, expected: Any, tolerance: float = 0) -> None:
    """Equal values, NaN to NaN, within a relative tolerance (none by default)."""
    np.testing.assert_allclose(np.asarray(actual, np.float64), np.asarray(expected, np.float64), rtol=tolerance, atol=0)
    assert np.shape(actual) == np.shape(expected)


@on_devices
def test_case_grad_where_guarded(device: str) -> None:
    def function(x: Any) -> Any:
        return ops.where(x > 0, ops.sqrt(ops.where(x > 0, x, 1)), 0)

    check(gradient(function, device, f32([0, 4, -1])), [0, 0.25, 0])


@on_devices
def test_case_grad_where_naive(device: str) -> None:
    check(gradient(lambda x: ops.where(x > 0, ops.sqrt(x), 0), device, f32([0, 4, -1])), [0, 0.25, 0])


UNSAFE: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "sqrt": (ops.sqrt, 0.25, -0.03125),
    "log": (ops.log, 0.25, -0.0625),
    "log1p": (lambda x: ops.log1p(x - 1), 0.25, -0.0625),
    "reciprocal": (ops.reciprocal, -0.0625, 0.03125),
    "divide": (lambda x: x / x, 0, 0),
    "rsqrt": (ops.rsqrt, -0.0625, 0.0234375),
    "cbrt": (lambda x: ops.cbrt(2 * x), 1 / 6, -1 / 36),
    "power": (lambda x: x**-1.5, -0.046875, 0.029296875),
    "exponent": (lambda x: x**x, 256 * (1 + np.log(4)), 256 * (1 + np.log(4)) ** 2 + 64),
    "exp": (lambda x: ops.exp(100 * (x - 4) * (x + 1)), 500, 250200),
    "remainder": (lambda x: 3 % x, 0, 0),
    "logsumexp": (lambda x: ops.logsumexp(ops.stack([ops.log(x), ops.log(x)]), axis=0), 0.25, -0.0625),
    "norm": (lambda x: ops.norm(ops.stack([x, x]), axis=0), 2**0.5, 0),
}
"""Functions whose slope is infinite or NaN at 0, -1 or -3; first and second derivative at 4."""


@on_devices
@pytest.mark.parametrize("name", UNSAFE)
def test_an_unselected_branch_has_no_gradient(name: str, device: str) -> None:
    function, slope, bend = UNSAFE[name]

    def guarded(x: Any) -> Any:
        return ops.where(x > 0, function(x), 0)

    x = np.array([0.0, 4, -1, -3])
    assert_close(gradient(guarded, device, x), np.array([0, slope, 0, 0]), 1e-14, "first derivative", 1)
    assert_close(curvature(guarded, device, x), np.array([0, bend, 0, 0]), 1e-14, "second derivative", 1)


@on_devices
def test_case_grad_norm_zero(device: str) -> None:
    check(gradient(ops.norm, device, f32([0, 0])), [0, 0])
    rows = f32([[0, 0], [3, 4]])
    check(gradient(lambda x: ops.norm(x, axis=1), device, rows), [[0, 0], [0.6, 0.8]], 1e-7)


@on_devices
def test_std_of_equal_numbers(device: str) -> None:
    check(gradient(ops.std, device, f32([3, 3, 3])), [0, 0, 0])
    check(gradient(lambda x: ops.std(x, axis=1), device, f32([[1, 1], [1, 3]])), [[0, 0], [-0.5, 0.5]])


@on_devices
def test_case_grad_sqrt_zero(device: str) -> None:
    check(gradient(ops.sqrt, device, f32([0, 1])), [INF, 0.5])


@on_devices
def test_case_grad_abs_zero(device: str) -> None:
    check(gradient(ops.abs, device, f32([-2, 0, 3])), [-1, 0, 1])


@on_devices
def test_case_grad_maximum_tie(device: str) -> None:
    da, db = gradient(ops.maximum, device, f32([1, 2, 3]), f32([2, 2, 2]))
    check(da, [0, 0.5, 1])
    check(db, [1, 0.5, 0])


@on_devices
def test_minimum_tie(device: str) -> None:
    da, db = gradient(ops.minimum, device, f32([1, 2, 3]), f32([2, 2, 2]))
    check(da, [1, 0.5, 0])
    check(db, [0, 0.5, 1])


@on_devices
def test_case_grad_max_reduce_tie(device: str) -> None:
    check(gradient(ops.max, device, f32([1, 3, 3, 2])), [0, 0.5, 0.5, 0])
    check(gradient(lambda x: ops.max(x, axis=1), device, f32([[2, 2], [1, 5]])), [[0.5, 0.5], [0, 1]])


@on_devices
def test_min_reduce_tie(device: str) -> None:
    check(gradient(ops.min, device, f32([2, 1, 1, 1, 1])), [0, 0.25, 0.25, 0.25, 0.25])


@on_devices
def test_case_grad_clip_bounds(device: str) -> None:
    check(gradient(lambda x: ops.clip(x, -1, 1), device, f32([-2, -1, 0, 1, 2])), [0, 1, 1, 1, 0])


@on_devices
def test_case_grad_pow_zero_exp(device: str) -> None:
    check(gradient(ops.power, device, f32([0, 0, 0]), f32([0, 1, 2]), wrt=[0]), [0, 1, 0])
    for exponent, slope in ((0, 0), (1, 1), (2, 0)):
        check(gradient(lambda x, exponent=exponent: x**exponent, device, f32(0)), slope)


@on_devices
def test_case_grad_pow_negative_base(device: str) -> None:
    check(gradient(lambda x: x**3, device, f32([-2, 0, 2])), [12, 0, 12])
    check(gradient(lambda x: x**3.0, device, f32([-2, 0, 2])), [12, 0, 12])
    check(gradient(ops.power, device, f32(-2), f32(2), wrt=[1]), NAN)


@on_devices
def test_power_of_zero_by_its_exponent(device: str) -> None:
    check(gradient(ops.power, device, f32([0, 0]), f32([2, 0]), wrt=[1]), [0, 0])


@on_devices
def test_arctan2_at_the_origin(device: str) -> None:
    dy, dx = gradient(ops.arctan2, device, f32([0, 1]), f32([0, 1]))
    check(dy, [0, 0.5])
    check(dx, [0, -0.5])


@on_devices
def test_case_grad_prod_zeros(device: str) -> None:
    check(gradient(ops.prod, device, f32([0, 2, 3])), [6, 0, 0])
    check(gradient(ops.prod, device, f32([0, 0, 3])), [0, 0, 0])
    rows = f32([[2, 0, 3, 4], [1, 2, 3, 4]])
    check(gradient(lambda x: ops.prod(x, axis=1), device, rows), [[0, 24, 0, 0], [24, 12, 8, 6]])


@on_devices
def test_second_derivative_of_prod_with_zeros(device: str) -> None:
    """Of a*b*c: the sum over each row of the mixed second derivatives."""
    check(curvature(ops.prod, device, np.array([0.0, 2, 3])), [5, 3, 2])
    check(curvature(ops.prod, device, np.array([0.0, 0, 3])), [3, 3, 0])


@on_devices
def test_case_grad_lse_all_neginf(device: str) -> None:
    x = f32([-INF, -INF])
    check(value(ops.logsumexp, device, x), -INF)
    check(gradient(ops.logsumexp, device, x), [0, 0])


@on_devices
def test_case_grad_lse_large(device: str) -> None:
    x = f32([1e4, 1e4])
    check(value(ops.logsumexp, device, x), np.float32(10000.693))
    check(gradient(ops.logsumexp, device, x), [0.5, 0.5])


@on_devices
def test_softmax_of_all_neginf(device: str) -> None:
    x = f32([[-INF, -INF], [0, 0]])
    check(value(ops.softmax, device, x), [[0, 0], [0.5, 0.5]])
    check(gradient(weighted(ops.softmax, [[1, 2], [1, 2]]), device, x), [[0, 0], [-0.25, 0.25]])


@on_devices
def test_case_softmax_masked_row(device: str) -> None:
    mask = np.array([[False, False], [True, True]])

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = ops.where(mask, q @ ops.swapaxes(k, -1, -2) * 2**-0.5, -INF)
        return ops.softmax(scores) @ v

    ones = np.ones((1, 1, 2, 2), np.float32)
    check(value(attention, device, ones, ones, ones)[0, 0], [[0, 0], [1, 1]])
    dq, dk, dv = gradient(attention, device, ones, ones, ones)
    check(dv[0, 0], [[0.5, 0.5], [0.5, 0.5]])
    check(dq[0, 0], [[0, 0], [0, 0]])
    assert np.isfinite(dk).all()


@on_devices
def test_case_grad_sort(device: str) -> None:
    check(gradient(weighted(ops.sort, [1, 10, 100]), device, f32([2, 1, 2])), [10, 1, 100])


@on_devices
def test_positions_have_no_gradient(device: str) -> None:
    for position in (ops.argsort, ops.argmax, ops.argmin):
        check(gradient(lambda x, f=position: ops.convert(f(x), "f32"), device, f32([2, 1, 2])), [0, 0, 0])


@on_devices
def test_case_grad_gather_duplicates(device: str) -> None:
    cotangent = [[1, 1], [10, 10], [100, 100]]
    function = weighted(lambda w: w[np.array([1, 1, 0])], cotangent)
    check(gradient(function, device, np.zeros((3, 2), np.float32)), [[100, 100], [11, 11], [0, 0]])


@on_devices
def test_case_gather_out_of_bounds(device: str) -> None:
    """An index past the end is clamped in the value and in the gradient."""
    indices = np.array([0, 3, 5], np.int32)
    for gather in (lambda w: w[indices], lambda w: ops.take(w, indices)):
        check(value(gather, device, f32([1, 2, 3])), [1, 3, 3])
        check(gradient(gather, device, f32([1, 2, 3])), [1, 0, 2])


@on_devices
def test_case_grad_scatter_duplicates(device: str) -> None:
    """In a set the last of repeated places wins and alone has a gradient; an add adds them up."""
    places, u = np.array([1, 1]), f32([5, 7])

    def written(u: Any) -> Any:
        return ops.IndexUpdate(ops.zeros(3))[places].set(u)

    def added(u: Any) -> Any:
        return ops.IndexUpdate(ops.zeros(3))[places].add(u)

    check(value(written, device, u), [0, 7, 0])
    check(gradient(weighted(written, [1, 10, 100]), device, u), [0, 10])
    check(value(added, device, u), [0, 12, 0])
    check(gradient(weighted(added, [1, 10, 100]), device, u), [10, 10])


@on_devices
def test_case_grad_broadcast_size1(device: str) -> None:
    da, db = gradient(ops.multiply, device, f32([[1], [2]]), f32([[3, 4, 5]]))
    check(da, [[12], [12]])
    check(db, [[3, 3, 3]])


@on_devices
def test_case_grad_broadcast_scalar(device: str) -> None:
    da, db = gradient(ops.add, device, f32(1.0), np.ones((2, 3), np.float32))
    check(da, 6)
    check(db, np.ones((2, 3)))


@on_devices
def test_case_grad_same_operand_twice(device: str) -> None:
    x = f32(3)
    check(gradient(lambda x: x * x, device, x), 6)
    check(gradient(lambda x: x * x + x, device, x), 7)
    check(gradient(lambda x: ops.where(True, x, x), device, x), 1)
    check(gradient(weighted(lambda x: ops.stack([x, x]), [1, 10]), device, x), 11)
    check(gradient(weighted(lambda x: ops.concatenate([x, x]), [1, 10]), device, f32([3])), [11])


@on_devices
def test_case_grad_unused_input(device: str) -> None:
    for w in (np.ones((2, 3), np.float32), np.ones(4), np.ones((), BF16)):
        unused = gradient(lambda x, w: x, device, f32([1, 2]), w)[1]
        assert (unused.shape, unused.dtype) == (w.shape, w.dtype)
        assert not unused.any()


@on_devices
def test_case_zero_size_sum(device: str) -> None:
    empty = np.zeros((0, 3), np.float32)
    check(value(ops.sum, device, empty), 0)
    check(gradient(lambda w: ops.zeros((0, 3)) @ w, device, np.ones((3, 2), np.float32)), np.zeros((3, 2)))
    check(value(ops.softmax, device, f32([])), [])
    check(value(ops.logsumexp, device, f32([])), -INF)
    check(gradient(ops.softmax, device, f32([])), [])
    check(gradient(ops.logsumexp, device, f32([])), [])


def test_zero_size_reshape_is_ambiguous() -> None:
    with pytest.raises(ShapeError, match=r"no size for the -1 in \(0, -1\)"):
        ops.reshape(np.zeros((0, 3), np.float32), (0, -1))


def test_case_grad_int_input() -> None:
    with pytest.raises(DTypeError, match=r"argument x: it is i32\[\], not a float. Pass a float"):
        ag.grad(lambda x: ops.convert(x, "f32"))(3)
    program = ag.capture(lambda x, n: ops.sum(x) * ops.convert(n, "f32"), f32([1]), 3)
    with pytest.raises(DTypeError, match=r"with respect to n: it is i32\[\], not a float"):
        ag.reverse(program, wrt=["n"])


@on_devices
def test_case_grad_bool_mask(device: str) -> None:
    check(gradient(lambda x: x * np.array([True, False]), device, f32([2, 3])), [1, 0])


@on_devices
def test_case_grad_floor_round_sign(device: str) -> None:
    x = f32([-1.5, -1, 0, 0.5, 2])
    for function in (ops.floor, ops.ceil, ops.round, ops.sign):
        check(gradient(function, device, x), np.zeros(5))


@on_devices
def test_case_layernorm_offset(device: str) -> None:
    """Two passes: the difference of E[x^2] and E[x]^2 would give 316 here."""

    def normalized(x: Any) -> Any:
        return (x - ops.mean(x)) * ops.rsqrt(ops.var(x) + 1e-5)

    result = value(normalized, device, f32([10000, 10001, 10002]))
    check(result[1], 0)
    check(result[[0, 2]], [-1.22474, 1.22474], 5e-6)


@on_devices
def test_case_bf16_sum(device: str) -> None:
    """Sums are accumulated in f32; a bf16 accumulator stops at 256."""
    ones = np.ones(1024, BF16)
    check(value(ops.sum, device, ones), 1024)
    check(value(ops.mean, device, np.ones(70000, BF16)), 1)
    check(value(ops.norm, device, np.ones(4096, BF16)), 64)
    check(value(lambda x: ops.sum(ops.softmax(x)), device, ones), 1)
    check(value(lambda x: x @ x, device, ones), 1024)
    check(gradient(lambda w: ops.broadcast_to(w, (1024,)), device, np.ones((), BF16)), 1024)


@on_devices
def test_bf16_gradients_of_repeated_places_are_summed_in_f32(device: str) -> None:
    places = np.zeros(1024, np.int32)
    check(gradient(lambda w: ops.take(w, places), device, np.ones(2, BF16)), [1024, 0])


@on_devices
def test_case_grad_nondeterminism(device: str) -> None:
    """The gradient of an embedding, a hundred times: the same bits."""
    rng = np.random.default_rng(0)
    table, tokens = rng.normal(size=(5, 8)).astype(np.float32), rng.integers(0, 5, 400)
    weights = rng.normal(size=(400, 8)).astype(np.float32)
    program = ag.reverse(ag.capture(lambda w: ops.sum(ops.take(w, tokens, 0) * weights), table))
    first = run(program, [table], device)[1]
    for _ in range(99):
        assert run(program, [table], device)[1].tobytes() == first.tobytes()
