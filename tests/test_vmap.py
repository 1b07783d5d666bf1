"""`vmap` against JAX, primitive by primitive, with control flow, and nested with derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops, random
from antegrad.ir.primitive import REGISTRY

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 4, 3)).astype(np.float32)
W = RNG.normal(size=(5, 3, 2)).astype(np.float32)
S = RNG.normal(size=(3, 3)).astype(np.float32)
I = RNG.integers(-2, 6, size=(5, 2, 2)).astype(np.int32)  # noqa: E741  (indices)
ROWS = RNG.integers(0, 4, size=(5, 2)).astype(np.int32)
U = RNG.normal(size=(5, 2, 3)).astype(np.float32)
B = X > 0


def wrapped(i, n):
    return jnp.clip(jnp.where(i < 0, i + n, i), 0, n - 1)


CASES = {
    "dot of batch and matrix": (lambda x, w: x @ w, lambda x, w: x @ w, (X, W[0]), (0, None)),
    "dot of matrix and batch": (lambda x, w: x @ w, lambda x, w: x @ w, (X[0], W), (None, 0)),
    "dot of two batches": (lambda x, w: x @ w, lambda x, w: x @ w, (X, W), 0),
    "batched dot": (
        lambda x, y: ops.einsum("bij,bkj->bik", x, y), lambda x, y: jnp.einsum("bij,bkj->bik", x, y),
        (X[:, None], X[0, None]), (0, None),
    ),
    "batched dot, batch on the right": (
        lambda x, y: ops.einsum("bij,bkj->bik", x, y), lambda x, y: jnp.einsum("bij,bkj->bik", x, y),
        (X[0, None], X[:, None]), (None, 0),
    ),
    "broadcasting": (lambda x, y: x + y, lambda x, y: x + y, (X, S[0]), (0, None)),
    "where": (lambda c, x: ops.where(c, x, 0), lambda c, x: jnp.where(c, x, 0), (B, X), 0),
    "softmax": (ops.softmax, jax.nn.softmax, (X,), 0),
    "max over all": (ops.max, jnp.max, (X,), 0),
    "argmax": (lambda x: ops.argmax(x, 1), lambda x: jnp.argmax(x, 1), (X,), 0),
    "transpose and reshape": (lambda x: x.T.reshape(2, 6), lambda x: x.T.reshape(2, 6), (X,), 0),
    "slice": (lambda x: x[1:, ::-2], lambda x: x[1:, ::-2], (X,), 0),
    "pad": (lambda x: ops.pad(x, 1), lambda x: jnp.pad(x, 1), (X,), 0),
    "pad with a batched fill": (
        lambda x: ops.pad_p(x, x[0, 0], (1, 0), (0, 2), (0, 1)),
        lambda x: jax.lax.pad(x, x[0, 0], [(1, 0, 0), (0, 2, 1)]), (X,), 0,
    ),
    "concatenate": (
        lambda x, y: ops.concatenate([x, y], 1), lambda x, y: jnp.concatenate([x, y], 1), (X, X[0]), (0, None)
    ),
    "flip": (lambda x: ops.flip(x, 0), lambda x: jnp.flip(x, 0), (X,), 0),
    "cast": (lambda x: x.astype("i32"), lambda x: x.astype(jnp.int32), (4 * X,), 0),
    "take from batch by batch": (lambda x, i: ops.take(x, i, 0), lambda x, i: x[wrapped(i, 4)], (X, I), 0),
    "take along axis 1": (lambda x, i: ops.take(x, i, 1), lambda x, i: x[:, wrapped(i, 3)], (X, I), 0),
    "take from batch": (lambda x, i: ops.take(x, i, 1), lambda x, i: x[:, wrapped(i, 3)], (X, I[0]), (0, None)),
    "take by batch": (
        lambda x, i: ops.take(x, i, 0), lambda x, i: jnp.asarray(x)[wrapped(i, 4)], (X[0], I), (None, 0)
    ),
    "scatter-add": (lambda x, i, u: x.at[i].add(u), lambda x, i, u: x.at[i].add(u), (X, ROWS, U), 0),
    "scatter into one array": (
        lambda x, i, u: x.at[i].add(u) if isinstance(x, ops.Tensor) else ops.IndexUpdate(x)[i].add(u),
        lambda x, i, u: jnp.asarray(x).at[i].add(u), (X[0], ROWS, U), (None, 0, 0),
    ),
    "scatter-max": (lambda x, i, u: x.at[i].max(u), lambda x, i, u: x.at[i].max(u), (X, ROWS, U), 0),
    "cumulative": (
        lambda x: (ops.cumsum(x, 0), ops.cumprod(x, 1, reverse=True), ops.cummax(x, 0)),
        lambda x: (jnp.cumsum(x, 0), jax.lax.cumprod(x, 1, reverse=True), jax.lax.cummax(x, 0)), (X,), 0,
    ),
    "cumlogsumexp": (
        lambda x: ops.cumlogsumexp(x, 1), lambda x: jax.lax.cumlogsumexp(x, 1), (X,), 0
    ),
    "median": (lambda x: ops.median(x, 0), lambda x: jnp.median(x, 0), (X,), 0),
    "segment sum": (
        lambda u, i: ops.segment_sum(u, i, 3), lambda u, i: jax.ops.segment_sum(u, i, 3), (U, ROWS), 0
    ),
    "sort": (lambda x: ops.sort(x, 0), lambda x: jnp.sort(x, 0), (X,), 0),
    "dynamic slice at one place": (
        lambda x: ops.dynamic_slice(x, (1, 0), (2, 2)), lambda x: jax.lax.dynamic_slice(x, (1, 0), (2, 2)), (X,), 0
    ),
    "dynamic slice at its own place": (
        lambda x, i: ops.dynamic_slice(x, (i[0], i[1]), (2, 2)),
        lambda x, i: jax.lax.dynamic_slice(x, (i[0], i[1]), (2, 2)), (X, ROWS), 0,
    ),
    "dynamic update": (
        lambda x, u: ops.dynamic_update_slice(x, u, (1, 0)),
        lambda x, u: jax.lax.dynamic_update_slice(x, u, (1, 0)), (X, U), 0,
    ),
    "cond with one choice": (
        lambda p, x: ag.cond(p > 0, ops.sin, lambda x: x * 2, x),
        lambda p, x: jax.lax.cond(p > 0, jnp.sin, lambda x: x * 2, x), (np.float32(1), X), (None, 0),
    ),
    "cond with its own choice": (
        lambda i, x: ag.cond(i[0] > 1, ops.sin, lambda x: x * 2, x),
        lambda i, x: jax.lax.cond(i[0] > 1, jnp.sin, lambda x: x * 2, x), (ROWS, X), 0,
    ),
    "switch": (
        lambda i, x: ag.switch(i[0], [ops.sin, ops.cos, ops.tanh], x),
        lambda i, x: jax.lax.switch(i[0], [jnp.sin, jnp.cos, jnp.tanh], x), (ROWS, X), 0,
    ),
    "scan": (
        lambda h, x: ag.scan(lambda h, x: (ops.tanh(h @ S + x), ops.sum(x)), h, x),
        lambda h, x: jax.lax.scan(lambda h, x: (jnp.tanh(h @ S + x), jnp.sum(x)), h, x), (X[:, 0], X), 0,
    ),
    "scan whose carry becomes batched": (
        lambda h, x: ag.scan(lambda h, x: (ops.tanh(h @ S + x), ops.sum(x)), h, x, reverse=True),
        lambda h, x: jax.lax.scan(lambda h, x: (jnp.tanh(h @ S + x), jnp.sum(x)), h, x, reverse=True),
        (X[0, 0], X), (None, 0),
    ),
    "while, each for its own time": (
        lambda a: ag.while_loop(lambda c: c < 10, lambda c: c * 2, a),
        lambda a: jax.lax.while_loop(lambda c: c < 10, lambda c: c * 2, a), (np.float32([1, 3, 20]),), 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("device", ["host", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_against_jax(name, device):
    ours, theirs, args, axes = CASES[name]
    expected = jax.tree_util.tree_leaves(jax.vmap(theirs, axes)(*args))
    program = ag.capture(ag.vmap(ours, axes), *args)
    found = jax.tree_util.tree_leaves(program.run(*args, device=device))
    at_once = jax.tree_util.tree_leaves(ag.vmap(ours, axes)(*args))
    for a, b, c in zip(found, expected, at_once, strict=True):
        assert a.shape == b.shape == c.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(c, b, rtol=1e-5, atol=1e-6)


def test_per_example_gradients():
    def loss(w, x):
        return ops.sum(ops.tanh(x @ w))

    found = ag.vmap(ag.grad(loss), in_axes=(None, 0))(W[0], X)
    assert found.shape == (5, 3, 2)
    for example, gradient in zip(X, found, strict=True):
        np.testing.assert_allclose(gradient, ag.grad(loss)(W[0], example), rtol=1e-5, atol=1e-6)
    total = ag.grad(lambda w: ops.sum(ag.vmap(lambda x: loss(w, x))(X)))(W[0])
    np.testing.assert_allclose(np.sum(found, 0), total, rtol=1e-5, atol=1e-5)


def test_nested_and_other_axes():
    found = ag.vmap(ag.vmap(lambda x, y: x * y, in_axes=(0, None)), in_axes=(2, 0), out_axes=1)(X, S[0])
    expected = jax.vmap(jax.vmap(lambda x, y: x * y, in_axes=(0, None)), in_axes=(2, 0), out_axes=1)(X, S[0])
    np.testing.assert_array_equal(found, expected)


def test_keys_are_a_batch_like_any_other():
    keys = random.split(random.key(0), 4)
    found = ag.vmap(lambda key: random.uniform(key, (3,)))(keys)
    np.testing.assert_array_equal(found, np.stack([random.uniform(key, (3,)) for key in keys]))


def test_custom_derivatives_survive():
    @ag.custom_vjp
    def doubled(x):
        return x * x

    doubled.defvjp(lambda x: (x * x, x), lambda x, d: (d * 100,))
    np.testing.assert_array_equal(ag.vmap(ag.grad(lambda x: doubled(x)))(np.float32([1, 2])), [100, 100])
    total = ag.grad(lambda x: ops.sum(ag.vmap(doubled)(x)))(np.float32([1, 2]))
    np.testing.assert_array_equal(total, [100, 100])


def test_misfits_are_named():
    with pytest.raises(ag.ShapeError, match=r"5 \(argument 0\), 3 \(argument 1\)"):
        ag.vmap(lambda x, y: x)(X, S)
    with pytest.raises(ag.ShapeError, match="2 entries, the call 1 arguments"):
        ag.vmap(lambda x: x, in_axes=(0, 0))(X)
    with pytest.raises(ag.ShapeError, match="none"):
        ag.vmap(lambda x: x, in_axes=None)(X)


def test_which_primitives_have_no_rule_of_their_own():
    """They are looped over the batch. The list is kept, so that a new primitive is a decision."""
    base = {name for name, primitive in REGISTRY.items() if "batch" not in _defining(primitive)}
    assert base <= {"axis_index", "call", "cond", "constant", "iota", "scan", "while", "while_transpose"}, base


def _defining(primitive) -> set[str]:
    own = set()
    for cls in type(primitive).__mro__:
        if cls.__name__ == "Primitive":
            break
        own |= set(cls.__dict__)
    return own
