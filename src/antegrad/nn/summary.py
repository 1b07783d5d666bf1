"""`summary`: what a model is made of, and what each layer costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from antegrad import tree
from antegrad.autodiff.reverse import vjp_program
from antegrad.capture import capture
from antegrad.ir.cost import Cost, equation_cost
from antegrad.ir.program import Program
from antegrad.ir.types import is_float, spec, type_of
from antegrad.nn.context import training_call
from antegrad.nn.layers import Function
from antegrad.nn.module import Module, observed, state_paths, submodules
from antegrad.passes.simplify import simplify


@dataclass
class Row:
    """One layer: its path, its class, what it gives, and what it has and costs without the layers below it."""

    path: str
    kind: str
    output: str = ""
    parameters: int = 0
    state: int = 0
    forward: Cost = field(default_factory=Cost)
    backward: Cost = field(default_factory=Cost)


@dataclass
class Summary:
    """The layers of a model in the order of their paths, and totals. It prints as a table.

    Costs are those of the program as it is written (see `Program.cost`): no fusion, every equation reads its operands
    and writes its results.
    """

    model: str
    rows: list[Row]
    training: bool = False

    @property
    def parameters(self) -> int:
        """Number of elements in all arrays that are trained."""
        return sum(row.parameters for row in self.rows)

    @property
    def state(self) -> int:
        """Number of elements in all arrays that training changes by itself."""
        return sum(row.state for row in self.rows)

    @property
    def forward(self) -> Cost:
        return sum((row.forward for row in self.rows), Cost())

    @property
    def backward(self) -> Cost:
        return sum((row.backward for row in self.rows), Cost())

    def __str__(self) -> str:
        titles = ["layer", "class", "output", "parameters", "FLOPs", "bytes"]
        titles += ["FLOPs back", "bytes back"] if self.training else []
        cells = [titles, *(_cells(row, self.training) for row in self.rows)]
        total = Row("total", "", "", self.parameters, self.state, self.forward, self.backward)
        cells.append(_cells(total, self.training))
        widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
        layout = "  ".join(f"{{:{'<' if column < 3 else '>'}{width}}}" for column, width in enumerate(widths))
        lines = [layout.format(*row) for row in cells]
        lines.insert(-1, "-" * len(lines[0]))
        notes = [f"state: {self.state:,} elements beside the parameters"] if self.state else []
        return "\n".join([self.model, *(line.rstrip() for line in lines), *notes])


def _cells(row: Row, training: bool) -> list[str]:
    numbers = [row.parameters, row.forward.flops, row.forward.bytes]
    numbers += [row.backward.flops, row.backward.bytes] if training else []
    return [row.path, row.kind, row.output, *(f"{number:,}" for number in numbers)]


def summary(model: Module, *examples: Any, training: bool = False) -> Summary:
    """The layers of `model` called on `examples`, arrays or `ag.spec` types: what each gives, has and costs.

    Each row counts what the layer has and does itself; the layers below it have rows of their own, so that rows add up.
    With `training` the model is called by `training_call`, and the cost of the backward pass, to the gradients of all
    parameters, is shown too. Nothing runs: the model is captured.

        print(nn.summary(model, ag.spec((128, 32, 32, 3))))
    """
    rows = _rows(model)

    def note(path: str, module: Module, result: Any) -> None:
        row = rows.setdefault(path, Row(path, _kind(module)))
        row.output = ", ".join(str(type_of(leaf)) for leaf in tree.leaves(result))

    with observed(note):
        program = capture(_in_training if training else _evaluated, model, *_key(training), *examples)
    _add_costs(rows, simplify(program), "forward")
    names = _trained(model, program)
    if training and names:
        _add_costs(rows, vjp_program(program, names), "backward")
    return Summary(type(model).__name__, list(rows.values()), training)


def _evaluated(model: Module, *arguments: Any) -> Any:
    return model(*arguments)


def _in_training(model: Module, key: Any, *arguments: Any) -> Any:
    result, changed = training_call(model, *arguments, key=key)
    leaves = tree.named_leaves(changed)
    return result, [leaves[path] for path in sorted(state_paths(model))]


def _key(training: bool) -> list[Any]:
    return [spec((2,), "u32")] if training else []


def _kind(module: Module) -> str:
    """The class, or the function that a `Function` is."""
    if isinstance(module, Function):
        return getattr(module.function, "__name__", None) or repr(module.function)
    return type(module).__name__


def _rows(model: Module) -> dict[str, Row]:
    """A row for every layer, with the sizes of its own arrays."""
    rows = {path: Row(path, _kind(module)) for path, module in submodules(model)}
    fixed = state_paths(model)
    for path, leaf in tree.named_leaves(model).items():
        owner = path
        while owner not in rows:
            owner = owner.rpartition(".")[0]
        size = type_of(leaf).size
        rows[owner].state += size if path in fixed else 0
        rows[owner].parameters += 0 if path in fixed else size
    return rows


def _trained(model: Module, program: Program) -> list[str]:
    """The names of the inputs that are parameters."""
    fixed = state_paths(model)
    pairs = zip(tree.named_leaves(model).items(), program.input_names, strict=False)
    return [name for (path, leaf), name in pairs if path not in fixed and is_float(type_of(leaf).dtype)]


def _add_costs(rows: dict[str, Row], program: Program, part: str, times: int = 1, inside: bool = False) -> None:
    """Add the cost of the equations of `program` that belong to `part`, or of all where the loop around does."""
    for equation in program.equations:
        own = inside or equation.source.part == part
        if equation.primitive.name in ("scan", "call"):
            for body in equation.programs:
                _add_costs(rows, body, part, times * equation.params.get("length", 1), own and part == "backward")
        elif own:
            path = equation.source.layer
            row = rows.setdefault(path, Row(path, path))
            kept = row.forward if part == "forward" else row.backward
            setattr(row, part, kept + equation_cost(equation) * times)
