"""The sharding pass for updates: from a program on whole arrays to that of one rank, which works on its shards.

What is elementwise is done on shards, a sum over everything by one number from each rank, and all else on whole arrays
that are gathered for it. So every optimizer can be sharded, and none has to know of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.ir.builder import Builder
from antegrad.ir.names import identifier
from antegrad.ir.program import Equation, Program, Source, Value
from antegrad.ir.types import is_float
from antegrad.ops.dispatch import bind, lift, tracing
from antegrad.ops.reduce import reduce_max, reduce_min, reduce_sum
from antegrad.ops.shape import broadcast_in_dim, reshape_p
from antegrad.ops.tensor import Tensor
from antegrad.parallel.layout import Layout, after, buckets
from antegrad.passes.simplify import simplify

REDUCED = {reduce_sum: "sum", reduce_max: "max", reduce_min: "min"}
"""Reductions of a whole array to one number, which every rank makes of its shard."""


def partition(
    program: Program, layout: Layout, inputs: Sequence[bool], outputs: Sequence[bool], bucket_bytes: int
) -> Program:
    """`program` for one rank: the inputs and outputs that are flagged are its shards, the others whole on every rank.

    Whole outputs that were made on shards are gathered in buckets of at most `bucket_bytes`.
    """
    if layout.ranks == 1 and not any((*inputs, *outputs)):
        return program
    return simplify(_Partition(program, layout, inputs).run(outputs, bucket_bytes))


class _Partition:
    """One application of the pass. A value is known as a whole, as a shard, or as both.

    A sum over shards is first known as this rank's part of it. Parts are added as they are, so that a norm over many
    tensors takes one collective.
    """

    def __init__(self, program: Program, layout: Layout, flags: Sequence[bool]) -> None:
        self.program, self.layout = program, layout
        self.builder = Builder(source=Source(part="update"))
        self.producers = program.producers()
        self.wholes: dict[Value, Any] = {}
        self.shards: dict[Value, Any] = {}
        self.parts: dict[Value, Any] = {}
        self.sharded: set[Value] = set()
        flags = [*flags, *[False] * len(program.captured)]
        for value, name, flag in zip(program.inputs, program.input_names, flags, strict=True):
            type = layout.shard(value.type) if flag else value.type
            known = self.shards if flag else self.wholes
            known[value] = Tensor(self.builder.input(type, name), self.builder)
            if flag:
                self.sharded.add(value)

    def run(self, flags: Sequence[bool], bucket_bytes: int) -> Program:
        with tracing(self.builder):
            for equation in self.program.equations:
                self.builder.source = equation.source
                self._equation(equation)
            self.builder.source = Source(part="update")
            pairs = list(zip(self.program.outputs, flags, strict=True))
            self._gather([value for value, flag in pairs if not flag], bucket_bytes)
            results = [self.shard(value) if flag else self.whole(value) for value, flag in pairs]
            values = [lift(self.builder, result) for result in results]
        return Program(
            name=self.program.name,
            inputs=tuple(self.builder.inputs),
            input_names=tuple(self.builder.input_names),
            outputs=tuple(values),
            output_names=self.program.output_names,
            equations=tuple(self.builder.equations),
            captured=self.program.captured,
        )

    def whole(self, value: Value) -> Any:
        """The whole of a value; gathered, or added over the ranks, at its first use."""
        if value in self.parts and value not in self.wholes:
            self.wholes[value] = ops.all_reduce(self.parts[value], self.layout.ranks)
        elif value not in self.wholes:
            (self.wholes[value],) = self.layout.all_gather([self.shards[value]], [value.type])
        return self.wholes[value]

    def shard(self, value: Value) -> Any:
        """This rank's shard of a value; what one number fills is made in the size of a shard."""
        if value not in self.shards:
            producer = self.producers.get(value)
            if producer is not None and producer.primitive is broadcast_in_dim and producer.inputs[0].type.size == 1:
                number = ops.reshape(self.whole(producer.inputs[0]), ())
                self.shards[value] = ops.broadcast_to(number, (self.layout.chunk(value.type),))
            else:
                own = self.layout.own(self.whole(value))
                self.shards[value] = ops.name(own, f"own_{identifier(value.name)}") if value.name else own
        return self.shards[value]

    def _equation(self, equation: Equation) -> None:
        if equation.primitive is ops.add and all(value in self.parts for value in equation.inputs):
            self.parts[equation.output] = ops.add(*(self.parts[value] for value in equation.inputs))
        elif not self.sharded.intersection(equation.inputs):
            self._on_wholes(equation)
        elif equation.primitive.elementwise:
            self._keep(equation, bind(equation.primitive, *map(self.shard, equation.inputs), **equation.params))
        elif equation.primitive is reshape_p:
            self._keep(equation, self.shard(equation.inputs[0]))
        elif equation.primitive in REDUCED and not equation.output.type.ndim:
            self._reduce(equation)
        else:
            self._on_wholes(equation)
        for value in equation.outputs:
            self._name(value)

    def _keep(self, equation: Equation, shard: Any) -> None:
        self.shards[equation.output] = shard
        self.sharded.add(equation.output)

    def _on_wholes(self, equation: Equation) -> None:
        results = bind(equation.primitive, *map(self.whole, equation.inputs), **equation.params)
        results = results if equation.primitive.multiple_results else (results,)
        self.wholes.update(zip(equation.outputs, results, strict=True))

    def _reduce(self, equation: Equation) -> None:
        """A reduction over all elements: of this rank's shard without its filling, then over the ranks."""
        (value,), primitive = equation.inputs, equation.primitive
        shard = self.shard(value)
        if self.layout.padded(value.type) != value.type.size:
            shard = ops.where(self.layout.inside(value.type), shard, _neutral(primitive, shard.dtype))
        part = bind(primitive, shard, axes=(0,))
        if primitive is reduce_sum:
            self.parts[equation.output] = part
        else:
            self.wholes[equation.output] = ops.all_reduce(part, self.layout.ranks, REDUCED[primitive])

    def _gather(self, values: Sequence[Value], bucket_bytes: int) -> None:
        """Gather what is known as shards alone, in buckets.

        A bucket waits for the one before, or else all new shards could be there before the first is gathered, while the
        gradients are still needed.
        """
        before: list[Any] = []
        known = {*self.wholes, *self.parts}
        missing = [value for value in dict.fromkeys(values) if value not in known]
        for bucket in buckets([value.type for value in missing], bucket_bytes):
            own = [missing[position] for position in bucket]
            types = [value.type for value in own]
            shards = [after(self.shards[value], *before) for value in own]
            before = self.layout.all_gather(shards, types)
            self.wholes.update(zip(own, before, strict=True))

    def _name(self, value: Value) -> None:
        for tensor in (self.shards.get(value), self.wholes.get(value), self.parts.get(value)):
            if isinstance(tensor, Tensor) and value.name and tensor.value.name is None:
                tensor.value.name, tensor.value.declared = value.name, value.declared


def _neutral(primitive: Any, dtype: np.dtype) -> Any:
    """What changes no result of a reduction."""
    if primitive is reduce_sum:
        return np.zeros((), dtype)
    sign = -1 if primitive is reduce_max else 1
    if is_float(dtype):
        return np.asarray(sign * np.inf, dtype)
    info = np.iinfo(dtype)
    return np.asarray(info.min if sign < 0 else info.max, dtype)
