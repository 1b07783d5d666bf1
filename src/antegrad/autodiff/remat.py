"""Rematerialisation: memory for time. The backward pass computes again what the forward pass did not keep.

Source: Chen et al., "Training deep nets with sublinear memory cost" (2016).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from antegrad import tree
from antegrad.autodiff.partition import filled, partition
from antegrad.autodiff.reverse import Pullback, vjp_program
from antegrad.errors import NameMissing
from antegrad.flow import subprogram
from antegrad.ir.program import Equation, Program, Value
from antegrad.ir.types import is_float, type_of
from antegrad.ops.call import RULES, call_p, optimization_barrier
from antegrad.ops.dispatch import apply, as_tensor
from antegrad.ops.linalg import dot_general
from antegrad.ops.tensor import Tensor
from antegrad.passes.simplify import simplify

Policy = str | Sequence[str]
"""``"nothing"``, ``"dots"``, ``"everything"``, or the names of the values to save."""


def remat(
    function: Callable[..., Any] | None = None, *, save: Policy = "nothing"
) -> Callable[..., Any]:
    """`function`, whose inner values are computed again in the backward pass instead of being kept.

    `save` is what is kept after all: ``"nothing"`` but the arguments, the results of ``"dots"`` (matrix products),
    ``"everything"``, or a list of names of values: variables of the function, or labels given with ``ops.name``.
    Use it as a decorator, bare or as ``@ag.remat(save="dots")``. On the host values keep their bits, and gradients
    differ at most in the order in which cotangents are added. XLA for CPU lowers the barrier early and may merge both
    computations again, as it does for ``jax.checkpoint``.
    """
    if function is None:
        return lambda inner: remat(inner, save=save)

    @wraps(function)
    def rematerialised(*args: Any) -> Any:
        leaves, structure = tree.flatten(args)
        leaves = [as_tensor(leaf) for leaf in leaves]
        example = tree.unflatten(structure, [type_of(leaf) for leaf in leaves])
        program, outer = subprogram(function, getattr(function, "__name__", "remat"), *example)
        rule = _RematRule(save if isinstance(save, str) else tuple(save))
        rule.check(program)
        return tree.unflatten(program.structure, call_p(*leaves, *outer, program=program, rule=rule))

    return rematerialised


@dataclass(frozen=True)
class _RematRule:
    save: str | tuple[str, ...]

    def check(self, program: Program) -> None:
        """Refuse a policy that is unknown, or names that no value has."""
        if isinstance(self.save, str):
            if self.save not in ("nothing", "dots", "everything"):
                expected = '"nothing", "dots", "everything" or a list of names'
                raise NameMissing(f"remat: save={self.save!r} is unknown; expected {expected}")
            return
        known = {value.name for equation in program.equations for value in equation.outputs if value.name}
        missing = [name for name in self.save if name not in known]
        if missing:
            listed = ", ".join(sorted(known)) or "no named value"
            raise NameMissing(f"remat: {program.name} has no value {', '.join(missing)}; it has {listed}")

    def keeps(self, joint: Program) -> Callable[[Value], bool]:
        """Whether a value of the pullback is saved."""
        save = self.save
        if isinstance(save, tuple):
            return lambda value: value.name in save
        products = {v for eq in joint.equations if eq.primitive is dot_general for v in eq.outputs}
        return lambda value: save == "everything" or (save == "dots" and value in products)

    def linearize(
        self, equation: Equation, operands: Sequence[Tensor], active: Sequence[bool]
    ) -> tuple[Sequence[Tensor], Pullback]:
        program: Program = equation.params["program"]
        wanted = [i for i, flag in enumerate(active) if flag and is_float(operands[i].dtype)]
        joint = simplify(vjp_program(program, [program.input_names[i] for i in wanted]))
        results, count = len(program.outputs), len(program.inputs)
        forward, backward = partition(joint, count, results, count, self.keeps(joint))
        found = apply(forward, operands)
        own, residuals = found[:results], found[results:]

        def pullback(cotangents: Sequence[Any]) -> Sequence[Any]:
            given = filled(cotangents, equation.outputs)
            gradients = apply(backward, optimization_barrier(*operands, *residuals, *given))
            by_operand = dict(zip(wanted, gradients, strict=True))
            return [by_operand.get(i) for i in range(len(operands))]

        return own, pullback


RULES["remat"] = _RematRule("nothing")
