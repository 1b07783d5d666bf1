"""Programs that between them print everything: each with inputs to run it on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import antegrad as ag
from antegrad import flow, nn, ops
from antegrad.ir.program import Program
from antegrad.ops.dispatch import layer
from tests.support import array


def dense(path: str, x: Any, w: Any, b: Any) -> Any:
    with layer(path):
        return x @ w + b


def rectified(path: str, x: Any) -> Any:
    with layer(path):
        return ops.relu(x)


def disc(x: Any, y: Any, p: Any) -> Any:
    h0 = rectified("1", dense("0", x, p["0.w"], p["0.b"]))
    h1 = rectified("3", dense("2", h0, p["2.w"], p["2.b"]))
    prediction = dense("4", h1, p["4.w"], p["4.b"])
    residual = prediction - y
    loss = ops.mean(residual * residual)
    return loss


DISC_TYPES = [
    ag.spec((512, 2)),
    ag.spec((512, 1)),
    {
        "0.w": ag.spec((2, 16)),
        "0.b": ag.spec((16,)),
        "2.w": ag.spec((16, 16)),
        "2.b": ag.spec((16,)),
        "4.w": ag.spec((16, 1)),
        "4.b": ag.spec((1,)),
    },
]
NAMES = ["0.w", "0.b", "2.w", "2.b", "4.w", "4.b"]


def attention(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (t.reshape((2, 5, 3, 4)).transpose(0, 2, 1, 3) for t in (q, k, v))
    weights = ops.softmax(ops.where(np.tril(np.ones((5, 5), bool)), q @ k.mT * 0.5, -np.inf))
    return ops.mean(ops.sin(weights @ v))


def recurrent(w: Any, xs: Any, h: Any) -> Any:
    def cell(h: Any, x: Any) -> Any:
        h = ops.tanh(h @ w + x)
        return h, h * h

    final, squares = ag.scan(cell, h, xs)
    return ops.mean(squares) + final.sum()


def branches(x: Any, n: Any) -> Any:
    limit = ag.while_loop(lambda v: v < 100, lambda v: v * 2 + 1, n)
    chosen = flow.switch(n % 3, [lambda x: ops.sin(x), lambda x: x * 2, lambda x: ops.exp(x)], x)
    return (
        ag.cond(x.sum() > 0, lambda t: t * 2, lambda t: t + x, chosen),
        limit,
        ag.scan(lambda c, _: (c + 1, None), n, length=3)[0],
    )


def moved(x: Any, i: Any) -> Any:
    padded = ops.pad(x, ((1, 0), (0, 2)), value=0.5)
    taken = ops.take(padded, i, axis=1)
    changed = padded.at[np.array([0, 2, 0])].add(1.0).at[1].set(2.0)
    block = ops.dynamic_slice(x, (i[0], i[1]), (2, 2))
    order = ops.argsort(x, axis=1)
    return (
        taken,
        changed,
        ops.dynamic_update_slice(x, block * 2, (i[1], 0)),
        ops.sort(x, axis=0) * 2,
        ops.flip(x, 0),
        order,
        x[::-1, 1:],
    )


def integers(a: Any, b: Any, flags: Any) -> Any:
    parts = (a + b * 3, a // b, a % b, a << 2, (a ^ b) & ~a | b >> 1, ops.where(flags, a, -b), a > b)
    return (
        *parts,
        a.sum(),
        a.prod(axis=0),
        ops.arange(5) * a,
        ops.one_hot(b, 4),
        a.astype("f32") / 3,
        a.astype("u8"),
        flags.any(),
    )


def contractions(x: Any, y: Any) -> Any:
    sums = ops.tensordot(x, y, axes=((2, 0), (2, 0))), ops.einsum("ijk,ilk->jl", x, y), ops.einsum("ijk,ilk->ij", x, y)
    return *sums, ops.outer(x[0, 0], y[0, 0]), x @ y.mT, x[0] @ y[0].T, x @ y[0, 0], x[0, 0] @ y[0].T


def numbers(x: Any) -> Any:
    zeros = ops.zeros((3, 4))
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    halves = ops.full((3, 4), 0.5)
    parts = (
        x**2.0,
        x**0.5,
        x**-1.0,
        abs(x) ** 1.5,
        2.0**x,
        x**3,
        zeros + x * table,
        halves,
        ops.concatenate([halves, x]),
    )
    return (
        *parts,
        ops.iota((3, 4), np.dtype(np.float32), 1) * x,
        ops.eye(3, 4) - x,
        x.astype("f64").mean(),
        ops.stop_gradient(x - 1) * x,
    )


def functions(x: Any) -> Any:
    y = ops.sigmoid(x) + ops.erf(x) * ops.rsqrt(x * x + 1)
    return (
        ops.logsumexp(y, axis=1),
        ops.norm(y, axis=0),
        ops.gelu(x),
        ops.prod(x, axis=1),
        ops.argmax(x, axis=1),
        ops.mul_no_nan(x, 1 / x),
    )


def mlp(model: Any, x: Any) -> Any:
    return ops.mean(ops.square(model(x)))


def model(dtype: str) -> nn.Sequential:
    keys = ag.random.split(ag.random.key(3), 2)
    return nn.Sequential(nn.Dense(3, 8, key=keys[0], dtype=dtype), ops.tanh, nn.Dense(8, 2, key=keys[1], dtype=dtype))


def with_table(x: Any) -> Any:
    return x @ TABLE + SMALL


TABLE = np.linspace(-1, 1, 120).reshape(4, 30).astype(np.float32)
SMALL = np.linspace(-1, 1, 30).astype(np.float32)

PROGRAMS: dict[str, Callable[[], Program]] = {
    "disc": lambda: ag.reverse(ag.capture(disc, *DISC_TYPES), NAMES),
    "attention": lambda: ag.reverse(ag.capture(attention, *[ag.spec((2, 5, 12))] * 3)),
    "recurrent": lambda: ag.reverse(ag.capture(recurrent, ag.spec((3, 3)), ag.spec((5, 2, 3)), ag.spec((2, 3)))),
    "branches": lambda: ag.capture(branches, ag.spec((4,)), ag.spec((), "i32")),
    "moved": lambda: ag.capture(moved, ag.spec((3, 4)), ag.spec((2,), "i32")),
    "integers": lambda: ag.capture(integers, ag.spec((5,), "i32"), ag.spec((5,), "i32"), ag.spec((5,), "bool")),
    "contractions": lambda: ag.capture(contractions, ag.spec((3, 4, 5)), ag.spec((3, 2, 5))),
    "numbers": lambda: ag.capture(numbers, ag.spec((3, 4))),
    "functions": lambda: ag.capture(functions, ag.spec((3, 4))),
    "functions_f64": lambda: ag.capture(functions, ag.spec((3, 4), "f64")),
    "functions_f16": lambda: ag.capture(functions, ag.spec((3, 4), "f16")),
    "functions_bf16": lambda: ag.capture(functions, ag.spec((3, 4), "bf16")),
    "model": lambda: ag.reverse(ag.capture(mlp, model("f32"), ag.spec((4, 3)))),
    "model_bf16": lambda: ag.reverse(ag.capture(mlp, model("bf16"), ag.spec((4, 3), "bf16"))),
    "captured": lambda: ag.capture(with_table, ag.spec((2, 4))),
    "nothing": lambda: ag.capture(lambda x: None, ag.spec((2,))),
    "empty": lambda: ag.capture(lambda x: (x * 2, x.sum(), ops.concatenate([x, x])), ag.spec((0, 3))),
}


@cache
def program(name: str) -> Program:
    return PROGRAMS[name]()


def inputs(name: str) -> list[np.ndarray]:
    """Random values for the inputs that a caller supplies, the same in every run."""
    types = program(name).input_types[: program(name).argument_count]
    bounds = ":1:9" if name in ("integers", "branches") else ""
    return [array(f"{type}{bounds if type.dtype.kind == 'i' else ''}", f"{name} {i}") for i, type in enumerate(types)]
