"""Whole derivatives: `jacobian`, `hessian`, Hessian-vector products, and `linearize`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Literal

from antegrad import ops, tree
from antegrad.autodiff.higher import argument_positions, grad, jvp, vjp
from antegrad.capture import positional
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.types import is_float, type_of
from antegrad.ops.dispatch import as_tensor
from antegrad.vmap import vmap


def jacobian(
    function: Callable[..., Any], argnums: int | str = 0, mode: Literal["reverse", "forward"] = "reverse"
) -> Callable[..., Any]:
    """A function that gives every partial derivative: for an output of shape s and an input of shape t, s + t.

    For pytrees the result has the structure of the output, with the structure of the argument in place of each leaf.
    ``"reverse"`` costs one pullback for each element of the output, ``"forward"`` one pushforward for each of the
    argument; each runs them all in one batch.
    """
    if mode not in ("reverse", "forward"):
        raise ShapeError(f'jacobian: mode must be "reverse" or "forward", found {mode!r}')

    def differentiated(*args: Any, **keywords: Any) -> Any:
        target, args = positional(function, args, keywords)
        positions = argument_positions(function, argnums, len(args))
        if len(positions) != 1:
            raise ShapeError(f"jacobian: one argument at a time, found argnums={argnums!r}: pass them as one pytree")
        (position,) = positions

        def of_one(argument: Any) -> Any:
            return target(*args[:position], argument, *args[position + 1 :])

        return _reverse(of_one, args[position]) if mode == "reverse" else _forward(of_one, args[position])

    return differentiated


def _bases(leaves: Sequence[Any]) -> list[Any]:
    """Every unit vector of the space of all `leaves`: along a new first axis, each leaf its part of them."""
    total = sum(leaf.size for leaf in leaves)
    parts, start = [], 0
    for leaf in leaves:
        type = type_of(leaf)
        if not is_float(type.dtype):
            raise DTypeError(f"jacobian: {type} is not a float; pass a float, such as 3.0 or x.astype('f32')")
        own = ops.pad(ops.eye(type.size, dtype=type.dtype), ((start, total - start - type.size), (0, 0)))
        parts.append(ops.reshape(own, (total, *type.shape)))
        start += type.size
    return parts


def _blocks(batch: Any, leaves: Sequence[Any]) -> list[Any]:
    """The first axis of `batch` cut into the parts that belong to each of `leaves`."""
    stops = list(accumulate(leaf.size for leaf in leaves))
    return [batch[stop - leaf.size : stop] for leaf, stop in zip(leaves, stops, strict=True)]


def _reverse(function: Callable[[Any], Any], argument: Any) -> Any:
    value, pullback = vjp(function, argument)
    outputs, structure = tree.flatten(value)
    outputs = [as_tensor(output) for output in outputs]
    rows = vmap(lambda units: pullback(tree.unflatten(structure, units))[0])(_bases(outputs))
    leaves, inner = tree.flatten(rows)
    by_output = zip(*(_blocks(leaf, outputs) for leaf in leaves), strict=True)
    shaped = [
        tree.unflatten(inner, [ops.reshape(block, (*output.shape, *block.shape[1:])) for block in blocks])
        for output, blocks in zip(outputs, by_output, strict=True)
    ]
    return tree.unflatten(structure, shaped)


def _forward(function: Callable[[Any], Any], argument: Any) -> Any:
    inputs, structure = tree.flatten(argument)
    inputs = [as_tensor(leaf) for leaf in inputs]
    columns = vmap(lambda units: jvp(function, (argument,), (tree.unflatten(structure, units),))[1])(_bases(inputs))
    return tree.map(lambda batch: tree.unflatten(structure, _columns(batch, inputs)), columns)


def _columns(batch: Any, inputs: Sequence[Any]) -> list[Any]:
    return [_behind(block, leaf.shape) for block, leaf in zip(_blocks(batch, inputs), inputs, strict=True)]


def _behind(batch: Any, shape: tuple[int, ...]) -> Any:
    """The first axis of `batch` as the last axes `shape`."""
    moved = ops.moveaxis(batch, 0, -1)
    return ops.reshape(moved, (*moved.shape[:-1], *shape))


def hessian(function: Callable[..., Any], argnums: int | str = 0) -> Callable[..., Any]:
    """A function that gives all second derivatives of a scalar function: forward mode over reverse mode."""
    return jacobian(grad(function, argnums), argnums, mode="forward")


def hvp(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """The Hessian of a scalar function at `primals` times `tangents`, without forming it: one entry for each primal."""
    every = tuple(range(len(primals)))
    return jvp(grad(function, every), primals, tangents)[1]


def linearize(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """``(function(*primals), pushforward)``; the pushforward takes one tangent for each primal."""
    value = function(*primals)

    def pushforward(*tangents: Any) -> Any:
        return jvp(function, primals, tangents)[1]

    return value, pushforward
