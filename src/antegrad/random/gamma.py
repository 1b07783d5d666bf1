"""Gamma and chi-square draws, by rejection: each sample loops until its proposal is accepted."""

from __future__ import annotations

from typing import Any

import numpy as np

from antegrad import flow, ops
from antegrad.ir.types import DTypeLike
from antegrad.random.distributions import exponential, normal
from antegrad.random.draws import checked_bound, checked_float, uniform
from antegrad.random.keys import Shape, checked_key, checked_shape, split
from antegrad.vmap import vmap


def loggamma(key: Any, a: Any, shape: Shape | None = None, dtype: DTypeLike = "f32") -> Any:
    """The logarithm of a gamma draw with shape parameter `a` > 0 and scale 1: finite also where the draw would be 0.

    `a` is a number or an array; it broadcasts to `shape`, which by default is its own. What an `a` that is not
    positive gives is not defined. The draws are those of `jax.random.loggamma`, of which the last bits can differ,
    as for `exponential`. They have no reverse mode, because of the loop.
    Source: Marsaglia and Tsang, "A simple method for generating gamma variables" (2000).
    """
    return _log_gamma("loggamma", key, a, shape, dtype)


def gamma(key: Any, a: Any, shape: Shape | None = None, dtype: DTypeLike = "f32") -> Any:
    """Draws of density ``x**(a - 1) * exp(-x) / Gamma(a)``; see `loggamma`."""
    return ops.exp(_log_gamma("gamma", key, a, shape, dtype))


def chisquare(key: Any, df: Any, shape: Shape | None = None, dtype: DTypeLike = "f32") -> Any:
    """Sums of `df` squares of standard normal numbers: ``2 * gamma(df / 2)``, for any `df` > 0; see `loggamma`.

    As `jax.random.chisquare`.
    """
    dtype = checked_float("chisquare", dtype)
    half = ops.multiply(ops.convert(np.asarray(df), dtype), 0.5)
    return ops.multiply(ops.exp(_log_gamma("chisquare", key, half, shape, dtype)), 2.0)


def _log_gamma(operation: str, key: Any, a: Any, shape: Shape | None, dtype: DTypeLike) -> Any:
    key, dtype = checked_key(operation, key), checked_float(operation, dtype)
    sizes = checked_shape(operation, np.shape(a) if shape is None else shape)
    a = checked_bound(operation, "a", a, sizes, dtype)
    alphas = ops.ravel(ops.broadcast_to(ops.convert(a, dtype), sizes))
    if alphas.size == 0:
        return ops.zeros(sizes, dtype)
    return ops.reshape(vmap(_one)(split(key, alphas.size), alphas), sizes)


def _one(key: Any, alpha: Any) -> Any:
    """One draw. Below 1 it is one of ``alpha + 1``, times a uniform number to the power of ``1 / alpha``."""
    dtype, small = alpha.dtype, alpha < 1
    boosted = ops.where(small, alpha + 1, alpha)
    d = boosted - 1 / 3
    c = 1 / 3 / ops.sqrt(d)
    key, subkey = split(key)

    def rejected(state: Any) -> Any:
        _, square, cube, u = state
        bound = square * 0.5 + d * ((1 - cube) + ops.log(cube))
        return ops.logical_and(u >= 1 - square * square * 0.0331, ops.log(u) >= bound)

    def proposal(state: Any) -> Any:
        following, of_x, of_u = split(state[0], 3)
        x, v = _positive(of_x, c)
        return following, x * x, v * v * v, uniform(of_u, (), dtype)

    start = key, ops.zeros((), dtype), ops.ones((), dtype), ops.full((), 2, dtype)
    _, _, cube, _ = flow.while_loop(rejected, proposal, start)
    drawn = -exponential(subkey, (), dtype)
    boost = ops.where(ops.logical_and(small, drawn != 0), drawn * (1 / alpha), 0)
    return ops.log(d) + ops.log(cube) + boost


def _positive(key: Any, c: Any) -> tuple[Any, Any]:
    """The first normal number x for which ``v = 1 + c * x`` is positive, and v."""

    def again(state: Any) -> Any:
        key, subkey = split(state[0])
        x = normal(subkey, (), c.dtype)
        return key, x, 1 + x * c

    start = key, ops.zeros((), c.dtype), ops.full((), -1, c.dtype)
    _, x, v = flow.while_loop(lambda state: state[2] <= 0, again, start)
    return x, v
