"""The derivatives of control flow. They need reverse mode itself, so they stand here and not with the primitives.

The forward step of a `scan` also stacks what the backward steps will read (the residuals), and a second scan in the
opposite direction consumes them. The pullback of `cond` runs the chosen branch again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from antegrad import ops
from antegrad.autodiff.reverse import LINEARIZE, Pullback, vjp_program
from antegrad.errors import DTypeError
from antegrad.ir.builder import Builder
from antegrad.ir.program import Equation, Program, Source, Value
from antegrad.ir.types import is_float
from antegrad.ops.control import cond_p, scan_p
from antegrad.ops.dispatch import bind, lift, tracing
from antegrad.ops.tensor import Tensor
from antegrad.passes.dead_code import eliminate_dead_code
from antegrad.passes.simplify import simplify


def _zeros(value: Value) -> Any:
    return ops.zeros(value.type.shape, value.type.dtype)


def _filled(cotangents: Sequence[Any], values: Sequence[Value]) -> list[Any]:
    """The cotangents of the float ones among `values`, zeros where there is none."""
    pairs = zip(cotangents, values, strict=True)
    return [_zeros(value) if cotangent is None else cotangent for cotangent, value in pairs if is_float(value.type.dtype)]


def linearize_cond(
    equation: Equation, operands: Sequence[Tensor], active: Sequence[bool]
) -> tuple[Sequence[Tensor], Pullback]:
    """The pullback is a `cond` over the pullbacks of the branches, each of which runs its branch again."""
    branches: tuple[Program, ...] = equation.params["branches"]
    results = bind(cond_p, *operands, branches=branches)
    wanted = [i for i, flag in enumerate(active[1:]) if flag and is_float(operands[i + 1].dtype)]

    def pullback(cotangents: Sequence[Any]) -> Sequence[Any]:
        backward = tuple(_only_gradients(branch, [branch.input_names[i] for i in wanted]) for branch in branches)
        given = _filled(cotangents, equation.outputs)
        found = bind(cond_p, *operands, *given, branches=backward)
        by_operand = dict(zip(wanted, found, strict=True))
        return [None, *(by_operand.get(i) for i in range(len(operands) - 1))]

    return results, pullback


def _only_gradients(program: Program, wrt: Sequence[str]) -> Program:
    """The pullback of `program` without the results of the forward pass."""
    pullback = vjp_program(program, wrt)
    count = len(program.outputs)
    kept = replace(pullback, outputs=pullback.outputs[count:], output_names=pullback.output_names[count:])
    return eliminate_dead_code(kept)


def refuse_while(equation: Equation, operands: Sequence[Tensor], active: Sequence[bool]) -> Any:
    """Reverse mode through a loop of unknown length would need memory of unknown size."""
    place = f"\n  at {equation.source}" if str(equation.source) else ""
    raise DTypeError(
        "while_loop has no reverse mode, because the number of its steps is not known. "
        f"Use ag.scan or ag.fori_loop with a fixed number of steps, or ag.stop_gradient on what goes in.{place}"
    )


def linearize_scan(
    equation: Equation, operands: Sequence[Tensor], active: Sequence[bool]
) -> tuple[Sequence[Tensor], Pullback]:
    """A scan that also stacks residuals, and a pullback that scans over them in the opposite direction."""
    split = _Split(equation, active)
    params = equation.params
    results = bind(scan_p, *operands, **{**params, "body": split.forward})
    own, residuals = results[: len(equation.outputs)], results[len(equation.outputs) :]

    def pullback(cotangents: Sequence[Any]) -> Sequence[Any]:
        return split.backward_scan(cotangents, operands, residuals)

    return own, pullback


class _Split:
    """The body of a scan, cut into a forward step that stores residuals and a backward step that reads them."""

    def __init__(self, equation: Equation, active: Sequence[bool]) -> None:
        self.equation, self.body = equation, equation.params["body"]
        self.constants, self.carries = equation.params["counts"]
        self.wanted = _active_inputs(equation, active)
        names = [self.body.input_names[i] for i in self.wanted]
        self.joint = simplify(vjp_program(self.body, names))
        self.residuals = self._residuals()
        count = len(self.body.outputs)
        self.forward = eliminate_dead_code(
            replace(
                self.joint,
                name=f"{self.body.name}_forward",
                inputs=self.joint.inputs[: len(self.body.inputs)],
                input_names=self.body.input_names,
                outputs=(*self.joint.outputs[:count], *self.residuals),
                output_names=(*self.body.output_names, *(f"residual_{i}" for i in range(len(self.residuals)))),
                equations=tuple(eq for eq in self.joint.equations if not self._is_backward(eq)),
            )
        )

    def _is_backward(self, equation: Equation) -> bool:
        return any(value in self.tainted for value in equation.outputs)

    def _residuals(self) -> list[Value]:
        """What the backward equations read of the forward ones; constants are made again instead of stored."""
        cotangents = self.joint.inputs[len(self.body.inputs) :]
        self.tainted = set(cotangents)
        for equation in self.joint.equations:
            if any(value in self.tainted for value in equation.inputs):
                self.tainted.update(equation.outputs)
        constants = set(self.joint.inputs[: self.constants])
        self.remade: list[Equation] = []
        for equation in self.joint.equations:
            if not self._is_backward(equation) and all(value in constants for value in equation.inputs):
                constants.update(equation.outputs)
                self.remade.append(equation)
        reads = [v for eq in self.joint.equations if self._is_backward(eq) for v in eq.inputs]
        reads += self.joint.outputs[len(self.body.outputs) :]
        return list(dict.fromkeys(v for v in reads if v not in self.tainted and v not in constants))

    def backward_scan(
        self, cotangents: Sequence[Any], operands: Sequence[Tensor], residuals: Sequence[Tensor]
    ) -> list[Any]:
        """The cotangents of all operands, by a scan from the last step to the first."""
        equation, constants, carries = self.equation, self.constants, self.carries
        final = [_zeros(v) if c is None else c for c, v in zip(cotangents, equation.outputs, strict=True)]
        carry_in = [i for i in range(constants, constants + carries) if i in self.wanted]
        constant_in = [i for i in self.wanted if i < constants]
        float_carries = [i for i in range(carries) if is_float(equation.outputs[i].type.dtype)]
        start = [final[i] for i in float_carries]
        sums = [ops.zeros(operands[i].shape, operands[i].dtype) for i in constant_in]
        stacked = [c for c, v in zip(final[carries:], equation.outputs[carries:], strict=True) if is_float(v.type.dtype)]
        body = self._backward_body(float_carries, carry_in, constant_in)
        params = {
            "counts": (constants, len(start) + len(sums)),
            "length": equation.params["length"],
            "reverse": not equation.params["reverse"],
        }
        found = bind(scan_p, *operands[:constants], *start, *sums, *stacked, *residuals, body=body, **params)
        result: list[Any] = [None] * len(operands)
        by_carry = dict(zip(float_carries, found, strict=False))
        for i in carry_in:
            result[i] = by_carry[i - constants]
        for i, value in zip(constant_in, found[len(start) :], strict=False):
            result[i] = value
        for i, value in zip(
            [i for i in self.wanted if i >= constants + carries], found[len(start) + len(sums) :], strict=True
        ):
            result[i] = value
        return result

    def _backward_body(self, float_carries: list[int], carry_in: list[int], constant_in: list[int]) -> Program:
        """One backward step: constants, cotangents of the carry, sums for the constants, then slices."""
        joint, builder = self.joint, Builder()
        env: dict[Value, Value] = {}
        for value, name in zip(joint.inputs[: self.constants], self.body.input_names, strict=False):
            env[value] = builder.input(value.type, name)
        cotangents = joint.inputs[len(self.body.inputs) :]
        names = joint.input_names[len(self.body.inputs) :]
        split = len(float_carries)
        for value, name in zip(cotangents[:split], names[:split], strict=True):
            env[value] = builder.input(value.type, name)
        sums = [builder.input(joint.inputs[i].type, f"sum_{self.body.input_names[i]}") for i in constant_in]
        for value, name in zip(cotangents[split:], names[split:], strict=True):
            env[value] = builder.input(value.type, name)
        for i, value in enumerate(self.residuals):
            env[value] = builder.input(value.type, value.name or f"residual_{i}")
        for equation in (*self.remade, *(eq for eq in joint.equations if self._is_backward(eq))):
            outputs = builder.add(equation.primitive, [env[v] for v in equation.inputs], equation.params, equation.source)
            for old, new in zip(equation.outputs, outputs, strict=True):
                new.name = old.name
                env[old] = new
        gradients = dict(zip(self.wanted, joint.outputs[len(self.body.outputs) :], strict=True))
        return self._finish_backward(builder, env, gradients, float_carries, constant_in, sums)

    def _finish_backward(
        self,
        builder: Builder,
        env: dict[Value, Value],
        gradients: dict[int, Value],
        float_carries: list[int],
        constant_in: list[int],
        sums: list[Value],
    ) -> Program:
        """Outputs of a backward step: cotangents of the carry, grown sums, cotangents of the slices."""
        tensor = {i: Tensor(env[value], builder) for i, value in gradients.items()}
        with tracing(builder):
            builder.source = Source(part="backward")
            carry = [tensor.get(self.constants + i, _zeros(self.body.outputs[i])) for i in float_carries]
            grown = [Tensor(total, builder) + tensor[i] for i, total in zip(constant_in, sums, strict=True)]
            slices = [tensor[i] for i in self.wanted if i >= self.constants + self.carries]
            values = [lift(builder, value) for value in (*carry, *grown, *slices)]
        names = [f"out_{i}" for i in range(len(values))]
        return simplify(builder.finish(f"{self.body.name}_backward", values, names))


def _active_inputs(equation: Equation, active: Sequence[bool]) -> list[int]:
    """The float inputs of the body that need a cotangent: active operands, and every carry that one of them reaches.

    The float carries all count, because any of them may depend on an active operand after the first step.
    """
    constants, carries = equation.params["counts"]
    body: Program = equation.params["body"]
    return [
        i
        for i, value in enumerate(body.inputs)
        if is_float(value.type.dtype) and (active[i] or constants <= i < constants + carries)
    ]


LINEARIZE.update({"cond": linearize_cond, "scan": linearize_scan, "while": refuse_while})
