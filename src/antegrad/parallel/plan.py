"""`plan`: a model of what a step costs on many devices. It measures nothing.

The programs are made for two ranks, on whatever machine. From them come the FLOPs, the collectives with their sizes and
the liveness of one rank; numbers for N ranks follow from the sizes alone, so that 16,384 cost no more than 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from antegrad import optim, tree
from antegrad.errors import SettingError, ShapeError
from antegrad.ir.cost import Collectives, equation_cost
from antegrad.ir.program import Equation, Program, Value
from antegrad.ir.types import accumulation_dtype
from antegrad.parallel.layout import Layout
from antegrad.parallel.programs import RankPrograms, rank_batch
from antegrad.parallel.report import LEVELS, Predicted, Profile, Training, profile
from antegrad.parallel.strategy import BUCKET_BYTES
from antegrad.runtime.mesh import Mesh
from antegrad.train.loop import types

BASE = 2
"""The number of ranks of the programs from which the numbers for others follow."""


@dataclass(frozen=True)
class Exchanged:
    """A collective of a step, done `times` times: its kind, and the elements of the tensors that travel together.

    `part` is that of the step in which it stands. `width` is the size of an element on the way, in bytes.
    """

    kind: str
    part: str
    sizes: tuple[int, ...]
    width: int
    times: int = 1

    def received(self, ranks: int) -> int:
        """Bytes that one of `ranks` gets from the others, over a ring."""
        if self.kind == "all_reduce":
            return 2 * (ranks - 1) * sum(self.sizes) * self.width // ranks
        return (ranks - 1) * sum(-(-size // ranks) for size in self.sizes) * self.width

    def seconds(self, ranks: int, bandwidth: float, latency: float) -> float:
        """The time of one of them: a ring has N - 1 hops, and an all-reduce goes round twice."""
        hops = (ranks - 1) * (2 if self.kind == "all_reduce" else 1)
        return self.received(ranks) / bandwidth + hops * latency


@dataclass(frozen=True)
class Scenario:
    """What is predicted for a strategy on `devices` devices.

    `seconds` is the time of a step where nothing that travels is hidden, and `overlapped` where as much is as can be.
    `fits` says whether `memory.total` is within the memory of a device; None where that was not given.
    """

    name: str
    devices: int
    compute: float
    communication: float
    exposed: float
    collectives: dict[str, Collectives]
    memory: Predicted
    fits: bool | None

    @property
    def seconds(self) -> float:
        return self.compute + self.communication

    @property
    def overlapped(self) -> float:
        return self.compute + self.exposed


@dataclass(frozen=True)
class Plan:
    """Predictions by strategy and number of devices; `str` is a table. `skipped` says of which sizes there are none."""

    scenarios: tuple[Scenario, ...]
    batch: str
    flops: float
    bandwidth: float
    latency: float
    memory: int | None
    skipped: str = ""

    def at(self, name: str, devices: int) -> Scenario:
        return next(each for each in self.scenarios if (each.name, each.devices) == (name, devices))

    def __str__(self) -> str:
        rows = [("devices", "", "compute ms", "ms, no overlap", "ms, full overlap", "MB received", "MB a device", "")]
        for each in self.scenarios:
            received = sum(kind.bytes for kind in each.collectives.values())
            rows.append((
                f"{each.devices:,}", each.name, _number(each.compute * 1e3), _number(each.seconds * 1e3),
                _number(each.overlapped * 1e3), _number(received / 1e6), _number(each.memory.total / 1e6),
                "does not fit" if each.fits is False else "",
            ))  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.rjust(n) for cell, n in zip(row, widths, strict=True)).rstrip() for row in rows]
        head = (
            f"a model, not a measurement: {self.flops:.3g} FLOP/s and {self.bandwidth:.3g} byte/s of each device, "
            f"{self.latency:.3g} s a hop, ring collectives; the batch is {self.batch}"
        )
        return "\n".join([head, *lines, *([self.skipped] if self.skipped else [])])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def plan(
    model: Any,
    loss: Callable[..., Any],
    optimizer: optim.Optimizer,
    x: Any,
    y: Any,
    *,
    flops: float,
    bandwidth: float,
    latency: float,
    batch: Literal["per device", "whole"],
    devices: Sequence[int] = (8, 64, 512, 4096, 16384),
    memory: int | None = None,
    bucket_bytes: int = BUCKET_BYTES,
    precision: Literal["f32", "bf16"] = "f32",
    accumulate: int = 1,
    clip_norm: float | None = None,
) -> Plan:
    """Time of a step and memory of a device for DDP and ZeRO-1, 2 and 3, by a model. Nothing is measured.

    The model: a rank computes its FLOPs at the rate `flops`, those of the optimizer for its shards. A collective over N
    ranks is a ring: it takes the bytes that a rank receives divided by `bandwidth`, and N - 1 hops of `latency`; an
    all-reduce of B bytes receives 2 (N - 1) / N B and goes round twice. One collective runs at a time. Without overlap
    all of them add to the time of computing. With full overlap those of the forward and of the backward pass (buckets
    of gradients, gathered parameters) run beside the computation of that pass, and cost what goes beyond it, but at
    least the last bucket of gradients or the first gathered one, which have nothing to run beside; all others add up.
    A real step lies between the two where the rates are right. Not in the model: the bandwidth of the memory, the
    topology of a network, slow ranks, other algorithms than rings.

    Arguments:
      model, loss, optimizer, precision, accumulate, clip_norm: as for `train.Trainer`.
      x, y: inputs and targets, arrays or their types.
      batch: "per device": `x` and `y` are what each device works on, whatever their number; "whole": they are divided
        among the devices, and numbers among which they do not divide are left out (see `Plan.skipped`).
      devices: numbers of devices, 1 or even.
      flops, bandwidth, latency: FLOP/s of a device, bytes/s that it receives, seconds of a hop between two devices.
      memory: bytes of a device; what needs more is marked.
      bucket_bytes: see `ddp`.
    Raises `SettingError` for settings that make no sense, `ShapeError` where no number of devices divides the batch.
    """
    _check(batch, devices, {"flops": flops, "bandwidth": bandwidth}, latency)
    training = Training.of(model, loss, optimizer, bucket_bytes, precision, accumulate, clip_norm)
    x, y = types((x, y))
    wanted = [(count, 1 if batch == "per device" else count) for count in devices]
    fitting = [(count, parts) for count, parts in wanted if _divides(x, parts * accumulate)]
    if not fitting:
        size = tree.leaves(x)[0].shape[0]
        raise ShapeError(f"plan: a batch of {size} divides among none of {tuple(devices)} devices")
    known: dict[tuple[int, int], _Step] = {}
    scenarios = []
    for count, parts in fitting:
        for level in LEVELS:
            key = level, parts
            if key not in known:
                own = rank_batch((x, y), parts, accumulate)
                known[key] = _Step.of(training.programs(level, Mesh(BASE, "host"), *own))
            scenarios.append(known[key].scenario(count, flops, bandwidth, latency, memory))
    left = [str(count) for count in devices if count not in dict(fitting)]
    skipped = f"the batch does not divide among {', '.join(left)} devices" if left else ""
    return Plan(tuple(scenarios), batch, flops, bandwidth, latency, memory, skipped)


def _check(batch: str, devices: Sequence[int], rates: dict[str, float], latency: float) -> None:
    if batch not in ("per device", "whole"):
        raise SettingError(f'plan: batch must be "per device" or "whole", found {batch!r}')
    for count in devices:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1 or (count > 1 and count % 2):
            raise SettingError(f"plan: numbers of devices must be 1 or even, found {count!r}")
    for name, rate in rates.items():
        if not rate > 0:
            raise SettingError(f"plan: {name} must be above 0, found {rate!r}")
    if latency < 0:
        raise SettingError(f"plan: latency must not be below 0, found {latency!r}")


def _divides(x: Any, parts: int) -> bool:
    return tree.leaves(x)[0].shape[0] % parts == 0


@dataclass(frozen=True)
class _Step:
    """What one rank does in a step, and holds, for any number of ranks."""

    programs: RankPrograms
    flops: dict[str, int]
    exchanged: tuple[Exchanged, ...]
    profile: Profile

    @classmethod
    def of(cls, programs: RankPrograms) -> _Step:
        flops: dict[str, int] = {}
        for equation, times in _equations(programs.step):
            part = equation.source.part
            own = 0 if equation.primitive.communicates else equation_cost(equation).flops * times
            flops[part] = flops.get(part, 0) + own
        return cls(programs, flops, tuple(_exchanged(programs.step)), profile(programs))

    def scenario(self, ranks: int, flops: float, bandwidth: float, latency: float, memory: int | None) -> Scenario:
        share = BASE / ranks if self.programs.strategy.level else 1.0
        seconds = {part: count * (share if part == "update" else 1.0) / flops for part, count in self.flops.items()}
        exchanged = self.exchanged if ranks > 1 else ()
        taken = [(each, each.seconds(ranks, bandwidth, latency)) for each in exchanged]
        found = self._memory(ranks)
        return Scenario(
            name=self.programs.strategy.name,
            devices=ranks,
            compute=sum(seconds.values()),
            communication=sum(one * each.times for each, one in taken),
            exposed=_exposed(taken, seconds),
            collectives=_collectives(exchanged, ranks),
            memory=found,
            fits=None if memory is None else found.total <= memory,
        )

    def _memory(self, ranks: int) -> Predicted:
        """That of `ranks` ranks: arrays and gradients in shards of their size, all else as for the two of the base."""
        programs, layout = self.programs, Layout(ranks)
        types, flags = programs.whole_types, programs.sharded
        parameters, optimizer = (
            sum(
                (layout.shard(type) if flag else type).nbytes
                for type, flag in zip(tree.leaves(types[name]), tree.leaves(flags[name]), strict=True)
            )
            for name in ("param", "opt")
        )
        gradients = self.profile.gradients
        if programs.strategy.level >= 2:
            gradients += sum(
                layout.shard(type).nbytes - programs.layout.shard(type).nbytes for type in types["param"].values()
            )
        own = Profile(parameters, optimizer, self.profile.inputs, self.profile.gradients, self.profile.course)
        return own.predicted(gradients)


def _exposed(taken: Sequence[tuple[Exchanged, float]], seconds: dict[str, float]) -> float:
    """The time of the collectives that nothing hides, with full overlap."""
    total = 0.0
    hidden: dict[str, list[tuple[float, int]]] = {"forward": [], "backward": []}
    for each, one in taken:
        gathered = each.kind == "all_gather" and each.part == "forward"
        if gathered or each.part == "backward":
            hidden[each.part].append((one, each.times))
        else:
            total += one * each.times
    for part, found in hidden.items():
        if found:
            # Gathers must come first, and gradients be exchanged last; of either, one has nothing to run beside.
            alone = found[0][0] if part == "forward" else found[-1][0]
            total += max(sum(one * times for one, times in found) - seconds.get(part, 0.0), alone)
    return total


def _collectives(exchanged: Sequence[Exchanged], ranks: int) -> dict[str, Collectives]:
    found: dict[str, Collectives] = {}
    for each in exchanged:
        own = Collectives(each.times, each.received(ranks) * each.times)
        found[each.kind] = found.get(each.kind, Collectives()) + own
    return found


def _equations(program: Program, times: int = 1) -> Iterator[tuple[Equation, int]]:
    """All equations without sub-programs, and how often each is done; a `cond` as one equation."""
    for equation in program.equations:
        if equation.programs and equation.primitive.name != "cond":
            for inner in equation.programs:
                yield from _equations(inner, times * equation.params.get("length", 1))
        else:
            yield equation, times


def _exchanged(program: Program, times: int = 1) -> Iterator[Exchanged]:
    """The collectives of a program for `BASE` ranks, in order."""
    producers = program.producers()
    for equation in program.equations:
        for inner in equation.programs:
            yield from _exchanged(inner, times * equation.params.get("length", 1))
        if equation.primitive.communicates and equation.inputs:
            (value,), kind = equation.inputs, equation.primitive.name
            dtype = value.type.dtype if kind == "all_gather" else accumulation_dtype(value.type.dtype)
            sizes = (value.type.size,) if kind == "all_reduce" else _tensors(value, producers)
            yield Exchanged(kind, equation.source.part, sizes, np.dtype(dtype).itemsize, times)


def _tensors(value: Value, producers: dict[Value, Equation]) -> tuple[int, ...]:
    """The elements of each tensor of a bucket that is scattered or gathered.

    They are those of both shards, with the filling: for an even number of ranks, shards of the tensor with the filling
    for two are as large as those of the tensor without.
    """
    producer = producers.get(value)
    if producer is not None and producer.primitive.name == "reshape" and value.type.shape[0] == 1:
        value = producer.inputs[0]
        producer = producers.get(value)
    axis = value.type.ndim - 1
    if producer is not None and producer.primitive.name == "concatenate" and producer.params["axis"] == axis:
        return tuple(BASE * each.type.shape[axis] for each in producer.inputs)
    return (BASE * prod(value.type.shape[axis:]),)
