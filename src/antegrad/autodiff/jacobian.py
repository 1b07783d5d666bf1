"""Whole derivatives: `jacobian`, `hessian`, Hessian-vector products, and `linearize`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        (position,) = argument_positions(function, argnums, len(args))

        def of_one(argument: Any) -> Any:
            return target(*args[:position], argument, *args[position + 1 :])

        return _reverse(of_one, args[position]) if mode == "reverse" else _forward(of_one, args[position])

    return differentiated


def _basis(like: Any) -> Any:
    """Every unit tensor of the type of `like`, along a new first axis."""
    type = type_of(like)
    if not is_float(type.dtype):
        raise DTypeError(f"jacobian: {type} is not a float; pass a float, such as 3.0 or x.astype('f32')")
    return ops.reshape(ops.eye(type.size, dtype=type.dtype), (type.size, *type.shape))


def _with_zeros(leaves: Sequence[Any], place: int, unit: Any) -> list[Any]:
    """`unit` in the place of one leaf, zeros in the others."""
    return [unit if i == place else ops.zeros_like(leaf) for i, leaf in enumerate(leaves)]


def _reverse(function: Callable[[Any], Any], argument: Any) -> Any:
    value, pullback = vjp(function, argument)
    outputs, structure = tree.flatten(value)
    outputs = [as_tensor(output) for output in outputs]
    rows = []
    for place, output in enumerate(outputs):

        def pulled(unit: Any, place: int = place) -> Any:
            return pullback(tree.unflatten(structure, _with_zeros(outputs, place, unit)))[0]

        batch = vmap(pulled)(_basis(output))
        rows.append(tree.map(lambda leaf, shape=output.shape: ops.reshape(leaf, (*shape, *leaf.shape[1:])), batch))
    return tree.unflatten(structure, rows)


def _forward(function: Callable[[Any], Any], argument: Any) -> Any:
    inputs, structure = tree.flatten(argument)
    inputs = [as_tensor(leaf) for leaf in inputs]
    columns = []
    for place, leaf in enumerate(inputs):

        def pushed(unit: Any, place: int = place) -> Any:
            tangent = tree.unflatten(structure, _with_zeros(inputs, place, unit))
            return jvp(function, (argument,), (tangent,))[1]

        batch = vmap(pushed)(_basis(leaf))
        columns.append(tree.map(lambda out, shape=leaf.shape: _behind(out, shape), batch))
    outputs = tree.structure(columns[0])
    split = [tree.leaves(column) for column in columns]
    return tree.unflatten(outputs, [tree.unflatten(structure, list(row)) for row in zip(*split, strict=True)])


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
