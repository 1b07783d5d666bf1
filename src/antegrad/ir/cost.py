"""The cost model: FLOPs, bytes moved, live memory and collectives of a Program, by layer and in total."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from antegrad.ir.program import Equation, Program, Value, provide

Key = tuple[str, str]
"""A layer path and a part of the training step."""
INPUTS: Key = ("inputs", "")


@dataclass
class Cost:
    """FLOPs, bytes read and written, and bytes that come from other ranks, of some equations of one rank."""

    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_received: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            self.bytes_received + other.bytes_received,
        )

    def __mul__(self, times: int) -> Cost:
        return Cost(
            self.flops * times, self.bytes_read * times, self.bytes_written * times, self.bytes_received * times
        )

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True)
class Collectives:
    """How many collectives of one kind a rank takes part in, and the bytes that it gets from the other ranks."""

    count: int = 0
    bytes: int = 0

    def __add__(self, other: Collectives) -> Collectives:
        return Collectives(self.count + other.count, self.bytes + other.bytes)

    def __mul__(self, times: int) -> Collectives:
        return Collectives(self.count * times, self.bytes * times)


@dataclass
class CostReport:
    """The cost of a Program as it is written: no fusion, every equation reads its operands and writes its results.

    `by_layer` is keyed by (layer path, part), as in ``("0", "backward")``. `peak_bytes` is the most memory that values
    are alive in at one time, inputs included, with every value freed after its last use; `live_by_layer` says how much
    of it is made by each layer, under the same keys, and under ``("inputs", "")`` what is given. `activation_bytes` is
    what a gradient keeps of the forward pass for the backward pass, without what depends on the parameters alone (the
    inputs that have a gradient). Views (`reshape` and broadcasts) take no memory. `collectives` counts what one rank
    exchanges with others, by the name of the primitive; loops count as in `total`.
    """

    program: str
    total: Cost = field(default_factory=Cost)
    by_layer: dict[tuple[str, str], Cost] = field(default_factory=dict)
    peak_bytes: int = 0
    live_by_layer: dict[Key, int] = field(default_factory=dict)
    activation_bytes: int = 0
    collectives: dict[str, Collectives] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = [("layer", "part", "FLOPs", "bytes read", "bytes written", "live at the peak")]
        for key in dict.fromkeys((*self.by_layer, *self.live_by_layer)):
            layer, part = key
            numbers = _numbers(self.by_layer.get(key, Cost()), self.live_by_layer.get(key, 0))
            rows.append((layer or "-", part, *numbers))
        rows.append(("total", "", *_numbers(self.total, self.peak_bytes)))
        lines = [f"cost of {self.program}", *_aligned(rows, 2)]
        if self.collectives:
            kinds = [(kind, f"{each.count:,}", f"{each.bytes:,}") for kind, each in self.collectives.items()]
            lines += _aligned([("collective", "count", "bytes received"), *kinds], 1)
        return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]], texts: int) -> list[str]:
    """The rows of a table; the first `texts` columns to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    formats = [f"{{:{'<' if i < texts else '>'}{width}}}" for i, width in enumerate(widths)]
    return ["  ".join(formats).format(*row) for row in rows]


def _numbers(cost: Cost, live: int) -> tuple[str, str, str, str]:
    return f"{cost.flops:,}", f"{cost.bytes_read:,}", f"{cost.bytes_written:,}", f"{live:,}"


def equation_cost(equation: Equation) -> Cost:
    """The cost of one equation; control flow costs its sub-programs, a `scan` as often as it has steps.

    A `cond` counts its most expensive branch, a `while` one step.
    """
    return _measured(equation)[0]


def _measured(equation: Equation) -> tuple[Cost, dict[str, Collectives]]:
    """The cost of one equation, and its collectives by kind."""
    if not equation.programs:
        return _single(equation)
    reports = [cost(program) for program in equation.programs]
    if equation.primitive.name == "cond":
        dearest = max(reports, key=lambda each: (each.total.flops, each.total.bytes, each.total.bytes_received))
        return dearest.total, dearest.collectives
    times = equation.params.get("length", 1)
    total, collectives = Cost(), {}
    for report in reports:
        total = total + report.total * times
        _add(collectives, {kind: each * times for kind, each in report.collectives.items()})
    return total, collectives


def _single(equation: Equation) -> tuple[Cost, dict[str, Collectives]]:
    """`_measured` for an equation without sub-programs."""
    primitive = equation.primitive
    read, written = (sum(type.nbytes for type in types) for types in (equation.input_types, equation.output_types))
    received = primitive.received(equation)
    # What only asks for the number of the rank exchanges nothing.
    exchanges = primitive.communicates and bool(equation.inputs)
    own = {primitive.name: Collectives(1, received)} if exchanges else {}
    return Cost(primitive.flops(equation), read, written, received), own


def _add(total: dict[str, Collectives], more: Mapping[str, Collectives]) -> None:
    for kind, each in more.items():
        total[kind] = total.get(kind, Collectives()) + each


def cost(program: Program) -> CostReport:
    """FLOPs, bytes, peak live memory and collectives of `program`."""
    report = CostReport(
        program.name,
        peak_bytes=peak_live_bytes(program),
        live_by_layer=live_at_peak(program),
        activation_bytes=activation_bytes(program),
    )
    for equation in program.equations:
        own, collectives = _measured(equation)
        key = (equation.source.layer, equation.source.part)
        report.total = report.total + own
        report.by_layer[key] = report.by_layer.get(key, Cost()) + own
        _add(report.collectives, collectives)
    return report


VIEWS = frozenset({"reshape", "broadcast_in_dim"})
"""Primitives whose result is the memory of their operand read in another way, by NumPy and inside what XLA fuses."""


def peak_live_bytes(program: Program) -> int:
    """The most bytes alive at one time: inputs and outputs throughout, the rest from definition to last use."""
    return _peak(program)[0]


def live_at_peak(program: Program) -> dict[Key, int]:
    """The bytes alive when most are, by the layer and part that made them."""
    _, place = _peak(program)
    last_use, owners = _last_uses(program), memory_owners(program)
    live = {INPUTS: total_bytes(program.inputs)} if program.inputs else {}
    for position, equation in enumerate(program.equations[: place + 1]):
        own = [value for value in equation.outputs if value not in owners]
        alive = [value for value in own if position == place or last_use.get(value, -1) >= place]
        inner = max((peak_live_bytes(sub) for sub in equation.programs), default=0) if position == place else 0
        key = equation.source.layer, equation.source.part
        live[key] = live.get(key, 0) + total_bytes(alive) + inner
    return live


def activation_bytes(program: Program) -> int:
    """What is alive where the backward pass begins and depends on an input that has no gradient; 0 without one."""
    backward = (place for place, equation in enumerate(program.equations) if equation.source.part == "backward")
    start = next(backward, None)
    if start is None:
        return 0
    names = zip(program.inputs, program.input_names, strict=True)
    dependent = {value for value, name in names if f"d_{name}" not in program.output_names}
    owners = memory_owners(program)
    read = {owners.get(v, v) for equation in program.equations[start:] for v in equation.inputs}
    kept = 0
    for equation in program.equations[:start]:
        if dependent.intersection(equation.inputs):
            dependent.update(equation.outputs)
            kept += total_bytes(read.intersection(equation.outputs))
    return kept


def memory_owners(program: Program) -> dict[Value, Value]:
    """For each result of a view the value whose memory it is. A view that is a result of the program has its own."""
    owners: dict[Value, Value] = {}
    for equation in program.equations:
        if equation.primitive.name in VIEWS and equation.outputs[0] not in program.outputs:
            operand = equation.inputs[0]
            owners[equation.outputs[0]] = owners.get(operand, operand)
    return owners


def _last_uses(program: Program) -> dict[Value, int]:
    """The position of the last equation that reads the memory of a value; the end for inputs and outputs."""
    owners, last = memory_owners(program), {}
    for position, equation in enumerate(program.equations):
        last.update({owners.get(value, value): position for value in equation.inputs})
    end = len(program.equations)
    return last | dict.fromkeys((*program.inputs, *(owners.get(v, v) for v in program.outputs)), end)


def total_bytes(values: Iterable[Value]) -> int:
    """Bytes of all `values` together."""
    return sum(value.type.nbytes for value in values)


def _peak(program: Program) -> tuple[int, int]:
    """The most bytes alive at one time, and the position of the equation at which they are (-1: before the first)."""
    last_use, owners = _last_uses(program), memory_owners(program)
    live = peak = total_bytes(program.inputs)
    place = -1
    for position, equation in enumerate(program.equations):
        inner = max((peak_live_bytes(sub) for sub in equation.programs), default=0)
        live += total_bytes(value for value in equation.outputs if value not in owners)
        if live + inner > peak:
            peak, place = live + inner, position
        read = {owners.get(value, value) for value in (*equation.inputs, *equation.outputs)}
        live -= total_bytes(value for value in read if last_use.get(value, -1) <= position)
    return peak, place


provide("cost", cost)
