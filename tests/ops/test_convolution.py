"""Convolutions in every arrangement, their gradients and their adjoint, against JAX, torch and the definition."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import antegrad as ag
from antegrad import ops, tree
from antegrad.errors import DTypeError, ShapeError
from antegrad.ops.convolution import conv_general
from tests.ops.certification import Case, cases, check_derivatives, check_forward, in_f64
from tests.support import SUM, assert_close, devices, run

LABELS = {"NWC": "NHC HIO", "NHWC": "NHWC HWIO", "NDHWC": "NDHWC DHWIO"}
LABELS |= {"NCW": "NCH OIH", "NCHW": "NCHW OIHW", "NCDHW": "NCDHW OIDHW"}


def each(number: Any, count: int) -> Any:
    return (number,) * count if isinstance(number, int) else number


def conv_by_jax(
    x: Any, w: Any, stride: Any = 1, padding: Any = "VALID", dilation: Any = 1, groups: int = 1, layout: Any = None
) -> jax.Array:
    count = x.ndim - 2
    of_x, of_w = LABELS[layout or ("NWC", "NHWC", "NDHWC")[count - 1]].split()
    if not isinstance(padding, str):
        padding = [each(pair, 2) for pair in each(padding, count)]
    return jax.lax.conv_general_dilated(
        x, w, each(stride, count), padding, None, each(dilation, count), (of_x, of_w, of_x), groups, precision="highest"
    )


def transpose_by_jax(x: Any, w: Any, *, shape: tuple[int, ...], output_size: Any = None, **params: Any) -> jax.Array:
    """The adjoint that JAX derives; `shape` is that of the result."""
    return jax.vjp(lambda a: conv_by_jax(a, w, **params), jnp.zeros(shape, x.dtype))[1](x)[0]


def transpose(x: Any, w: Any, *, shape: tuple[int, ...], **params: Any) -> Any:
    return ops.conv_transpose(x, w, **params)


convs = partial(cases, "conv", jax=conv_by_jax, bound=SUM)
transposes = partial(cases, "conv_transpose", of=transpose, jax=transpose_by_jax, bound=SUM)

CASES = [
    *convs("F[2,5,3]", "F[3,3,4]"),
    *convs("F[2,5,6,3]", "F[3,2,3,4]", padding="SAME"),
    *convs("I[2,4,4,2]", "I[2,2,2,3]", padding=1),
    *convs("D[1,4,5,4,2]", "D[2,3,2,2,3]", stride=(1, 2, 1), padding=(1, (0, 2), 0)),
    *convs("F[2,7,6,2]", "F[3,2,2,4]", stride=2, padding="SAME"),
    *convs("D[2,7,8,2]", "D[3,2,2,3]", stride=(2, 3), padding=((1, 2), (0, 1)), dilation=(2, 1)),
    *convs("D[1,9,2]", "D[3,2,2]", stride=3, padding=((2, 0),), dilation=3),
    *convs("D[2,5,5,4]", "D[3,3,2,6]", padding="SAME", groups=2),
    *convs("D[2,6,5,3]", "D[3,3,1,6]", stride=2, padding=1, groups=3),
    *convs("D[2,5,4]", "D[2,1,4]", groups=4, dilation=2),
    *convs("D[2,3,5,6]", "D[4,3,3,2]", stride=2, padding=1, layout="NCHW"),
    *convs("F[2,3,6,5]", "F[3,1,3,2]", stride=(2, 1), padding=((2, 1), (0, 1)), groups=3, layout="NCHW"),
    *convs("f64[1,7,6,2]", "f64[9,9,1,2]", padding="SAME", groups=2),
    *convs("D[2,4,7]", "D[6,2,3]", padding="SAME", dilation=2, groups=2, layout="NCW"),
    *convs("f64[1,2,3,4,3]", "f64[3,2,2,1,2]", padding="SAME", layout="NCDHW"),
    *convs("D[2,3,3,2]", "D[3,3,2,4]"),
    *convs("D[2,4,4,3]", "D[1,1,3,2]"),
    *convs("D[2,5,5,3]", "D[1,1,3,2]", stride=2),
    *convs("f32[1,1,1,1]", "f32[1,1,1,1]"),
    *convs("f32[0,5,5,3]", "f32[3,3,3,4]"),
    *convs("f64[2,1,1,2]", "f64[3,3,2,2]", padding="SAME"),
    *convs("f64[2,8,2]", "f64[2,2,3]", stride=5),
    *transposes("F[2,3,3]", "F[3,2,3]", shape=(2, 5, 2)),
    *transposes("D[2,3,2,4]", "D[3,3,2,4]", shape=(2, 7, 5, 2), stride=2),
    *transposes("D[2,3,2,4]", "D[3,3,2,4]", shape=(2, 6, 4, 2), stride=2, padding="SAME"),
    *transposes("D[2,3,2,4]", "D[3,3,2,4]", shape=(2, 5, 3, 2), stride=2, padding="SAME", output_size=(5, 3)),
    *transposes("D[1,3,6]", "D[3,2,6]", shape=(1, 8, 4), stride=2, padding=((1, 1),), dilation=2, groups=2,
                output_size=8),
    *transposes("D[2,4,2,3]", "D[4,3,2,2]", shape=(2, 3, 2, 6), stride=(1, 3), padding=((0, 1), (1, 1)),
                output_size=(2, 6), layout="NCHW"),
    *transposes("f32[0,3,2]", "f32[2,3,2]", shape=(0, 4, 3)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


WINDOWS = list(itertools.product(
    [1, 2, 3], [1, 2, 3], [0, 1, (0, 2), "SAME"], [1, 2, 3], [(1, 1), (2, 1), (2, 2), (3, 3)], [1, 5, 6],
))  # fmt: skip
"""Kernel, stride, padding, dilation, groups and outputs for each, size of x; every seventh is enough for a test."""


def by_definition(
    x: np.ndarray, w: np.ndarray, stride: int, pads: tuple[int, int], dilation: int, groups: int
) -> np.ndarray:
    """``y[n, p, o] = sum over q, c of x[n, stride * p + dilation * q - before, c] * w[q, c, o]``, group by group."""
    x = np.pad(x, ((0, 0), pads, (0, 0)))
    count = (x.shape[1] - dilation * (len(w) - 1) - 1) // stride + 1
    y = np.zeros((len(x), count, w.shape[2]))
    for place, q in itertools.product(range(count), range(len(w))):
        for group in range(groups):
            part = slice(group * w.shape[2] // groups, (group + 1) * w.shape[2] // groups)
            channels = slice(group * w.shape[1], (group + 1) * w.shape[1])
            y[:, place, part] += x[:, stride * place + dilation * q, channels] @ w[q, :, part]
    return y


@pytest.mark.parametrize("start", [0, 3])
def test_by_definition(start: int, rng: np.random.Generator) -> None:
    """Values, and gradients by ``<dy, conv(a, w)> = <dx, a>``; exactly, because all numbers are small integers."""
    fitting = 0
    for size, stride, padding, dilation, (groups, outputs), n in WINDOWS[start::7]:
        extent = dilation * (size - 1) + 1
        total = max((-(-n // stride) - 1) * stride + extent - n, 0)
        pads = (total // 2, total - total // 2) if padding == "SAME" else each(padding, 2)
        if extent > n + sum(pads):
            continue
        fitting += 1
        own: dict[str, Any] = {"stride": stride, "padding": (pads,) if padding != "SAME" else padding}
        own |= {"dilation": dilation, "groups": groups}
        shapes = (2, n, 2 * groups), (size, 2, outputs * groups)
        x, w, a, b = (rng.integers(-4, 5, shape).astype(np.float64) for shape in shapes * 2)
        y, pull = ag.vjp(partial(ops.conv, **own), x, w)
        np.testing.assert_array_equal(y, by_definition(x, w, stride, pads, dilation, groups), str(own))
        dy = rng.integers(-4, 5, y.shape).astype(np.float64)
        dx, dw = pull(dy)
        assert np.sum(dx * a) == np.sum(dy * by_definition(a, w, stride, pads, dilation, groups)), own
        assert np.sum(dw * b) == np.sum(dy * by_definition(x, b, stride, pads, dilation, groups)), own
    assert fitting > 100


@given(st.data())
def test_case_conv_transpose_padding(data: st.DataObject) -> None:
    """The adjoint: ``<conv(a, w), x> = <a, conv_transpose(x, w)>``, exactly, since all numbers are small integers."""
    draw = data.draw
    count, groups = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    kernel, stride, dilation = (tuple(draw(st.integers(1, 3)) for _ in range(count)) for _ in range(3))
    pairs = st.tuples(st.integers(0, 2), st.integers(0, 2))
    padding = draw(st.one_of(st.sampled_from(["SAME", "VALID"]), st.integers(0, 2), st.tuples(*[pairs] * count)))
    sizes = tuple(k * d + draw(st.integers(0, 4)) for k, d in zip(kernel, dilation, strict=True))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    a, w = rng.integers(-4, 5, (2, *sizes, 2 * groups)), rng.integers(-4, 5, (*kernel, 2, 3 * groups))
    a, w = a.astype(np.float32), w.astype(np.float32)
    params: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    forward = ops.conv(a, w, **params)
    x = rng.integers(-4, 5, forward.shape).astype(np.float32)
    back = ops.conv_transpose(x, w, **params, output_size=sizes)
    assert back.shape == a.shape
    assert np.sum(forward * x) == np.sum(a * back)


def test_default_size_of_the_transpose() -> None:
    """The smallest that the convolution brings back, or ``stride * size`` for "SAME"."""
    x, w = np.ones((1, 4, 2), np.float32), np.ones((3, 1, 2), np.float32)
    assert ops.conv_transpose(x, w, stride=2).shape == (1, 9, 1)
    assert ops.conv_transpose(x, w, stride=2, padding=1).shape == (1, 7, 1)
    assert ops.conv_transpose(x, w, stride=2, padding="SAME").shape == (1, 8, 1)
    assert ops.conv_transpose(x, w[:1], stride=3, padding="SAME").shape == (1, 12, 1)


@pytest.mark.parametrize("device", devices())
def test_case_conv1d_dilated_strided(device: str) -> None:
    x, w = np.array([[[7, 3]], [[3, 2]]], np.float32), np.array([[[3, 6]], [[4, 2]]], np.float32)

    def function(x: Any, w: Any) -> Any:
        y = ops.conv(x, w, stride=2, padding=1, dilation=2, layout="NCW")
        return ops.sum(y), y

    program = ag.reverse(ag.capture(lambda x, w: function(x, w)[0], x, w))
    assert run(ag.capture(function, x, w), [x, w], device)[1].tolist() == [[[18], [6]], [[12], [4]]]
    _, dx, dw = run(program, [x, w], device)
    assert (dx.tolist(), dw.tolist()) == ([[[0, 8]], [[0, 8]]], [[[0, 5]], [[0, 5]]])


@pytest.mark.parametrize("device", devices())
def test_case_conv1d_groups(device: str) -> None:
    x, w = np.array([[[1, 2, 3], [4, 5, 6]]], np.float32), np.array([[[1, 10]], [[100, 1000]]], np.float32)

    def function(x: Any, w: Any) -> Any:
        y = ops.conv(x, w, groups=2, layout="NCW")
        return ops.sum(y), y

    program = ag.reverse(ag.capture(lambda x, w: function(x, w)[0], x, w))
    assert run(ag.capture(function, x, w), [x, w], device)[1].tolist() == [[[21, 32], [5400, 6500]]]
    _, dx, dw = run(program, [x, w], device)
    assert (dx.tolist(), dw.tolist()) == ([[[1, 11, 10], [100, 1100, 1000]]], [[[3, 5]], [[9, 11]]])


def test_case_conv_empty_output() -> None:
    x, w = np.ones((1, 1, 1), np.float32), np.ones((2, 1, 1), np.float32)
    with pytest.raises(ShapeError, match=r"f32\[1,1,1\] and f32\[2,1,1\]: a window of 2 .* axis 1 has size 1"):
        ops.conv(x, w)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_sums_of_16_bit_floats_are_f32(dtype: Any, device: str) -> None:
    """2304 products forward and 16384 in the gradient of w, of which a sum in 16 bits would lose most."""
    x, w = np.full((4, 64, 64, 256), 0.5, dtype), np.full((3, 3, 256, 1), 0.5, dtype)
    gradient = ag.reverse(ag.capture(lambda x, w: ops.sum(ops.conv(x, w, padding="SAME")[:, 1:-1, 1:-1]), x, w))
    y = run(ag.capture(lambda x, w: ops.conv(x, w), x, w), [x, w], device)[0]
    dw = run(gradient, [x, w], device)[2]
    assert (y == 576).all()
    assert (dw == np.asarray(4 * 62 * 62 / 2, dtype)).all()


ARRANGED = {
    "x": ((0, None), 1, 1), "w": ((None, 0), 1, 1), "both": ((0, 0), 1, 1),
    "x-features": ((0, None), 2, 1), "w-features": ((None, 0), 2, 1), "both-features": ((0, 0), 2, 1),
    "x-batches": ((0, None), 1, 2), "w-batches": ((None, 0), 1, 2), "both-batches": ((0, 0), 1, 2),
}  # fmt: skip


@pytest.mark.parametrize(("axes", "features", "batches"), ARRANGED.values(), ids=ARRANGED)
def test_vmap(axes: Any, features: int, batches: int, rng: np.random.Generator) -> None:
    """Every example on its own gives the same, for every way to be batched and every kind of groups."""

    def one(x: Any, w: Any) -> Any:
        return conv_general(x, w, "0bf_oi0->fb0", (2,), ((1, 0),), None, (2,), features, batches)

    x, w = rng.normal(size=(5, 2 * batches, 3 * features)), rng.normal(size=(4 * features * batches, 3, 2))
    operands = [np.stack([a, a + 1, a * 2]) if axis == 0 else a for a, axis in zip((x, w), axes, strict=True)]
    found = ag.vmap(one, in_axes=axes)(*operands)
    for i in range(3):
        alone = one(*(a[i] if axis == 0 else a for a, axis in zip(operands, axes, strict=True)))
        np.testing.assert_allclose(found[i], alone, rtol=1e-13, atol=1e-13)


def test_per_example_gradients(rng: np.random.Generator) -> None:
    x, w = rng.normal(size=(3, 1, 6, 5, 4)), rng.normal(size=(3, 2, 2, 4))

    def loss(x: Any, w: Any) -> Any:
        return ops.sum(ops.sin(ops.conv(x, w, stride=2, padding=1, groups=2)))

    found = ag.vmap(ag.grad(loss, (0, 1)), in_axes=(0, None))(x, w)
    for i in range(3):
        for ours, alone in zip(found, ag.grad(loss, (0, 1))(x[i], w), strict=True):
            np.testing.assert_allclose(ours[i], alone, rtol=1e-12, atol=1e-12)


def test_flops_of_the_gradients_are_those_of_the_convolution() -> None:
    """All three multiply the same pairs of elements; pairs with padding, and with zeros between, are not counted."""
    x, w = ag.spec((2, 9, 8, 4), "f32"), ag.spec((3, 2, 2, 6), "f32")
    program = ag.capture(lambda x, w: ops.conv(x, w, 2, "SAME", (2, 1), 2), x, w)
    gradient = ag.reverse(ag.capture(lambda x, w: ops.sum(ops.conv(x, w, 2, "SAME", (2, 1), 2)), x, w))
    counts = [e.primitive.flops(e) for e in gradient.equations if e.primitive is conv_general]
    assert counts == [program.cost().total.flops] * len(counts)
    plain = ag.capture(lambda x, w: ops.conv(x, w), ag.spec((2, 9, 8, 4), "f32"), ag.spec((3, 2, 4, 6), "f32"))
    assert plain.cost().total.flops == 2 * (2 * 7 * 7 * 6) * (3 * 2 * 4)


def test_printed_program_comes_back(rng: np.random.Generator) -> None:
    x, w = rng.normal(size=(2, 5, 6, 4)).astype(np.float32), rng.normal(size=(3, 2, 2, 6)).astype(np.float32)
    program = ag.reverse(ag.capture(lambda x, w: ops.sum(ops.conv(x, w, (2, 1), "SAME", (1, 2), 2)), x, w))
    again = ag.from_python(program.python())
    written, read = ([e.params for e in p.equations if e.primitive is conv_general] for p in (program, again))
    assert written == read
    assert len(read) == 3
    for found, wanted in zip(run(again, [x, w], "host"), run(program, [x, w], "host"), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_weight_gradient_moves_nothing() -> None:
    """Without groups the gradients are one convolution each, and one flip of the kernel."""
    program = ag.reverse(ag.capture(
        lambda x, w: ops.sum(ops.conv(x, w, padding="SAME")), ag.spec((2, 5, 6, 4)), ag.spec((3, 3, 4, 6))
    ))  # fmt: skip
    names = [equation.primitive.name for equation in program.equations]
    assert names.count("flip") == 1
    assert not {"transpose", "reshape"} & set(names)


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "channels": (lambda x, w: ops.conv(x, w[:, :, :2]), ShapeError, r"takes 2 channels.*x has 3 on axis 3"),
    "channels-of-groups": (lambda x, w: ops.conv(x, w, groups=2), ShapeError, "6 channels, 3 for each of 2 groups"),
    "groups": (lambda x, w: ops.conv(x, w, groups=3), ShapeError, "divide the 4 outputs of w, found 3"),
    "no-groups": (lambda x, w: ops.conv(x, w, groups=0), ShapeError, "found 0"),
    "rank": (lambda x, w: ops.conv(x[0, 0], w), ShapeError, r"f32\[6,3\].*1 to 3 spatial axes"),
    "rank-of-w": (lambda x, w: ops.conv(x, w[0]), ShapeError, r"kernel w is \(h, w, C / groups, O\)"),
    "rank-of-w-first": (lambda x, w: ops.conv(x, w[0], layout="NCHW"), ShapeError, r"\(O, C / groups, h, w\)"),
    "layout": (lambda x, w: ops.conv(x, w, layout="NWC"), ShapeError, "'NWC' does not name 4 axes; .*NHWC or NCHW"),
    "larger": (lambda x, w: ops.conv(x, w, dilation=(1, 3)), ShapeError, "a window of 7 .*axis 2 has size 6"),
    "negative": (lambda x, w: ops.conv(x, w, padding=-1), ShapeError, "from 0 up.*found -1"),
    "pairs": (lambda x, w: ops.conv(x, w, padding=((1, 1),)), ShapeError, "for each of 2 spatial axes"),
    "word": (lambda x, w: ops.conv(x, w, padding="same"), ShapeError, "'same' has no meaning; expected 'VALID'"),
    "stride": (lambda x, w: ops.conv(x, w, stride=0), ShapeError, r"stride must be a number from 1 up.*found 0"),
    "strides": (lambda x, w: ops.conv(x, w, stride=(1, 1, 1)), ShapeError, r"or 2 of them, found \(1, 1, 1\)"),
    "dilation": (lambda x, w: ops.conv(x, w, dilation=(1, -1)), ShapeError, r"dilation .*found \(1, -1\)"),
    "bool": (lambda x, w: ops.conv(x > 0, w > 0), DTypeError, "number type"),
    "lost-bits": (lambda x, w: ops.conv(x, ops.convert(w, "i32")), DTypeError, "f32 and i32"),
    "transposed-channels": (lambda x, w: ops.conv_transpose(x, w), ShapeError, "gives 4 channels, and x has 3"),
    "transposed-size": (
        lambda x, w: ops.conv_transpose(x, ops.swapaxes(w, 2, 3), stride=2, output_size=(9, 13)), ShapeError,
        r"would make \(4, 6\) of the spatial sizes \(9, 13\), and x has \(5, 6\)",
    ),
    "transposed-away": (
        lambda x, w: ops.conv_transpose(x[:, :1], ops.swapaxes(w, 2, 3), padding=2), ShapeError, r"x has \(1, 6\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("function", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(function: Callable[[Any, Any], Any], error: type[Exception], message: str) -> None:
    """The types of both operands stand in the error, and the line of this file."""
    with pytest.raises(error, match=message) as found:
        ag.capture(function, ag.spec((2, 5, 6, 3)), ag.spec((3, 3, 3, 4)))
    assert "test_convolution.py" in str(found.value)
    if error is ShapeError:
        assert str(found.value).count("f32[") >= 2


def test_primitive_refuses_what_does_not_fit() -> None:
    x, w = np.ones((2, 5, 3), np.float32), np.ones((3, 3, 4), np.float32)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("b0f_0io->b0", {}), ("b0f_0oi->b0f", {}), ("b0f_0io->b0f", {"strides": (0,)}),
        ("b0f_0io->b0f", {"strides": (1, 1)}), ("b0f_0io->b0f", {"feature_groups": 2, "batch_groups": 2}),
    ]  # fmt: skip
    for labels, params in wrong:
        with pytest.raises(ShapeError, match=r"conv_general: f32\[2,5,3\] and f32\[3,3,4\]"):
            conv_general(x, w, labels, **params)


TORCH = [
    {}, {"stride": 2}, {"stride": 2, "padding": 1, "output_padding": 1}, {"padding": 2, "dilation": 2},
    {"stride": 3, "padding": 1, "output_padding": 2, "groups": 2}, {"stride": 2, "groups": 4},
]  # fmt: skip


@pytest.mark.parametrize("params", TORCH, ids=str)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_conv_transpose_as_in_torch(count: int, params: dict[str, int], rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    groups = params.get("groups", 1)
    x, w = rng.normal(size=(2, 4, *(5, 4, 3)[:count])), rng.normal(size=(4, 4 // groups, *(3, 2, 3)[:count]))
    function = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[count - 1]
    expected = function(torch.tensor(x), torch.tensor(w), **params).numpy()
    own = {key: value for key, value in params.items() if key != "output_padding"}
    layout = ("NCW", "NCHW", "NCDHW")[count - 1]
    found = ops.conv_transpose(x, w, **own, output_size=expected.shape[2:], layout=layout)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    if not params.get("output_padding"):
        assert ops.conv_transpose(x, w, **own, layout=layout).shape == expected.shape


@pytest.mark.parametrize("device", devices())
def test_three_times_differentiable(device: str, rng: np.random.Generator) -> None:
    """conv_general is closed under differentiation."""
    x, w = rng.normal(size=(1, 5, 2)), rng.normal(size=(2, 2, 2))

    def third(library: Any, conv: Any, grad: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            return library.sum(conv(x, w, stride=2, padding=1) ** 4)

        first = lambda x, w: library.sum(library.sin(grad(loss, 0)(x, w)))  # noqa: E731
        second = lambda x, w: library.sum(library.sin(grad(first, 1)(x, w)))  # noqa: E731
        return lambda x, w: grad(second, 0)(x, w)

    (expected,) = in_f64(third(jnp, conv_by_jax, jax.grad), x, w)
    program = ag.capture(third(ops, ops.conv, ag.grad), x, w)
    assert_close(run(program, [x, w], device)[0], expected, 1e-12, device)
    assert tree.leaves(program.run(x, w))
