"""The cost model: FLOPs, bytes moved and live memory of a Program, by layer and in total."""

from __future__ import annotations

from dataclasses import dataclass, field

from antegrad.ir.program import Equation, Program, Value, provide


@dataclass
class Cost:
    """FLOPs, and bytes read and written, of some equations."""

    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )

    def __mul__(self, times: int) -> Cost:
        return Cost(self.flops * times, self.bytes_read * times, self.bytes_written * times)

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written


@dataclass
class CostReport:
    """The cost of a Program as it is written: no fusion, every equation reads its operands and writes its results.

    `by_layer` is keyed by (layer path, part), as in ``("0", "backward")``. `peak_bytes` is the most memory that values
    are alive in at one time, inputs included, with every value freed after its last use.
    """

    program: str
    total: Cost = field(default_factory=Cost)
    by_layer: dict[tuple[str, str], Cost] = field(default_factory=dict)
    peak_bytes: int = 0

    def __str__(self) -> str:
        rows = [("layer", "part", "FLOPs", "bytes read", "bytes written")]
        for (layer, part), cost in self.by_layer.items():
            rows.append((layer or "-", part, *_numbers(cost)))
        rows.append(("total", "", *_numbers(self.total)))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        formats = [f"{{:{'<' if i < 2 else '>'}{width}}}" for i, width in enumerate(widths)]
        lines = ["  ".join(formats).format(*row) for row in rows]
        return "\n".join([f"cost of {self.program}", *lines, f"peak live memory: {self.peak_bytes:,} bytes"])


def _numbers(cost: Cost) -> tuple[str, str, str]:
    return f"{cost.flops:,}", f"{cost.bytes_read:,}", f"{cost.bytes_written:,}"


def equation_cost(equation: Equation) -> Cost:
    """The cost of one equation; control flow costs its sub-programs, a `scan` as often as it has steps.

    A `cond` counts its most expensive branch, a `while` one step.
    """
    if not equation.programs:
        read = sum(type.nbytes for type in equation.input_types)
        return Cost(equation.primitive.flops(equation), read, sum(type.nbytes for type in equation.output_types))
    costs = [cost(program).total for program in equation.programs]
    if equation.primitive.name == "cond":
        return max(costs, key=lambda inner: (inner.flops, inner.bytes))
    return sum(costs, Cost()) * equation.params.get("length", 1)


def cost(program: Program) -> CostReport:
    """FLOPs, bytes and peak live memory of `program`."""
    report = CostReport(program.name, peak_bytes=peak_live_bytes(program))
    for equation in program.equations:
        own = equation_cost(equation)
        key = (equation.source.layer, equation.source.part)
        report.total = report.total + own
        report.by_layer[key] = report.by_layer.get(key, Cost()) + own
    return report


def peak_live_bytes(program: Program) -> int:
    """The most bytes alive at one time: inputs and outputs throughout, the rest from definition to last use."""
    last_use: dict[Value, int] = {}
    for position, equation in enumerate(program.equations):
        last_use.update(dict.fromkeys(equation.inputs, position))
    kept = set(program.inputs) | set(program.outputs)
    live = peak = sum(value.type.nbytes for value in program.inputs)
    for position, equation in enumerate(program.equations):
        inner = max((peak_live_bytes(sub) for sub in equation.programs), default=0)
        live += sum(value.type.nbytes for value in equation.outputs)
        peak = max(peak, live + inner)
        dying = {v for v in (*equation.inputs, *equation.outputs) if v not in kept and last_use.get(v, -1) <= position}
        live -= sum(value.type.nbytes for value in dying)
    return peak


provide("cost", cost)
