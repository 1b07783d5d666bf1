"""What an optimizer is: two pure functions on pytrees, `init` and `update`, and the name that checkpoints store."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from antegrad import ops, tree
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.names import identifier
from antegrad.ir.types import accumulation_dtype, is_float, promote, type_of

Schedule = Callable[[Any], Any]
"""From the number of updates done so far (i32 scalar or Python int) to a scalar f32."""

State = dict[str, Any]

Reading = Callable[[State], Any]
"""From the state to a scalar that is worth a log entry."""

Mask = Callable[[str, Any], bool]
"""``mask(path, parameter)``: whether something holds for the parameter at ``blocks.3.w``."""


def nothing(path: str, parameter: Any) -> bool:
    """The mask that holds for no parameter."""
    return False


@dataclass(frozen=True)
class Optimizer:
    """A pair of pure functions on pytrees of float arrays or traced tensors.

    Attributes:
      kind: the name stored in checkpoints, such as ``"adam"``; a checkpoint of another kind is refused.
      init: ``init(parameters) -> state``. The state is a dict whose leaf paths become names in checkpoints: ``m.0.w``
        is stored as ``opt.m.0.w``.
      update: ``update(gradients, state, parameters) -> (updates, state)``; `apply_updates` adds the updates to the
        parameters. Gradients have the structure and the shapes of the parameters; a `ShapeError` names the first that
        has not. For 16-bit parameters updates and state are f32 (see `apply_updates`).
      readings: what there is to log, each a function of the state that gives a scalar: ``learning_rate``, the rate of
        the update that comes next (f32), and ``skipped``, how many steps were left out for gradients that are not
        finite (i32). Of several optimizers the first has the plain name, and the others ``learning_rate_adam_2``.
      decays: whether weight decay shrinks a parameter, by path and parameter; what `decay_report` prints.
    """

    kind: str
    init: Callable[[Any], State]
    update: Callable[[Any, State, Any], tuple[Any, State]]
    readings: Mapping[str, Reading] = field(default_factory=dict)
    decays: Mask = nothing


def apply_updates(parameters: Any, updates: Any) -> Any:
    """``parameters + updates``, leaf by leaf, in the element types of the parameters.

    A 16-bit parameter is added to its f32 update in f32 and rounded once. An update below half a unit in the last
    place, about 0.2 % of the parameter in bf16, is lost all the same: train f32 parameters, and round a copy of them
    to bf16 for the forward pass.
    """

    def added(path: str, parameter: Any, update: Any) -> Any:
        return labelled(ops.convert(ops.add(wide(parameter), update), parameter.dtype), "new", path)

    return map_leaves("apply_updates", added, parameters=parameters, updates=updates)


def global_norm(gradients: Any) -> Any:
    """The Euclidean norm of all leaves together, ``sqrt(sum(g * g))``: a scalar f32 (f64 if a leaf is f64).

    It is inf where the sum of squares overflows: for f32 from a norm of 1.8e19 on.
    """
    leaves = [wide(leaf) for leaf in tree.leaves(gradients)]
    if not leaves:
        return ops.zeros(())
    dtype = promote([leaf.dtype for leaf in leaves])
    total: Any = None
    for leaf in leaves:
        squares = ops.convert(ops.sum(ops.square(leaf)), dtype)
        total = squares if total is None else ops.add(total, squares)
    return ops.name(ops.sqrt(total), "norm")


def map_leaves(operation: str, function: Callable[..., Any], /, **trees: Any) -> Any:
    """The tree of ``function(path, *leaves)`` for the leaves of `trees` that correspond.

    The trees must agree in structure and in the shapes of their leaves: a `ShapeError` says where they do not.
    """
    results = [function(path, *leaves) for path, leaves in _rows(operation, trees)]
    return tree.unflatten(tree.structure(next(iter(trees.values()))), results)


def step_leaves(
    operation: str, function: Callable[..., tuple[Any, ...]], gradients: Any, parameters: Any, **slots: Any
) -> tuple[Any, dict[str, Any]]:
    """``function(path, parameter, gradient, *slots) -> (update, *new slots)`` on every leaf.

    A slot is a part of the state that has a leaf for each parameter, such as a moment. Gives the tree of the updates,
    and the new slots by name. The trees must agree as in `map_leaves`.
    """
    trees = {"parameters": parameters, "gradients": gradients, **slots}
    rows = [function(path, *leaves) for path, leaves in _rows(operation, trees)]
    columns = zip(*rows, strict=True) if rows else [()] * (1 + len(slots))
    updates, *new = (tree.unflatten(tree.structure(parameters), column) for column in columns)
    return updates, dict(zip(slots, new, strict=True))


def _rows(operation: str, trees: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """Each path, with the leaves of all `trees` there."""
    named = {name: tree.named_leaves(given) for name, given in trees.items()}
    first, *others = named
    for other in others:
        _check_alike(operation, first, named[first], other, named[other])
    for path in named[first]:
        yield path, [leaves[path] for leaves in named.values()]


def _check_alike(operation: str, first: str, one: dict[str, Any], other: str, two: dict[str, Any]) -> None:
    """Two trees, by the paths of their leaves, must have the same ones in the same shapes."""
    for path in one | two:
        shapes = [leaves[path].shape if path in leaves else None for leaves in (one, two)]
        if shapes[0] != shapes[1]:
            found = ["nothing" if shape is None else f"shape {shape}" for shape in shapes]
            raise ShapeError(
                f"{operation}: at {path or 'the root'!r} {first} has {found[0]} and {other} has {found[1]}: "
                "both must have the same leaves"
            )


def labelled(x: Any, role: str, path: str) -> Any:
    """`x`, called ``new_m_w0`` in a printed program for the role ``new_m`` and the leaf ``0.w``."""
    return ops.name(x, f"{role}_{identifier(path)}" if path else role)


def check_parameters(operation: str, parameters: Any) -> None:
    """A `DTypeError` names a leaf that is not float."""
    for path, leaf in tree.named_leaves(parameters).items():
        if not is_float(leaf.dtype):
            raise DTypeError(
                f"{operation}: parameter {path or 'the root'!r} is {type_of(leaf)}, but only float parameters can be "
                "trained: keep integer arrays out of the parameters"
            )


def moments(operation: str, parameters: Any) -> Any:
    """Zeros in the shapes of `parameters`, f32 for 16-bit floats; a `DTypeError` names a leaf that is not float."""
    check_parameters(operation, parameters)
    return tree.map(lambda leaf: ops.zeros(leaf.shape, accumulation_dtype(leaf.dtype)), parameters)


def moving_average(average: Any, new: Any, beta: float) -> Any:
    """``beta * average + (1 - beta) * new``."""
    return ops.add(ops.multiply(average, beta), ops.multiply(new, 1 - beta))


def bias_correction(steps: Any, beta: float) -> Any:
    """``1 - beta ** steps``, by `expm1`: in f32 the difference itself keeps four digits of 1 - 0.999."""
    return ops.negative(ops.expm1(ops.multiply(steps, math.log(beta) if beta else -math.inf)))


def no_updates_yet() -> Any:
    """The count of a fresh state: an i32 scalar 0."""
    return ops.zeros((), "i32")


def wide(x: Any) -> Any:
    """16-bit floats as f32, in which updates are computed."""
    return ops.convert(x, accumulation_dtype(x.dtype))


def in_state_type(gradient: Any, parameter: Any) -> Any:
    """The gradient in the element type in which the update of `parameter` is computed."""
    return ops.convert(gradient, accumulation_dtype(parameter.dtype))


def no_change(x: Any) -> Any:
    """The update that keeps every bit of a parameter, in the type of `x`: -0.0, since -0.0 + 0.0 would be 0.0."""
    return ops.full_like(x, -0.0)


def rate_at(learning_rate: float | Schedule, count: Any) -> Any:
    """The learning rate of the update before which `count` updates were done: a Python number or an f32 scalar."""
    if not callable(learning_rate):
        return learning_rate
    rate = learning_rate(count)
    if shape := getattr(rate, "shape", ()):
        raise ShapeError(f"a learning rate is one number, but the schedule {learning_rate!r} gave shape {shape}")
    return ops.name(rate, "learning_rate")


def rate_reading(learning_rate: float | Schedule) -> Reading:
    """The learning rate as a reading of a state with a count."""

    def reading(state: State) -> Any:
        rate = rate_at(learning_rate, state["count"])
        return ops.full((), rate) if isinstance(rate, (int, float)) else rate

    return reading
