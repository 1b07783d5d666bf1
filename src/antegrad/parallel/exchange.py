"""The sharding pass for gradients: from a gradient on a rank's own samples to that on the samples of all ranks.

The collectives stand where their operands are ready: a bucket of gradients is summed as soon as the last of them is
known, while the backward pass goes on to the layers before it. Sharded parameters are gathered just before their first
use, in the forward pass and once more in the backward pass, so that between the two no rank holds them whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from antegrad import ops
from antegrad.ir.builder import Builder
from antegrad.ir.program import Equation, Program, Source, Value
from antegrad.ops.dispatch import lift, tracing
from antegrad.ops.tensor import Tensor
from antegrad.parallel.layout import Layout, buckets
from antegrad.passes.simplify import simplify


@dataclass(frozen=True)
class Exchange:
    """What is exchanged of a gradient program, by the positions of its inputs and outputs.

    - `summed`: outputs of which the sum over the ranks is wanted, such as losses and counts.
    - `averaged`: outputs of which the mean is wanted, such as running statistics.
    - `largest`: integer outputs of which the largest is wanted, such as counters that the layers keep.
    - `gradients`: outputs that are summed in buckets; with `scatter` each rank keeps its shards of the sums.
    - `unread`: such that nothing will read. Each is a bucket of its own, which goes with it when it is eliminated.
    - `gathered`: inputs that are shards, and are gathered where they are used.
    """

    layout: Layout
    bucket_bytes: int
    summed: tuple[int, ...] = ()
    averaged: tuple[int, ...] = ()
    largest: tuple[int, ...] = ()
    gradients: tuple[int, ...] = ()
    unread: tuple[int, ...] = ()
    scatter: bool = False
    gathered: tuple[int, ...] = ()


def exchanged(program: Program, plan: Exchange) -> Program:
    """`program` with the collectives that `plan` asks for."""
    return simplify(_Pass(program, plan).run())


class _Pass:
    """One application: the equations are copied, and collectives put in at their places."""

    def __init__(self, program: Program, plan: Exchange) -> None:
        self.program, self.plan, self.layout = program, plan, plan.layout
        self.builder = Builder()
        self.env: dict[Value, Any] = {}
        self.results: dict[int, Any] = {}
        self.backward = _backward_start(program)
        self.shards: dict[Value, Any] = {}
        for position, (value, name) in enumerate(zip(program.inputs, program.input_names, strict=True)):
            is_shard = position in plan.gathered
            type = self.layout.shard(value.type) if is_shard else value.type
            (self.shards if is_shard else self.env)[value] = Tensor(self.builder.input(type, name), self.builder)
        self.before = self._gathers()
        self.after = self._reductions()

    def run(self) -> Program:
        program = self.program
        with tracing(self.builder):
            for position, equation in enumerate(program.equations):
                self._do(self.before.pop(position, ()), equation.source)
                self._copy(equation)
                self._do(self.after.pop(position, ()), equation.source)
            for late in (self.before, self.after):
                for actions in late.values():
                    self._do(actions, Source(part="backward"))
            outputs = [self.results.get(i, self.env.get(value)) for i, value in enumerate(program.outputs)]
            values = [lift(self.builder, output) for output in outputs]
        return Program(
            name=program.name,
            inputs=tuple(self.builder.inputs),
            input_names=tuple(self.builder.input_names),
            outputs=tuple(values),
            output_names=program.output_names,
            equations=tuple(self.builder.equations),
            captured=program.captured,
        )

    def _do(self, actions: Iterable[Callable[[], None]], source: Source) -> None:
        self.builder.source = Source(source.file, source.line, "", source.part)
        for action in actions:
            action()

    def _copy(self, equation: Equation) -> None:
        inputs = [lift(self.builder, self.env[value]) for value in equation.inputs]
        outputs = self.builder.add(equation.primitive, inputs, equation.params, equation.source)
        for old, new in zip(equation.outputs, outputs, strict=True):
            new.name, new.declared = old.name, old.declared
            self.env[old] = Tensor(new, self.builder)

    # parameters

    def _gathers(self) -> dict[int, list[Callable[[], None]]]:
        """By the equation before which they stand: the gathers for the forward pass, and for the backward pass."""
        actions: dict[int, list[Callable[[], None]]] = {}
        end = len(self.program.equations)
        for again, span in enumerate((range(self.backward), range(self.backward, end))):
            first = self._first_uses(span)
            values = sorted(first, key=lambda value: first[value])
            for bucket in buckets([value.type for value in values], self.plan.bucket_bytes):
                own = [values[i] for i in bucket]
                place = min(first[value] for value in own)
                actions.setdefault(place, []).append(self._gather(own, bool(again)))
        unread = [value for value in self.shards if value in self.program.outputs]
        if unread:
            actions.setdefault(end, []).append(self._gather(unread, True))
        return actions

    def _first_uses(self, span: range) -> dict[Value, int]:
        """Where in a span of equations each sharded input is read first."""
        first: dict[Value, int] = {}
        for position in span:
            for value in self.program.equations[position].inputs:
                if value in self.shards:
                    first.setdefault(value, position)
        return first

    def _gather(self, values: Sequence[Value], again: bool) -> Callable[[], None]:
        def action() -> None:
            shards = [self.shards[value] for value in values]
            # or else it would be merged with the gather of the forward pass, whose result would have to be kept
            shards = list(ops.optimization_barrier(*shards)) if again else shards
            wholes = self.layout.all_gather(shards, [value.type for value in values])
            for value, whole in zip(values, wholes, strict=True):
                self.env[value] = _labelled(whole, self.shards[value].value.name)

        return action

    # results

    def _reductions(self) -> dict[int, list[Callable[[], None]]]:
        """By the equation after which they stand: the collectives for the outputs."""
        places = {value: place for place, eq in enumerate(self.program.equations) for value in eq.outputs}
        end, outputs, plan = len(self.program.equations), self.program.outputs, self.plan
        place = [places.get(value, end) for value in outputs]
        actions: dict[int, list[Callable[[], None]]] = {}

        def add(positions: list[int], action: Callable[[list[int]], None], limit: int) -> None:
            positions = sorted(positions, key=lambda position: place[position])
            for bucket in buckets([outputs[position].type for position in positions], limit):
                own = [positions[i] for i in bucket]
                actions.setdefault(max(place[i] for i in own), []).append(partial(action, own))

        add([*plan.summed, *plan.averaged], self._sum, plan.bucket_bytes)
        for position in plan.largest:
            actions.setdefault(place[position], []).append(partial(self._largest, position))
        for group in ([*plan.gradients], *([position] for position in plan.unread)):
            add(group, self._scatter if plan.scatter else self._sum, plan.bucket_bytes)
        return actions

    def _sum(self, positions: list[int]) -> None:
        parts = [self.env[self.program.outputs[position]] for position in positions]
        shares = [self.layout.share(x) if i in self.plan.averaged else x for i, x in zip(positions, parts, strict=True)]
        for position, total in zip(positions, self.layout.all_reduce(shares), strict=True):
            self.results[position] = _labelled(total, self.program.output_names[position])

    def _largest(self, position: int) -> None:
        self.results[position] = self.layout.largest(self.env[self.program.outputs[position]])

    def _scatter(self, positions: list[int]) -> None:
        shards = self.layout.reduce_scatter([self.env[self.program.outputs[position]] for position in positions])
        for position, shard in zip(positions, shards, strict=True):
            self.results[position] = _labelled(shard, self.program.output_names[position])


def _backward_start(program: Program) -> int:
    """The position of the first equation of the backward pass."""
    equations = enumerate(program.equations)
    return next((place for place, equation in equations if equation.source.part == "backward"), len(program.equations))


def _labelled(tensor: Any, name: str | None) -> Any:
    return ops.name(tensor, name) if isinstance(tensor, Tensor) and name and tensor.value.name is None else tensor
