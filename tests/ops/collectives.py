"""The table of collectives: each with its plain NumPy formula, which knows what every rank has.

Run as a script, with the name of a file, it computes the table on four devices of XLA and writes what came out there.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

import antegrad as ag
from antegrad import ops, tree
from antegrad.ir.program import Program
from antegrad.ir.types import is_float
from antegrad.ops.communication import (
    all_gather,
    all_reduce,
    all_to_all,
    axis_index,
    collective_permute,
    reduce_scatter,
)
from antegrad.ops.ranks import Ranks, as_groups
from antegrad.runtime.lockstep import run_ranks
from tests.support import array

Formula = Callable[[list[np.ndarray], int], np.ndarray]
"""The result at a place of a group, for what the ranks of the group have."""

GROUPS: list[Ranks] = [1, 2, 3, 4, ((0, 2), (1, 3)), ((1, 0), (3, 2)), ((2, 0, 1),)]
ON_FOUR: list[Ranks] = [4, ((0, 2), (1, 3)), ((3, 2), (0, 1)), ((3, 1, 0, 2),)]
FLOATS = ("f64", "f32", "bf16", "f16")
NUMBERS = (*FLOATS, "i32", "u8")


@dataclass(frozen=True)
class Form:
    """A collective as a function of x and ranks.

    `moves`: it computes nothing, so that the signs of zeros stay too. XLA starts its sums from 0, and -0 gets lost.
    """

    name: str
    function: Callable[[Any, Any], Any]
    formula: Formula
    dtypes: tuple[str, ...] = NUMBERS
    moves: bool = True

    def expected(self, xs: Sequence[np.ndarray], ranks: Ranks) -> list[np.ndarray]:
        """The result of every rank."""
        found = {}
        with np.errstate(all="ignore"):
            for group in as_groups(ranks):
                parts = [xs[rank] for rank in group]
                found.update({rank: np.asarray(self.formula(parts, i)) for i, rank in enumerate(group)})
        return [found[rank] for rank in range(len(xs))]

    def of(self, ranks: Ranks) -> Callable[[Any], Any]:
        return lambda x: self.function(x, ranks)


def wide_total(parts: list[np.ndarray]) -> np.ndarray:
    """The sum in order, of 16-bit floats in f32."""
    dtype = parts[0].dtype
    wide = np.dtype(np.float32) if is_float(dtype) and dtype.itemsize == 2 else dtype
    return reduce(np.add, [part.astype(wide) for part in parts])


def total(parts: list[np.ndarray]) -> np.ndarray:
    return wide_total(parts).astype(parts[0].dtype)


def mean(parts: list[np.ndarray], place: int) -> np.ndarray:
    """Rounded once, after the division."""
    whole = wide_total(parts)
    return (whole / whole.dtype.type(len(parts))).astype(parts[0].dtype)


def extremum(function: Callable[..., Any]) -> Formula:
    def formula(parts: list[np.ndarray], place: int) -> np.ndarray:
        stacked = np.stack(parts)
        wide = stacked.astype(np.float64) if is_float(stacked.dtype) else stacked
        return function(wide, axis=0).astype(stacked.dtype)

    return formula


def exchanged(split: int, concat: int) -> Formula:
    def formula(parts: list[np.ndarray], place: int) -> np.ndarray:
        return np.concatenate([np.split(part, len(parts), split)[place] for part in parts], concat)

    return formula


def ring(count: int) -> list[tuple[int, int]]:
    """To the next rank, but for the last one, which sends nothing: rank 0 gets zeros."""
    return [(rank, rank + 1) for rank in range(count - 1)]


def permuted(x: Any, ranks: Any) -> Any:
    return collective_permute(x, ranks, ring(ranks))


FORMS = [
    Form("sum", all_reduce, lambda parts, place: total(parts), moves=False),
    Form("mean", lambda x, ranks: all_reduce(x, ranks, "mean"), mean, FLOATS, moves=False),
    Form("max", lambda x, ranks: all_reduce(x, ranks, "max"), extremum(np.max), moves=False),
    Form("min", lambda x, ranks: all_reduce(x, ranks, "min"), extremum(np.min), moves=False),
    *(
        Form(
            f"scatter along {axis}",
            lambda x, ranks, axis=axis: reduce_scatter(x, ranks, axis),
            lambda parts, place, axis=axis: np.split(total(parts), len(parts), axis)[place],
            moves=False,
        )
        for axis in (0, 1, -1)
    ),
    *(
        Form(
            f"gather along {axis}",
            lambda x, ranks, axis=axis: all_gather(x, ranks, axis),
            lambda parts, place, axis=axis: np.concatenate(parts, axis),
            (*NUMBERS, "bool"),
        )
        for axis in (0, 1, -1)
    ),
    *(
        Form(
            f"all to all from {split} to {concat}",
            lambda x, ranks, split=split, concat=concat: all_to_all(x, ranks, split, concat),
            exchanged(split, concat),
            (*NUMBERS, "bool"),
        )
        for split, concat in ((0, 1), (1, 0), (1, 2), (2, 2))
    ),
    Form("index", lambda x, ranks: axis_index(ranks), lambda parts, place: np.array(place, np.int32), ("f32",)),
]
PERMUTE = Form(
    "permute",
    permuted,
    lambda parts, place: parts[place - 1] if place else np.zeros_like(parts[0]),
    (*NUMBERS, "bool"),
)
"""It is for one group alone."""


def table(groups: Sequence[Ranks]) -> list[tuple[Form, Ranks]]:
    """Every form with all ranks that it takes."""
    numbers = [ranks for ranks in groups if isinstance(ranks, int)]
    return [*((form, ranks) for form in FORMS for ranks in groups), *((PERMUTE, ranks) for ranks in numbers)]


def rank_count(ranks: Ranks) -> int:
    return sum(map(len, as_groups(ranks)))


def operands(dtype: str, count: int, shape: str = "12,12,12") -> list[np.ndarray]:
    """An array for each rank, floats with infinities, NaN, zeros of both signs and ties among them."""
    xs = [array(f"{dtype}[{shape}]", f"rank {rank}") for rank in range(count)]
    if dtype in FLOATS and xs[0].size > 10:
        for rank, x in enumerate(xs):
            flat, later = x.reshape(-1), bool(rank)
            flat[:8] = [np.inf, np.inf, np.nan, 0.0, -0.0, 2.5, flat[6], -1.0]
            flat[1], flat[2] = (-np.inf, 1.0) if later else (np.inf, np.nan)
            flat[3], flat[7] = (-0.0, np.nan) if later else (0.0, -1.0)
    return xs


def captured(form: Form, ranks: Ranks, x: np.ndarray) -> Program:
    return ag.capture(form.of(ranks), x, name="smoke")


def same(found: np.ndarray, expected: np.ndarray, signs: bool) -> bool:
    """Equal types, shapes and bits; NaN equals NaN."""
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return False
    if not is_float(found.dtype):
        return bool(np.all(found == expected))
    nan = (found != found) & (expected != expected)
    agree = (found == expected) & (not signs or np.signbit(found) == np.signbit(expected))
    return bool(np.all(nan | agree))


def looped(x: Any, ranks: Ranks) -> Any:
    """Collectives in a scan, a while loop and a condition that all ranks decide alike, and more than one of a kind."""

    def step(carry: Any, row: Any) -> Any:
        carry = carry + all_reduce(row * carry, ranks)
        return carry, (all_gather(row, ranks), all_reduce(carry, ranks, "max"))

    def halved(state: Any) -> Any:
        return state[0] / 2 + all_reduce(state[0], ranks, "mean") / 8, state[1] + 1

    def large(state: Any) -> Any:
        return all_reduce(ops.sum(abs(state[0])), ranks) > 1

    carry, stacked = ag.scan(step, ops.sin(x[0]), ops.cos(x))
    final, steps = ag.while_loop(large, halved, (carry, ops.zeros((), "i32")))
    flag = all_reduce(ops.sum(x), ranks) > 0
    chosen = ag.cond(flag, lambda v: all_reduce(v, ranks), lambda v: reduce_scatter(all_gather(v, ranks), ranks), carry)
    inner = ag.remat(lambda v: all_reduce(ops.sin(v), ranks))(chosen)
    return carry, stacked, final, steps, chosen, inner, all_reduce(carry, ranks, "min") + all_reduce(carry, ranks)


def looped_gradient(x: Any, ranks: Ranks) -> Any:
    """The gradient of the parts of `looped` that have one in reverse mode."""

    def loss(x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            return carry + all_reduce(row * carry, ranks), all_gather(row, ranks)

        carry, stacked = ag.scan(step, ops.sin(x[0]), ops.cos(x))
        chosen = ag.cond(all_reduce(x[0, 0], ranks) > 0, lambda v: all_reduce(v, ranks), lambda v: v, carry)
        return ops.sum(stacked * stacked) + ops.sum(ag.remat(lambda v: all_reduce(v * v, ranks, "mean"))(chosen))

    return ag.value_and_grad(loss)(x)


class OnDevices:
    """Programs on the four devices of XLA against the host; each difference is a line."""

    def __init__(self) -> None:
        import jax

        from antegrad.runtime.mesh import Mesh

        self.mesh = Mesh(4, "cpu", tuple(jax.devices()))
        self.compared = 0
        self.differences: list[str] = []

    def results(self, function: Callable[..., Any], xs: Sequence[Any]) -> list[tuple[np.ndarray, np.ndarray]]:
        """What the devices and the host give for `xs[rank]`, the operands of a rank; the first axis is the ranks."""
        from antegrad.runtime.mesh import MeshExecutable

        host = run_ranks(ag.capture(function, *xs[0], name="smoke"), xs)
        stacked = [np.stack(column) for column in zip(*xs, strict=True)]

        def of_rank(*blocks: Any) -> tuple[Any, ...]:
            return tuple(y[None] for y in tree.leaves(function(*(block[0] for block in blocks))))

        program = ag.capture(of_rank, *(x[:1] for x in stacked), name="smoke")
        run = MeshExecutable(program, self.mesh, [True] * len(stacked), [True] * len(program.outputs))
        found = [self.mesh.fetch(result) for result in run(*stacked)]
        return [(result, np.stack([own[i] for own in host])) for i, result in enumerate(found)]

    def bits(
        self, names: Sequence[str], signs: Sequence[bool], function: Callable[..., Any], xs: Sequence[Any]
    ) -> None:
        for name, sign, pair in zip(names, signs, self.results(function, xs), strict=True):
            self.note(name, same(*pair, sign), *pair)

    def close(self, name: str, function: Callable[..., Any], xs: Sequence[Any], ulps: int) -> None:
        """Floats within some ulp of f64: XLA may order the sums inside of a rank in another way."""
        for i, pair in enumerate(self.results(function, xs)):
            close = np.allclose(*pair, rtol=ulps * float(np.finfo(np.float64).eps), atol=0)
            self.note(f"{name}, output {i}", close, *pair)

    def note(self, name: str, agree: bool, found: np.ndarray, expected: np.ndarray) -> None:
        self.compared += 1
        if not agree:
            self.differences.append(f"{name}: found\n{found}\nexpected\n{expected}")


def compare_table(check: OnDevices) -> None:
    """One program for each kind of groups, with all forms and all element types."""
    dtypes = (*NUMBERS, "bool")
    xs = list(zip(*(operands(dtype, 4, "4,8,4") for dtype in dtypes), strict=True))
    for ranks in ON_FOUR:
        rows = [(form, i) for form, _ in table([ranks]) for i, dtype in enumerate(dtypes) if dtype in form.dtypes]
        names = [f"{form.name} over {ranks} of {dtypes[i]}" for form, i in rows]
        check.bits(
            names,
            [form.moves for form, _ in rows],
            lambda *xs, rows=rows, ranks=ranks: [form.function(xs[i], ranks) for form, i in rows],
            xs,
        )


def compare_small(check: OnDevices) -> None:
    """Arrays of size one and without elements. An element is added, so that every result has one."""

    def small(*xs: Any) -> list[Any]:
        one = ops.ones((1,), xs[0].dtype)
        found = [f(x) for x in xs for f in (lambda x: all_reduce(x, 4), lambda x: all_reduce(x, 4, "max"))]
        found += [all_gather(x, 4) for x in xs] + [collective_permute(x, 4, []) for x in xs]
        return [ops.concatenate([y.reshape(-1), one]) for y in found]

    shapes = ("0,4", "4", "4,1", "1")
    for dtype in ("f64", "bf16"):
        xs = list(zip(*(operands(dtype, 4, shape) for shape in shapes), strict=True))
        count = 4 * len(shapes)
        check.bits([f"small {dtype}, {i}" for i in range(count)], [False] * count, small, xs)


def main(target: str) -> None:
    """Compare everything, and write how much was compared and what differed."""
    check = OnDevices()
    compare_table(check)
    compare_small(check)
    for ranks in (4, ((0, 2), (1, 3))):
        xs = [(array("f64[3,4]", f"loop {rank}"),) for rank in range(4)]
        check.close(f"loops over {ranks}", lambda x, ranks=ranks: looped(x, ranks), xs, 64)
        check.close(f"gradient over {ranks}", lambda x, ranks=ranks: looped_gradient(x, ranks), xs, 64)
    with open(target, "w", encoding="utf-8") as file:
        json.dump({"compared": check.compared, "differences": check.differences}, file)


if __name__ == "__main__":
    os.environ["PJRT_NPROC"] = "8"  # each device needs a thread that may wait for the others
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 4)
    main(sys.argv[1])
