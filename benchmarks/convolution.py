"""A convolution of a CIFAR network, 128x32x32x32 by 3x3x32x64, against `jax.jit`: forward and both gradients.

    python benchmarks/convolution.py [rounds]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from timing import interleaved, report

import antegrad as ag
from antegrad import ops


def compiled(function: Callable[..., Any], arrays: Sequence[Any]) -> Callable[[], Any]:
    """A call of `function` as a compiled Program of antegrad."""
    executable = ag.compile(ag.capture(function, *arrays), device="cpu")
    return lambda: jax.block_until_ready(executable(*arrays))


def jitted(function: Callable[..., Any], arrays: Sequence[Any]) -> Callable[[], Any]:
    """A call of `function` as JAX compiles it by default."""
    executable = jax.jit(function)
    return lambda: jax.block_until_ready(executable(*arrays))


def conv_by_jax(x: Any, w: Any) -> Any:
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def candidates() -> dict[str, dict[str, Callable[[], Any]]]:
    """For each part the two programs."""
    rng = np.random.default_rng(0)
    x, w, dy = (
        jax.device_put(rng.normal(size=shape).astype(np.float32))
        for shape in ((128, 32, 32, 32), (3, 3, 32, 64), (128, 32, 32, 64))
    )

    def conv(x: Any, w: Any) -> Any:
        return ops.conv(x, w, padding="SAME")

    def gradients(of: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def ours(x: Any, w: Any, dy: Any) -> Any:
            return ag.vjp(conv, x, w)[1](dy)[of]

        def theirs(x: Any, w: Any, dy: Any) -> Any:
            return jax.vjp(conv_by_jax, x, w)[1](dy)[of]

        return ours, theirs

    parts = {"forward": (conv, conv_by_jax, (x, w))}
    parts |= {f"by {name}": (*gradients(of), (x, w, dy)) for of, name in enumerate(("x", "w"))}
    return {
        part: {"jax.jit": jitted(theirs, arrays), "antegrad": compiled(ours, arrays)}
        for part, (ours, theirs, arrays) in parts.items()
    }


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    for part, programs in candidates().items():
        print(part)
        report(interleaved(programs, rounds), "jax.jit")
