"""`residuals`: what the forward pass keeps for the backward pass, and how many bytes that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from antegrad.autodiff.partition import dependents, determined
from antegrad.autodiff.reverse import refuse_while, vjp_program
from antegrad.capture import trace
from antegrad.ir.cost import memory_owners
from antegrad.ir.program import Program, Source, Value
from antegrad.ir.text import value_names
from antegrad.ir.types import TensorType


@dataclass(frozen=True)
class Residual:
    """One kept value: its name and type, the primitive that made it (``input`` for an argument), and where."""

    name: str
    type: TensorType
    origin: str
    source: Source

    @property
    def bytes(self) -> int:
        return self.type.nbytes


@dataclass(frozen=True)
class ResidualReport:
    """Everything that is kept; prints as a table."""

    program: str
    rows: tuple[Residual, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of all kept values, the arguments among them included."""
        return sum(row.bytes for row in self.rows)

    @property
    def computed_bytes(self) -> int:
        """Bytes of what the forward pass computes and keeps: without the arguments, which are there anyway."""
        return sum(row.bytes for row in self.rows if row.origin != "input")

    def __str__(self) -> str:
        cells = [("value", "type", "bytes", "made by")]
        cells += [(row.name, str(row.type), f"{row.bytes:,}", _origin(row)) for row in self.rows]
        cells.append(("total", "", f"{self.total_bytes:,}", f"{self.computed_bytes:,} without the inputs"))
        widths = [max(len(row[i]) for row in cells) for i in range(3)]
        lines = [f"{n:<{widths[0]}}  {t:<{widths[1]}}  {b:>{widths[2]}}  {o}".rstrip() for n, t, b, o in cells]
        return "\n".join([f"kept by {self.program} for its backward pass", *lines])


def _origin(row: Residual) -> str:
    layer = f"layer {row.source.layer}" if row.source.layer else ""
    return "  ".join(filter(None, (row.origin, layer, row.source.location)))


def residuals(function: Callable[..., Any], *examples: Any) -> ResidualReport:
    """What the backward pass of `function`, by all its float arguments, reads of the forward pass.

    `examples` are arrays or `ag.spec` types, as for `ag.capture`. The report holds for the Program as it is written;
    a compiler may keep less. Use it to see what `ag.remat` saves:

        print(ag.residuals(loss, params, x))
        print(ag.residuals(ag.remat(loss, save="dots"), params, x))
    """
    program = trace(function, *examples).program
    joint = refuse_while(vjp_program(program))
    rows = [_row(joint, value) for value in _kept(joint, program)]
    return ResidualReport(program.name, tuple(rows))


def _kept(joint: Program, program: Program) -> list[Value]:
    """The values whose memory the backward part of a pullback reads, without what it makes and what is constant."""
    first = program.argument_count
    cotangents = joint.inputs[first : len(joint.inputs) - len(joint.captured)]
    backward = dependents(joint, cotangents)
    kept: dict[Value, None] = {}
    late = {*cotangents, *determined(joint, ())}
    for equation in joint.equations:
        if equation.source.part == "backward" or backward.intersection(equation.outputs):
            late.update(equation.outputs)
            kept.update(dict.fromkeys(value for value in equation.inputs if value not in late))
    owners = memory_owners(joint)
    kept = dict.fromkeys(owners.get(value, value) for value in kept)
    order = {value: place for place, value in enumerate(joint.inputs)}
    order |= {value: len(order) + place for place, eq in enumerate(joint.equations) for value in eq.outputs}
    return sorted(kept, key=order.__getitem__)


def _row(joint: Program, value: Value) -> Residual:
    equation = joint.producers().get(value)
    if equation is None:
        return Residual(joint.input_names[joint.inputs.index(value)], value.type, "input", Source())
    return Residual(value_names(joint)[value], value.type, equation.primitive.name, equation.source)
