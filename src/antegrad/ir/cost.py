"""The cost model: FLOPs, bytes moved and live memory of a Program, by layer and in total."""

from __future__ import annotations

from dataclasses import dataclass, field

from antegrad.ir.program import Equation, Program, Value, provide

Key = tuple[str, str]
"""A layer path and a part of the training step."""
INPUTS: Key = ("inputs", "")


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
    are alive in at one time, inputs included, with every value freed after its last use; `live_by_layer` says how much
    of it is made by each layer, under the same keys, and under ``("inputs", "")`` what is given.
    """

    program: str
    total: Cost = field(default_factory=Cost)
    by_layer: dict[tuple[str, str], Cost] = field(default_factory=dict)
    peak_bytes: int = 0
    live_by_layer: dict[Key, int] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = [("layer", "part", "FLOPs", "bytes read", "bytes written", "live at the peak")]
        for key in dict.fromkeys((*self.by_layer, *self.live_by_layer)):
            layer, part = key
            numbers = _numbers(self.by_layer.get(key, Cost()), self.live_by_layer.get(key, 0))
            rows.append((layer or "-", part, *numbers))
        rows.append(("total", "", *_numbers(self.total, self.peak_bytes)))
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        formats = [f"{{:{'<' if i < 2 else '>'}{width}}}" for i, width in enumerate(widths)]
        lines = ["  ".join(formats).format(*row) for row in rows]
        return "\n".join([f"cost of {self.program}", *lines])


def _numbers(cost: Cost, live: int) -> tuple[str, str, str, str]:
    return f"{cost.flops:,}", f"{cost.bytes_read:,}", f"{cost.bytes_written:,}", f"{live:,}"


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
    report = CostReport(program.name, peak_bytes=peak_live_bytes(program), live_by_layer=live_at_peak(program))
    for equation in program.equations:
        own = equation_cost(equation)
        key = (equation.source.layer, equation.source.part)
        report.total = report.total + own
        report.by_layer[key] = report.by_layer.get(key, Cost()) + own
    return report


def peak_live_bytes(program: Program) -> int:
    """The most bytes alive at one time: inputs and outputs throughout, the rest from definition to last use."""
    return _peak(program)[0]


def live_at_peak(program: Program) -> dict[Key, int]:
    """The bytes alive when most are, by the layer and part that made them."""
    _, place = _peak(program)
    last_use, kept = _last_uses(program), set(program.outputs)
    live = {INPUTS: sum(value.type.nbytes for value in program.inputs)} if program.inputs else {}
    for position, equation in enumerate(program.equations[: place + 1]):
        alive = [v for v in equation.outputs if v in kept or position == place or last_use.get(v, -1) >= place]
        inner = max((peak_live_bytes(sub) for sub in equation.programs), default=0) if position == place else 0
        key = equation.source.layer, equation.source.part
        live[key] = live.get(key, 0) + sum(value.type.nbytes for value in alive) + inner
    return live


def _last_uses(program: Program) -> dict[Value, int]:
    last: dict[Value, int] = {}
    for position, equation in enumerate(program.equations):
        last.update(dict.fromkeys(equation.inputs, position))
    return last


def _peak(program: Program) -> tuple[int, int]:
    """The most bytes alive at one time, and the position of the equation at which they are (-1: before the first)."""
    last_use = _last_uses(program)
    kept = set(program.inputs) | set(program.outputs)
    live = peak = sum(value.type.nbytes for value in program.inputs)
    place = -1
    for position, equation in enumerate(program.equations):
        inner = max((peak_live_bytes(sub) for sub in equation.programs), default=0)
        live += sum(value.type.nbytes for value in equation.outputs)
        if live + inner > peak:
            peak, place = live + inner, position
        dying = {v for v in (*equation.inputs, *equation.outputs) if v not in kept and last_use.get(v, -1) <= position}
        live -= sum(value.type.nbytes for value in dying)
    return peak, place


provide("cost", cost)
