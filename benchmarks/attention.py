"""Attention in blocks at 8,192 positions: memory and time of a gradient; and the plain form against JAX's.

    python benchmarks/attention.py [--length 8192] [--block 128] [--causal]

Prints, on XLA for the CPU: what the gradient of query, key and value takes by XLA's account and by the growth of the
process's peak memory; the largest difference to the plain form at length 512; and interleaved medians of the plain
form and of `jax.nn.dot_product_attention`. Exits with 1 where the memory is 1 GB or more, or the difference above 8
epsilons.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from timing import interleaved, report

import antegrad as ag
from antegrad import ops

HEADS, WIDTH = 8, 64
LIMIT = 1e9
EPSILONS = 8


def arrays(*shape: int) -> list[jax.Array]:
    """Query, key and value."""
    rng = np.random.default_rng(0)
    return [jax.device_put(rng.normal(size=shape).astype(np.float32)) for _ in range(3)]


def loss(**params: Any) -> Callable[..., Any]:
    """A scalar whose gradient reaches every element of the output, each in its own way."""
    return lambda *operands: ops.mean(ops.square(ops.scaled_dot_product_attention(*operands, **params)))


def gradient(operands: list[jax.Array], **params: Any) -> ag.Compiled:
    return ag.compile(ag.reverse(ag.capture(loss(**params), *operands)), device="cpu")


def peak_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def long_sequence(length: int, block: int, causal: bool) -> bool:
    """Print the memory and the time of one gradient; whether both accounts stay below the limit."""
    small = arrays(1, 1, 4, WIDTH)
    jax.block_until_ready(gradient(small, block_size=2)(*small))  # so that what starting costs is not counted
    before = peak_bytes()
    operands = arrays(1, HEADS, length, WIDTH)
    compiled = gradient(operands, block_size=block, causal=causal)
    memory = compiled.memory()
    account = {
        "arguments": memory.argument_size_in_bytes,
        "results": memory.output_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
    }
    started = time.perf_counter()
    jax.block_until_ready(compiled(*operands))
    seconds, growth, total = time.perf_counter() - started, peak_bytes() - before, sum(account.values())
    print(f"gradient at {length} positions, {HEADS} heads of {WIDTH}, f32, blocks of {block}, causal={causal}")
    print("  " + ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in account.items()), f"= {total / 1e6:.1f} MB")
    print(f"  peak memory of the process grew by {growth / 1e6:.1f} MB, compilation included; {seconds:.1f} s")
    return max(total, growth) < LIMIT


def agreement(block: int, causal: bool) -> bool:
    """Print how far blocks and plain form are apart at length 512; whether that is within `EPSILONS`."""
    operands = arrays(1, HEADS, 512, WIDTH)
    worst = 0.0
    for make in (_output, gradient):
        plain, blocks = (make(operands, causal=causal, block_size=size)(*operands) for size in (None, block))
        for found, expected in zip(jax.tree.leaves(blocks), jax.tree.leaves(plain), strict=True):
            worst = max(worst, float(jnp.max(jnp.abs(found - expected)) / jnp.max(jnp.abs(expected))))
    worst /= float(np.finfo(np.float32).eps)
    print(f"at 512 positions output and gradients differ by at most {worst:.2f} epsilons of the largest element")
    return worst <= EPSILONS


def _output(operands: list[jax.Array], **params: Any) -> ag.Compiled:
    function = lambda *xs: ops.scaled_dot_product_attention(*xs, **params)  # noqa: E731
    return ag.compile(ag.capture(function, *operands), device="cpu")


def against_jax(*shape: int) -> None:
    """Print medians of the plain form and of JAX's function, which has the heads behind the length."""
    operands = arrays(*shape)
    moved = [jnp.swapaxes(x, 1, 2) for x in operands]
    theirs = jax.jit(jax.nn.dot_product_attention)
    their_loss = lambda *xs: jnp.mean(jax.nn.dot_product_attention(*xs) ** 2)  # noqa: E731
    their_gradient = jax.jit(jax.value_and_grad(their_loss, (0, 1, 2)))
    for what, ours, other in (
        ("output", _output(operands), theirs),
        ("gradient", gradient(operands), their_gradient),
    ):
        print(f"{what}, (batch, heads, length, width) = {shape}")
        report(
            interleaved({
                "antegrad": lambda ours=ours: jax.block_until_ready(ours(*operands)),
                "jax.nn": lambda other=other: jax.block_until_ready(other(*moved)),
            }),
            "jax.nn",
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--causal", action="store_true")
    settings = parser.parse_args()
    good = long_sequence(settings.length, settings.block, settings.causal)
    good &= agreement(settings.block, settings.causal)
    against_jax(4, 4, 128, 32)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
