"""Attention against JAX and torch, in one piece and in blocks; masks, groups of heads, and memory."""

from __future__ import annotations

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
from tests.ops.certification import Case, cases, check_derivatives, in_f64
from tests.support import array, assert_close, assert_same_bits, devices, run

attention = ops.scaled_dot_product_attention


def by_jax(
    query: Any, key: Any, value: Any, mask: Any = None, causal: bool = False, scale: Any = None, offset: int = 0,
    block_size: int | None = None,
) -> jax.Array:  # fmt: skip
    """The formula, with every head of the keys repeated. JAX's own function has its softmax in f32 even for f64."""
    key, value = (jnp.repeat(x, query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scores = jnp.einsum("...ij,...kj->...ik", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf) if mask.dtype == bool else scores + mask
    if causal:
        scores = jnp.where(jnp.tri(scores.shape[-2], scores.shape[-1], offset, dtype=bool), scores, -jnp.inf)
    return jax.nn.softmax(scores) @ value


def attend(*operands: str, jax: Callable[..., Any] = by_jax, **settings: Any) -> list[Case]:
    return cases("scaled_dot_product_attention", *operands, jax=jax, **settings)


CASES = [
    *attend("F[1,2,3,4]", "F[1,2,5,4]", "F[1,2,5,3]"),
    *attend("f64[3,5,4]", "f64[3,5,4]", "f64[3,5,4]", causal=True),
    *attend("F[2,4,3,4]", "F[2,2,5,4]", "F[2,2,5,3]", causal=True, offset=2, scale=0.3),
    *attend("f64[2,6,3,2]", "f64[2,2,4,2]", "f64[2,2,4,2]", "bool{1 0 1 0 0 1 1 1 0 1 0 1}[3,4]"),
    *attend("F[1,4,3,2]", "F[1,1,4,2]", "F[1,1,4,2]", "F[4,1,4]", causal=True),
    *attend(
        "f64[1,2,3,2]", "f64[1,2,4,2]", "f64[1,2,4,2]", "f64[]:0.5:1",
        of=lambda *xs: attention(*xs[:3], scale=xs[3]), jax=lambda *xs: by_jax(*xs[:3], scale=xs[3]),
    ),
    *attend("f64[2,2,1,3]", "f64[2,2,1,3]", "f64[2,2,1,3]"),
    *attend("F[1,4,5,4]", "F[1,2,6,4]", "F[1,2,6,3]", block_size=2),
    *attend("f64[1,4,5,4]", "f64[1,2,6,4]", "f64[1,2,6,3]", block_size=3, causal=True, offset=1),
    *attend("f64[2,4,5,2]", "f64[2,4,4,2]", "f64[2,4,4,2]", "f64[1,4,5,4]", block_size=2, causal=True),
    *attend("f64[2,2,4,2]", "f64[2,2,4,2]", "f64[2,2,4,2]", "f64[1,2,1,4]", block_size=1),
    *attend("f64[2,2,3,2]", "f64[2,2,3,2]", "f64[2,2,3,2]", "bool{1 0 0 1 1 0 1 1 1}[3,3]", block_size=2),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    (truth,) = in_f64(case.ask_jax, *case.widened())
    program, dtype = ag.capture(case.call, *case.arrays), case.arrays[0].dtype
    allowed = (8 if dtype.itemsize > 2 else 2) * float(ml_dtypes.finfo(dtype).eps)
    for device in devices():
        (result,) = run(program, case.arrays, device)
        assert result.dtype == dtype
        assert_close(result, truth, allowed, device)
        if device == "host":
            assert_same_bits(result, np.asarray(case.call(*case.arrays)), "host against at once")


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


def loss(weights: Any, **params: Any) -> Callable[..., Any]:
    return lambda *xs: ops.sum(attention(*xs, **params) * weights)


PARAMS = [{}, {"causal": True}, {"scale": 0.5, "block_size": 3}]


def check_against(truth: list[np.ndarray], arrays: list[np.ndarray], weights: np.ndarray, params: dict) -> None:
    """The output and the gradients of ``sum(output * weights)``, on both devices, in epsilons."""
    epsilon = float(ml_dtypes.finfo(weights.dtype).eps)
    forward = ag.capture(partial(attention, **params), *arrays)
    gradients = ag.reverse(ag.capture(loss(weights, **params), *arrays))
    for device in devices():
        found = [*run(forward, arrays, device), *run(gradients, arrays, device)[1:]]
        for allowed, result, expected in zip((8, 16, 16, 16), found, truth, strict=True):
            assert_close(result, expected.astype(np.float64), allowed * epsilon, device)


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16"])
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_against_torch(dtype: str, params: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    arrays = [array(f"{dtype}[2,{heads},{length},8]") for heads, length in ((4, 5), (2, 7), (2, 7))]
    weights = array(f"{dtype}[2,4,5,8]", "weights")
    tensors = [torch.tensor(x.astype(np.float64), requires_grad=True) for x in arrays]
    options = {"is_causal": params.get("causal", False), "scale": params.get("scale"), "enable_gqa": True}
    expected = torch.nn.functional.scaled_dot_product_attention(*tensors, **options)
    (expected * torch.tensor(weights.astype(np.float64))).sum().backward()
    truth = [expected.detach().numpy(), *(tensor.grad.numpy() for tensor in tensors)]
    check_against(truth, arrays, weights, params)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_against_the_function_of_jax(dtype: str, params: dict[str, Any]) -> None:
    arrays = [array(f"{dtype}[2,{heads},{length},8]") for heads, length in ((4, 5), (2, 7), (2, 7))]
    weights = array(f"{dtype}[2,4,5,8]", "weights")

    def theirs(*operands: Any) -> jax.Array:
        moved = (jnp.swapaxes(x, 1, 2) for x in operands)
        causal, scale = params.get("causal", False), params.get("scale")
        return jnp.swapaxes(jax.nn.dot_product_attention(*moved, is_causal=causal, scale=scale), 1, 2)

    wide = [x.astype(np.float32) for x in arrays]
    output, pullback = jax.vjp(theirs, *wide)
    truth = [output, *pullback(jnp.asarray(weights, jnp.float32))]
    check_against([np.asarray(x) for x in truth], arrays, weights, params)


MASKS = {
    "bool": np.array([[False, False], [True, True]]),
    "float": np.array([[-np.inf, -np.inf], [0, 0]], np.float32),
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("block_size", [None, 1])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_a_masked_row_is_zero(mask: np.ndarray, block_size: int | None, device: str) -> None:
    ones = np.ones((1, 1, 2, 2), np.float32)
    program = ag.capture(loss(np.float32(1), mask=mask, block_size=block_size), ones, ones, ones)
    _, d_query, d_key, d_value = ag.reverse(program).run(ones, ones, ones, device=device)
    output = ag.capture(partial(attention, mask=mask, block_size=block_size), ones, ones, ones)
    assert output.run(ones, ones, ones, device=device)[0, 0].tolist() == [[0, 0], [1, 1]]
    assert d_value[0, 0].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert not d_query.any()
    assert not d_key.any()


@pytest.mark.parametrize("device", devices())
def test_second_derivative_at_a_masked_row(device: str) -> None:
    x = array("f64[1,1,2,2]")

    def gradient(x: Any) -> Any:
        return ops.sum(ops.square(ag.grad(loss(1.0, mask=MASKS["bool"]))(x, x, x)))

    assert np.isfinite(ag.reverse(ag.capture(gradient, x)).run(x, device=device)[1]).all()


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("block_size", [None, 2])
def test_a_cache_of_keys(block_size: int | None, device: str) -> None:
    """Queries of a later step, at an offset that is known only then, get what they get in the whole sequence."""
    query, key, value = (array("f32[1,2,7,4]", name) for name in ("query", "key", "value"))
    whole = attention(query, key, value, causal=True)

    def step(query: Any, key: Any, value: Any, offset: Any) -> Any:
        return attention(query, key, value, causal=True, offset=offset, block_size=block_size)

    arguments = query[:, :, 4:], key, value, np.asarray(4, np.int32)
    found = ag.capture(step, *arguments).run(*arguments, device=device)
    assert_close(found, whole[:, :, 4:].astype(np.float64), 4 * float(np.finfo(np.float32).eps), device)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("shapes", [((2, 0, 4), (2, 3, 4)), ((2, 3, 4), (2, 0, 4)), ((2, 3, 0), (2, 2, 0))], ids=str)
def test_nothing_to_attend_to(shapes: tuple[tuple[int, ...], ...], device: str) -> None:
    query, key = (np.ones(shape, np.float32) for shape in shapes)
    value = np.ones((*shapes[1][:2], 5), np.float32)
    program = ag.reverse(ag.capture(loss(np.float32(1), causal=True, block_size=2), query, key, value))
    results = program.run(query, key, value, device=device)
    assert results[0] == (30 if shapes[1][1] and shapes[0][1] else 0)
    assert all(np.isfinite(gradient).all() for gradient in results)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_agree_with_the_whole(causal: bool, device: str) -> None:
    """At length 512: output and gradients within 8 epsilons of the largest element."""
    arrays = [array("f32[1,2,512,32]", name) for name in ("query", "key", "value")]
    weights = array("f32[1,2,512,32]", "weights")

    def results(**params: Any) -> list[np.ndarray]:
        forward = ag.capture(partial(attention, causal=causal, **params), *arrays)
        gradients = ag.reverse(ag.capture(loss(weights, causal=causal, **params), *arrays))
        return [*run(forward, arrays, device), *run(gradients, arrays, device)[1:]]

    for found, expected in zip(results(block_size=100), results(), strict=True):
        assert_close(found, expected.astype(np.float64), 8 * float(np.finfo(np.float32).eps), device)


def test_sums_over_blocks_keep_their_bits() -> None:
    """The gradients of keys and values are added up in f32, over many blocks of bf16 as well."""
    arrays = [array(f"bf16[1,1,{length},4]", name) for length, name in ((256, "query"), (4, "key"), (4, "value"))]
    whole, blocks = (
        ag.reverse(ag.capture(loss(arrays[0], block_size=size), *arrays)).run(*arrays, device="cpu")
        for size in (None, 1)
    )
    for found, expected in zip(blocks, whole, strict=True):
        assert_close(found, expected.astype(np.float64), 2**-7, "bf16")


def temporary_bytes(length: int, block_size: int | None) -> int:
    """What a gradient takes beyond arguments and results."""
    x = ag.spec((1, 2, length, 16))
    program = ag.reverse(ag.capture(lambda *xs: ops.sum(attention(*xs, block_size=block_size)), x, x, x))
    return ag.compile(program, device="cpu").memory().temp_size_in_bytes


def test_memory_grows_with_the_length_and_not_with_its_square() -> None:
    small, large = (temporary_bytes(length, 64) for length in (2048, 4096))
    assert large < 2.2 * small
    assert large < temporary_bytes(4096, None) / 10


def test_vmap() -> None:
    query, key, value = (array("f64[3,2,4,5]", name) for name in ("query", "key", "value"))
    for block_size in (None, 2):
        found = ag.vmap(partial(attention, causal=True, block_size=block_size))(query, key, value)
        assert_close(found, attention(query, key, value, causal=True), 1e-15, "vmap")


REFUSED = {
    "width": (lambda x: attention(x, x[..., :2], x), ShapeError, r"found f32\[4,5,3\], f32\[4,5,2\] and f32\[4,5,3\]"),
    "groups": (lambda x: attention(x, x[:3], x[:3]), ShapeError, r"multiple of G, found f32\[4,5,3\], f32\[3,5,3\]"),
    "values": (lambda x: attention(x, x, x[:, :3]), ShapeError, r"f32\[4,3,3\]"),
    "axes": (lambda x: attention(x[0], x[0], x[0]), ShapeError, r"query \(..., H, L, E\).*found f32\[5,3\]"),
    "leading": (
        lambda x: attention(ops.zeros((2, 4, 5, 3)), ops.zeros((3, 4, 5, 3)), x), ShapeError, "must broadcast together"
    ),
    "integers": (lambda x: attention(*[x.astype("i32")] * 3), DTypeError, r"float tensors, found i32\[4,5,3\]"),
    "mask-shape": (lambda x: attention(x, x, x, x), ShapeError, r"scores \[4, 5, 5\], found f32\[4,5,3\]"),
    "mask-grows": (lambda x: attention(x, x, x, ops.zeros((2, 4, 5, 5))), ShapeError, r"found f32\[2,4,5,5\]"),
    "mask-type": (lambda x: attention(x, x, x, ops.zeros((5, 5), "i32")), DTypeError, r"bool, or float.*i32\[5,5\]"),
    "mask-wide": (lambda x: attention(x, x, x, ops.zeros((5, 5), "f64")), DTypeError, r"found f64\[5,5\]"),
    "offset": (lambda x: attention(x, x, x, offset=1), ShapeError, "causal=True"),
    "offset-type": (lambda x: attention(x, x, x, causal=True, offset=x), DTypeError, r"offset.*f32\[4,5,3\]"),
    "block": (lambda x: attention(x, x, x, block_size=0), ShapeError, "at least 1, or None, found 0"),
}  # fmt: skip


@pytest.mark.parametrize(("function", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(function: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"(?s){message}.*test_attention.py"):
        ag.capture(function, ag.spec((4, 5, 3)))


@pytest.mark.parametrize("offset", [2**31 - 1, -(2**31), 100, -100])
def test_a_far_offset_does_not_overflow(offset: int) -> None:
    """Every key is seen, or none."""
    q = np.arange(4, dtype=np.float32).reshape(1, 4, 1)
    expected = ops.scaled_dot_product_attention(q, q, q, causal=True, offset=4 if offset > 0 else -4)
    for device in devices():
        program = ag.capture(lambda q: ops.scaled_dot_product_attention(q, q, q, causal=True, offset=offset), q)
        np.testing.assert_allclose(run(program, [q], device)[0], expected, rtol=1e-6)
