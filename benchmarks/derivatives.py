"""What derivatives cost: a scan of 1,000 steps against its forward pass, and whole derivatives of an MLP against JAX's.

    python benchmarks/derivatives.py

Prints the time of a gradient of a recurrent network over 10 and 1,000 steps relative to its forward pass, with the time
to compile each; then the time to capture and compile, and the largest difference to JAX, of Jacobians, Hessians and
per-example gradients of an MLP with 484 parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from timing import interleaved

import antegrad as ag
from antegrad import ops

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def recurrent(w: Any, state: Any, xs: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        state = ops.tanh(state @ w + x)
        return state, ops.sum(state)

    return ops.sum(ag.scan(step, state, xs)[1])


def scan(width: int, batch: int) -> None:
    w, state = normal(width, width) / np.float32(width**0.5), normal(batch, width)
    for length in (10, 1000):
        arrays = [jax.device_put(a) for a in (w, state, normal(length, batch, width))]
        program = ag.capture(recurrent, *map(np.asarray, arrays))
        compiled, seconds = [], []
        for transform in (ag.simplify, ag.reverse):
            started = time.perf_counter()
            compiled.append(ag.compile(transform(program), device="cpu"))
            seconds.append(time.perf_counter() - started)
        names = zip(("forward", "gradient"), compiled, strict=True)
        runs = {name: lambda f=f, a=arrays: jax.block_until_ready(f(*a)) for name, f in names}
        forward, gradient = (np.median(times) for times in interleaved(runs, 15).values())
        print(
            f"scan of {length:>4} steps, {batch} x {width}: forward {forward * 1e3:.2f} ms, gradient "
            f"{gradient / forward:.2f} x; compiled in {seconds[0]:.2f} and {seconds[1]:.2f} s"
        )


def mlp(library: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(parameters: Any, x: Any) -> Any:
        for index, (w, b) in enumerate(parameters):
            x = x @ w + b
            x = library.tanh(x) if index < len(parameters) - 1 else x
        return x

    return forward, lambda parameters, x, y: library.mean((forward(parameters, x) - y) ** 2)


def whole_derivatives() -> None:
    sizes = (8, 16, 16, 4)
    parameters = [(normal(a, b) / np.float32(a**0.5), normal(b)) for a, b in pairwise(sizes)]
    x, y, batch, targets = normal(8), normal(4), normal(32, 8), normal(32, 4)
    (ours, our_loss), (theirs, their_loss) = mlp(ops), mlp(jnp)
    cases = {
        "jacobian, reverse": (ag.jacobian(ours, 1), jax.jacrev(theirs, 1), (parameters, x)),
        "jacobian, forward": (ag.jacobian(ours, 1, mode="forward"), jax.jacfwd(theirs, 1), (parameters, x)),
        "jacobian by parameters": (ag.jacobian(ours), jax.jacrev(theirs), (parameters, x)),
        "hessian by input": (ag.hessian(our_loss, 1), jax.hessian(their_loss, 1), (parameters, x, y)),
        "hessian by parameters": (ag.hessian(our_loss), jax.hessian(their_loss), (parameters, x, y)),
        "vmap of grad": (
            ag.vmap(ag.grad(our_loss), (None, 0, 0)), jax.vmap(jax.grad(their_loss), (None, 0, 0)),
            (parameters, batch, targets),
        ),
    }  # fmt: skip
    for name, (own, other, arguments) in cases.items():
        times, results = {"antegrad": [], "jax": []}, {}
        for _ in range(3):  # a new function each time, so that nothing is found in a cache
            fresh = {
                "antegrad": ag.compile(lambda *a, own=own: own(*a), device="cpu"),
                "jax": jax.jit(lambda *a, other=other: other(*a)),
            }
            for library, function in fresh.items():
                started = time.perf_counter()
                results[library] = jax.block_until_ready(jax.tree_util.tree_leaves(function(*arguments)))
                times[library].append(time.perf_counter() - started)
        pairs = zip(results["antegrad"], results["jax"], strict=True)
        error = max(float(np.max(np.abs(np.asarray(a) - b)) / max(1, np.max(np.abs(b)))) for a, b in pairs)
        first, second = (float(np.median(times[library])) for library in ("antegrad", "jax"))
        print(f"{name:<24} off by {error:.1e}; first call {first:.2f} s, {first / second:.2f} x JAX")


if __name__ == "__main__":
    for width, batch in ((16, 8), (64, 32), (128, 64)):
        scan(width, batch)
    whole_derivatives()
