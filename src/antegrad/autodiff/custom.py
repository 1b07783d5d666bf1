"""Functions with a derivative of their own: `custom_vjp` and `custom_jvp`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Protocol

from antegrad import ops, tree
from antegrad.autodiff.reverse import LINEARIZE, Pullback, vjp_program
from antegrad.capture import trace
from antegrad.errors import ShapeError, TraceError
from antegrad.flow import subprogram
from antegrad.ir.program import Equation
from antegrad.ir.types import is_float, type_of
from antegrad.ops.call import call_p
from antegrad.ops.dispatch import apply, as_tensor
from antegrad.ops.tensor import Tensor


class Rule(Protocol):
    """How a `call` equation is differentiated."""

    def linearize(
        self, equation: Equation, operands: Sequence[Tensor], active: Sequence[bool]
    ) -> tuple[Sequence[Tensor], Pullback]:
        """The results on `operands`, and the pullback of their cotangents."""
        ...


def linearize_call(
    equation: Equation, operands: Sequence[Tensor], active: Sequence[bool]
) -> tuple[Sequence[Tensor], Pullback]:
    """As the rule of the call says."""
    return equation.params["rule"].linearize(equation, operands, active)


LINEARIZE["call"] = linearize_call


class _Custom(ABC):
    """A function that is captured as one `call` with a rule."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        update_wrapper(self, function)

    def __call__(self, *args: Any) -> Any:
        leaves, structure = tree.flatten(args)
        leaves = [as_tensor(leaf) for leaf in leaves]
        example = tree.unflatten(structure, [type_of(leaf) for leaf in leaves])
        program, outer = subprogram(self.function, self.function.__name__, *example)
        rule = self.rule(structure, program.structure, len(leaves))
        return tree.unflatten(program.structure, call_p(*leaves, *outer, program=program, rule=rule))

    @abstractmethod
    def rule(self, arguments: tree.Structure, results: tree.Structure, count: int) -> Rule:
        """How a call of `count` operands is differentiated."""


class custom_vjp(_Custom):  # noqa: N801  (used as a decorator)
    """A function whose reverse-mode derivative is given by hand.

        @ag.custom_vjp
        def safe_log(x):
            return ops.log(x)

        safe_log.defvjp(lambda x: (ops.log(x), x), lambda x, dy: (dy / ops.maximum(x, 1e-6),))

    `forward(*args)` gives ``(result, residuals)``, and `backward(residuals, cotangent)` a tuple with the cotangent of
    each argument, of its structure, or None for none. Arguments and results are pytrees. What the function takes from
    an enclosing trace has no derivative: pass it as an argument.
    """

    forward: Callable[..., Any] | None = None
    backward: Callable[..., Any] | None = None

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Set the two functions."""
        self.forward, self.backward = forward, backward

    def rule(self, arguments: tree.Structure, results: tree.Structure, count: int) -> Rule:
        if self.forward is None or self.backward is None:
            name = self.function.__name__
            raise TraceError(f"custom_vjp {name} has no derivative yet: call .defvjp(forward, backward)")
        return _VjpRule(self.forward, self.backward, arguments, results, count)


def _refuse_captured(equation: Equation, active: Sequence[bool], count: int) -> None:
    if any(active[count:]):
        names = equation.params["program"].input_names[count:]
        raise TraceError(
            f"{equation.params['program'].name} has a derivative of its own and takes {', '.join(names)} from outside, "
            f"with respect to which there is none: pass them as arguments\n  at {equation.source}"
        )


def _structured(structure: tree.Structure, cotangents: Sequence[Any], equation: Equation) -> Any:
    """Cotangents of the results in their structure, with zeros where there is none."""
    zipped = zip(cotangents, equation.output_types, strict=True)
    return tree.unflatten(structure, [ops.zeros(t.shape, t.dtype) if c is None else c for c, t in zipped])


@dataclass(frozen=True)
class _VjpRule:
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    arguments: tree.Structure
    results: tree.Structure
    count: int

    def linearize(
        self, equation: Equation, operands: Sequence[Tensor], active: Sequence[bool]
    ) -> tuple[Sequence[Tensor], Pullback]:
        _refuse_captured(equation, active, self.count)
        name = equation.params["program"].name
        args = tree.unflatten(self.arguments, operands[: self.count])
        result, residuals = self.forward(*args)
        leaves, structure = tree.flatten(result)
        if structure != self.results:
            raise ShapeError(f"custom_vjp {name}: forward returns {structure}, the function returns {self.results}")

        def pullback(cotangents: Sequence[Any]) -> Sequence[Any]:
            found = self.backward(residuals, _structured(self.results, cotangents, equation))
            if not isinstance(found, tuple) or len(found) != len(args):
                raise ShapeError(f"custom_vjp {name}: backward must return a tuple of {len(args)} cotangents")
            own = [_aligned(cotangent, arg, name) for cotangent, arg in zip(found, args, strict=True)]
            return [*(leaf for leaves in own for leaf in leaves), *[None] * (len(operands) - self.count)]

        return [as_tensor(leaf) for leaf in leaves], pullback


def _aligned(cotangent: Any, argument: Any, name: str) -> list[Any]:
    """One entry for each leaf of the argument; None where there is no cotangent."""
    count = len(tree.leaves(argument))
    if cotangent is None:
        return [None] * count
    leaves = tree.leaves(cotangent)
    if len(leaves) != count:
        raise ShapeError(f"custom_vjp {name}: a cotangent has {len(leaves)} leaves, its argument has {count}")
    return [as_tensor(leaf) for leaf in leaves]


class custom_jvp(_Custom):  # noqa: N801  (used as a decorator)
    """A function whose forward-mode derivative is given by hand; reverse mode is its transpose.

    ``defjvp(rule)`` with ``rule(primals, tangents) -> (result, tangent of the result)``, linear in the tangents, both
    arguments tuples. Arguments are pytrees of floats.
    """

    jvp: Callable[..., Any] | None = None

    def defjvp(self, rule: Callable[..., Any]) -> None:
        """Set the rule."""
        self.jvp = rule

    def rule(self, arguments: tree.Structure, results: tree.Structure, count: int) -> Rule:
        if self.jvp is None:
            raise TraceError(f"custom_jvp {self.function.__name__} has no derivative yet: call .defjvp(rule)")
        return _JvpRule(self.jvp, arguments, count)


@dataclass(frozen=True)
class _JvpRule:
    jvp: Callable[..., Any]
    arguments: tree.Structure
    count: int

    def linearize(
        self, equation: Equation, operands: Sequence[Tensor], active: Sequence[bool]
    ) -> tuple[Sequence[Tensor], Pullback]:
        _refuse_captured(equation, active, self.count)
        given = operands[: self.count]
        example = tree.unflatten(self.arguments, [type_of(operand) for operand in given])

        def pushed(primals: Any, tangents: Any) -> Any:
            return self.jvp(primals, tangents)

        traced = trace(pushed, example, example, name=f"{equation.params['program'].name}_jvp")
        zeros = [ops.zeros_like(operand) for operand in given]
        results = apply(traced.program, [*given, *zeros, *traced.captured])
        half = len(results) // 2
        names = [traced.program.input_names[i] for i in traced.argument_inputs[1]]
        transposed = vjp_program(traced.program, names)

        def pullback(cotangents: Sequence[Any]) -> Sequence[Any]:
            floats = [t for t in equation.output_types if is_float(t.dtype)]
            silent = [ops.zeros(t.shape, t.dtype) for t in floats]
            tangents = tree.leaves(_structured(tree.structure([0] * half), cotangents, equation))
            heard = [c for c, t in zip(tangents, equation.output_types, strict=True) if is_float(t.dtype)]
            found = apply(transposed, [*given, *zeros, *traced.captured, *silent, *heard])
            return [*found[2 * half :], *[None] * (len(operands) - self.count)]

        return results[:half], pullback
