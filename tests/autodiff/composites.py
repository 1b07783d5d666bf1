"""Functions of the size of a layer or a small model, written once for antegrad and for JAX.

Each takes a library (see `ANTEGRAD` and `JAX`) and f64 arrays, and gives a scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import antegrad as ag
from antegrad import flow, ops

_OWN = ["softmax", "logsumexp", "log_softmax", "one_hot", "norm", "sigmoid", "relu", "rsqrt"]
ANTEGRAD = SimpleNamespace(
    **{name: getattr(ops, name) for name in ops.__dict__ if not name.startswith("_") and name.islower()},
    scan=ag.scan,
    cond=ag.cond,
    switch=flow.switch,
    fori=ag.fori_loop,
    while_loop=ag.while_loop,
    stop=ag.stop_gradient,
)
JAX = SimpleNamespace(
    **{name: getattr(jnp, name) for name in dir(jnp) if not name.startswith("_") and name not in _OWN},
    softmax=jax.nn.softmax,
    log_softmax=jax.nn.log_softmax,
    logsumexp=jax.nn.logsumexp,
    one_hot=lambda i, n, dtype: jax.nn.one_hot(i, n, dtype=jnp.float64),
    norm=jnp.linalg.norm,
    sigmoid=jax.nn.sigmoid,
    relu=jax.nn.relu,
    rsqrt=jax.lax.rsqrt,
    scan=jax.lax.scan,
    cond=jax.lax.cond,
    switch=jax.lax.switch,
    while_loop=jax.lax.while_loop,
    fori=jax.lax.fori_loop,
    stop=jax.lax.stop_gradient,
)

COMPOSITES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {}
"""By name: the function, and the shapes of its arguments."""


def composite(*shapes: tuple[int, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        COMPOSITES[function.__name__] = function, shapes
        return function

    return register


def arguments(name: str, lowest: float = -1.0) -> list[np.ndarray]:
    """Values within [lowest, 1], the same in every run."""
    rng = np.random.default_rng(len(name))
    return [rng.uniform(lowest, 1, shape) for shape in COMPOSITES[name][1]]


@composite((5, 3), (3, 4), (4,), (4, 2), (5, 2))
def mlp(o: Any, x: Any, w: Any, b: Any, v: Any, y: Any) -> Any:
    hidden = o.tanh(x @ w + b)
    error = o.sigmoid(hidden) @ v - y
    return o.mean(error * error)


@composite((4, 6), (6, 5))
def cross_entropy(o: Any, x: Any, w: Any) -> Any:
    labels = o.one_hot(np.array([0, 3, 4, 1]), 5, "f64")
    return -o.mean(o.sum(o.log_softmax(x @ w) * labels, axis=-1))


@composite((4, 6), (6,), (6,))
def layer_norm(o: Any, x: Any, scale: Any, shift: Any) -> Any:
    centred = x - o.mean(x, axis=-1, keepdims=True)
    normal = centred * o.rsqrt(o.mean(centred * centred, axis=-1, keepdims=True) + 1e-3)
    return o.sum(o.sin(normal * scale + shift))


@composite((2, 4, 6), (2, 4, 6), (2, 4, 6))
def attention(o: Any, q: Any, k: Any, v: Any) -> Any:
    q, k, v = (o.transpose(o.reshape(t, (2, 4, 2, 3)), (0, 2, 1, 3)) for t in (q, k, v))
    scores = q @ o.swapaxes(k, -1, -2) * 0.5
    weights = o.softmax(o.where(np.tril(np.ones((4, 4), bool)), scores, -1e30), axis=-1)
    return o.sum(o.sin(o.reshape(o.transpose(weights @ v, (0, 2, 1, 3)), (2, 4, 6))))


@composite((4, 4), (3, 4), (5, 2, 3), (2, 4))
def recurrent(o: Any, w: Any, u: Any, xs: Any, h: Any) -> Any:
    def cell(h: Any, x: Any) -> Any:
        h = o.tanh(h @ w + x @ u)
        return h, h * h

    h, squares = o.scan(cell, h, xs)
    return o.sum(h) + o.mean(squares)


@composite((4, 8), (2, 8), (6, 4))
def lstm(o: Any, w: Any, u: Any, xs: Any) -> Any:
    def cell(state: Any, x: Any) -> Any:
        h, c = state
        gates = x @ w + h @ u
        i, f, g, out = (gates[2 * k : 2 * k + 2] for k in range(4))
        c = o.sigmoid(f) * c + o.sigmoid(i) * o.tanh(g)
        return (o.sigmoid(out) * o.tanh(c), c), c[0]

    (h, c), path = o.scan(cell, (xs[0, :2], xs[0, 2:]), xs)
    return o.sum(h * c) + o.sum(path)


@composite((3, 3), (4, 3))
def backwards_in_time(o: Any, w: Any, xs: Any) -> Any:
    _, ys = o.scan(lambda h, x: (o.tanh(w @ h + x), h), xs[0], xs, reverse=True)
    return o.sum(ys * xs)


@composite((3,), (4, 3), ())
def nested_scan(o: Any, start: Any, xs: Any, rate: Any) -> Any:
    def outer(c: Any, x: Any) -> Any:
        def inner(total: Any, y: Any) -> Any:
            total = o.sin(total * rate + y * c)
            return total, total * x

        total, ys = o.scan(inner, x, o.stack([x, c]))
        return total * c, o.sum(ys)

    c, sums = o.scan(outer, start, xs)
    return o.sum(c) + o.sum(sums * sums)


@composite((6,), (3,), ())
def cond_in_scan(o: Any, xs: Any, w: Any, b: Any) -> Any:
    def step(c: Any, x: Any) -> Any:
        c = o.cond(x > 0, lambda c: o.sin(c * x) + b, lambda c: c * o.sum(w) - x, c)
        return c, c * b

    c, ys = o.scan(step, w, xs)
    return o.sum(c) + o.sum(ys * ys)


@composite((3,), (2,))
def switch_of_three(o: Any, x: Any, y: Any) -> Any:
    branches = [lambda a, b: o.sum(a) * b[0], lambda a, b: o.sum(o.exp(a)), lambda a, b: o.sum(b * b)]
    return sum(o.switch(i, branches, x, y) * (i + 1) for i in range(3))


@composite((3,), (3, 3))
def fixed_iteration(o: Any, x: Any, w: Any) -> Any:
    return o.sum(o.fori(0, 5, lambda i, v: o.tanh(w @ v) + x * i, x) * x)


@composite((2, 3, 4), (4, 3, 2), (3, 5), (2,))
def einsum(o: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    first = o.einsum("ijk,kjl->il", a, b)
    second = o.einsum("ijk,jm,i->km", a, c, d)
    return o.sum(o.sin(first)) + o.sum(o.einsum("km,kn->mn", second, second) ** 2) + o.einsum("ii", first)


@composite((3, 5), (3, 5))
def sorted_values(o: Any, x: Any, weights: Any) -> Any:
    return o.sum(o.sin(o.sort(x, axis=1)) * weights)


@composite((6, 3), (4, 3))
def gather(o: Any, table: Any, weights: Any) -> Any:
    rows = table[np.array([0, 5, 5, 2])]
    picked = o.take_along_axis(rows, np.array([[0], [2], [1], [1]]), axis=1)
    return o.sum(o.sin(rows) * weights) + o.sum(picked * picked)


@composite((5, 2), (4, 2), (2,))
def scatter(o: Any, x: Any, updates: Any, row: Any) -> Any:
    added = x.at[np.array([0, 3, 3, 1])].add(updates)
    changed = added.at[2].set(row).at[:, 1].add(1.0)
    return o.sum(o.sin(changed) * added)


@composite((3, 4), (4,))
def norms(o: Any, x: Any, w: Any) -> Any:
    unit = x / o.norm(x, axis=-1, keepdims=True)
    return o.sum(unit @ w) * o.norm(w) + o.std(x) + o.sum(o.var(x, axis=0))


@composite((3, 4), ())
def log_sum_exp(o: Any, x: Any, temperature: Any) -> Any:
    return o.sum(o.logsumexp(x / (temperature + 2), axis=1) * o.logsumexp(x, axis=(0, 1)))


@composite((2, 3, 2))
def products(o: Any, x: Any) -> Any:
    return o.prod(x) + o.sum(o.sin(o.prod(x, axis=1))) + o.sum(o.prod(x, axis=(0, 2)))


@composite((3, 4), (4,))
def extrema(o: Any, x: Any, w: Any) -> Any:
    spread = o.max(x * w, axis=0) - o.min(x, axis=0)
    return o.sum(spread * spread) + o.sum(o.maximum(x, w) * o.minimum(x, 0.3)) + o.max(x)


@composite((5,), (5,))
def powers(o: Any, x: Any, y: Any) -> Any:
    base = x * x + 0.5
    return o.sum(base**y) + o.sum(o.log(base) * o.log1p(y * y)) + o.sum(o.sqrt(base) / o.exp(y)) + o.sum(x**3)


@composite((4, 3), (3,))
def huber(o: Any, x: Any, y: Any) -> Any:
    error = x - y
    small = o.abs(error) < 0.5
    return o.mean(o.where(small, 0.5 * error * error, 0.5 * (o.abs(error) - 0.25))) + o.sum(o.clip(x, -0.4, 0.4) ** 2)


@composite((2, 9), (3, 2, 3))
def convolution(o: Any, x: Any, kernel: Any) -> Any:
    padded = o.pad(x, ((0, 0), (1, 1)))
    columns = o.stack([padded[:, i : i + 9 : 2] for i in range(3)], axis=-1)
    return o.sum(o.sin(o.einsum("ctk,dck->dt", columns, kernel)))


@composite((2, 3), (3, 1), ())
def broadcasts(o: Any, x: Any, column: Any, scalar: Any) -> Any:
    grown = x[:, :, None] * column.T[None] + scalar * x.T[None, :, :1].reshape((1, 3, 1))
    return o.sum(o.sin(grown)) + o.sum(o.concatenate([x, column.T * scalar], axis=0) ** 2) + o.sum(o.flip(x, 1) * x)


@composite((3,), (3,))
def stopped(o: Any, x: Any, w: Any) -> Any:
    return o.sum(o.stop(o.sin(x) * w) * x * w)


@composite((4,), (4,))
def repeated_use(o: Any, x: Any, y: Any) -> Any:
    shared = o.exp(x) * y
    both = shared + shared * shared
    return o.sum(both / (1 + shared * shared)) + o.sum(x * x * x) + o.sum(x + y) + o.sum(x + x)


def apply(name: str, library: Any) -> Callable[..., Any]:
    """The composite as a function of its arrays alone."""
    function = COMPOSITES[name][0]

    def bound(*xs: Any) -> Any:
        return function(library, *xs)

    bound.__name__ = name
    return bound


def close(found: Any, expected: Any, what: str, relative: float = 1e-10) -> None:
    """Every leaf within `relative` of the largest element of the expected one."""
    pairs = zip(jax.tree_util.tree_leaves(found), jax.tree_util.tree_leaves(expected), strict=True)
    for position, (a, b) in enumerate(pairs):
        b = np.asarray(b)
        assert np.shape(a) == b.shape, f"{what} {position}"
        np.testing.assert_allclose(a, b, rtol=0, atol=relative * max(1, np.max(np.abs(b), initial=0)), err_msg=what)


def weighted(library: Any, trees: Any, weights: Sequence[np.ndarray]) -> Any:
    """The sum of all elements, each with a fixed weight."""
    return sum(library.sum(leaf * w) for leaf, w in zip(jax.tree_util.tree_leaves(trees), weights, strict=True))
