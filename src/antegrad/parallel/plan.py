"""`plan`: a model of what a step costs on many devices. It measures nothing.

The programs are made for two ranks, on whatever machine. From them come the FLOPs, the collectives with their sizes and
the liveness of one rank; numbers for N ranks follow from the sizes alone, so that 16,384 cost no more than 8. What is
divided of the work of an optimizer shows in the difference to its update for four ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from antegrad import optim, tree
from antegrad.errors import NameMissing, SettingError, ShapeError
from antegrad.ir.cost import Collectives, equation_cost
from antegrad.ir.program import Equation, Program, Value
from antegrad.ir.types import accumulation_dtype
from antegrad.optim import settings
from antegrad.parallel.layout import Layout
from antegrad.parallel.programs import RankPrograms, rank_batch
from antegrad.parallel.report import LEVELS, Predicted, Profile, Training, batch_types, profile
from antegrad.parallel.strategy import BUCKET_BYTES
from antegrad.runtime.mesh import Mesh

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
    memory: float | None
    skipped: str = ""

    def at(self, name: str, devices: int) -> Scenario:
        for each in self.scenarios:
            if (each.name, each.devices) == (name, devices):
                return each
        names = ", ".join(dict.fromkeys(each.name for each in self.scenarios))
        counts = ", ".join(dict.fromkeys(str(each.devices) for each in self.scenarios))
        raise NameMissing(f"the plan has no {name!r} on {devices!r} devices, it has {names} on {counts}")

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
    devices: int | Sequence[int] = (8, 64, 512, 4096, 16384),
    memory: float | None = None,
    bucket_bytes: int = BUCKET_BYTES,
    precision: Literal["f32", "bf16"] = "f32",
    accumulate: int = 1,
    clip_norm: float | None = None,
) -> Plan:
    """Time of a step and memory of a device for DDP and ZeRO-1, 2 and 3, by a model. Nothing is measured.

    The model: a rank computes its FLOPs at the rate `flops`. Those of the optimizer are of its shards, and of the whole
    arrays where it works on whole ones, such as the matrices of Muon: a constant and a share of N ranks, which follow
    from the updates for two and for four. A collective over N
    ranks is a ring: it takes the bytes that a rank receives divided by `bandwidth`, and N - 1 hops of `latency`; an
    all-reduce of B bytes receives 2 (N - 1) / N B and goes round twice. One collective runs at a time. Without overlap
    all of them add to the time of computing. With full overlap those of the forward and of the backward pass (buckets
    of gradients, gathered parameters) run beside the computation of that pass, and cost what goes beyond it, but at
    least the last bucket of gradients or the first gathered one, which have nothing to run beside; all others add up.
    A real step lies between the two where the rates are right. Not in the model: the bandwidth of the memory, the
    topology of a network, slow ranks, other algorithms than rings. Temporary memory is that of two ranks, but for
    gradients.

    It is of the step alone. Not in it: the data of a training, of which a device holds its part or the batches that
    come next, and the exchange of the rows of a batch where they are drawn from data that is divided.

    Arguments:
      model, loss, optimizer, precision, accumulate, clip_norm: as for `train.Trainer`.
      x, y: inputs and targets, arrays or their types.
      batch: "per device": `x` and `y` are what each device works on, whatever their number; "whole": they are divided
        among the devices, and numbers among which they do not divide are left out (see `Plan.skipped`).
      devices: a number of devices or several, each 1 or even.
      flops, bandwidth, latency: FLOP/s of a device, bytes/s that it receives, seconds of a hop between two devices.
      memory: bytes of a device, above 0; what needs more is marked.
      bucket_bytes: see `ddp`.
    Raises `SettingError` for arguments that make no sense, `ShapeError` where `x` and `y` are not of one batch or no
    number of devices divides it.
    """
    settings.choice("plan", "batch", batch, ("per device", "whole"))
    counts = _counts(devices)
    flops, bandwidth = (
        settings.number("plan", name, rate, "(0, inf]") for name, rate in (("flops", flops), ("bandwidth", bandwidth))
    )
    latency = settings.number("plan", "latency", latency, "[0, inf)")
    if memory is not None:
        settings.number("plan", "memory", memory, "(0, inf)")
    training = Training.of(model, loss, optimizer, bucket_bytes, precision, accumulate, clip_norm, "plan")
    types = batch_types("plan", x, y)
    size = tree.leaves(types)[0].shape[0]
    wanted = [(count, 1 if batch == "per device" else count) for count in counts]
    fitting = [(count, parts) for count, parts in wanted if not size % (parts * training.accumulate)]
    if not fitting:
        raise ShapeError(f"plan: a batch of {size} divides among none of {counts} devices")
    steps = _Steps(training, types)
    scenarios = tuple(
        steps.at(level, parts).scenario(count, flops, bandwidth, latency, memory)
        for count, parts in fitting
        for level in LEVELS
    )
    left = [str(count) for count in counts if count not in dict(fitting)]
    skipped = f"the batch does not divide among {', '.join(left)} devices" if left else ""
    return Plan(scenarios, batch, flops, bandwidth, latency, memory, skipped)


def _counts(devices: Any) -> tuple[int, ...]:
    """The numbers of devices that are asked for."""
    several = [devices] if isinstance(devices, (int, np.integer)) else devices
    if isinstance(several, str) or not isinstance(several, Iterable) or not (found := tuple(several)):
        settings.refuse("plan", "devices", "a number of devices or several", devices)
    counts = tuple(settings.whole("plan", "devices", count, 1) for count in found)
    for count in counts:
        if count > 1 and count % 2:
            raise SettingError(f"plan: numbers of devices must be 1 or even, found {count!r}")
    return counts


class _Steps:
    """The steps of a training by level and by the number of parts of its batch, each made once."""

    def __init__(self, training: Training, batch: Any) -> None:
        self.training, self.batch = training, batch
        self.known: dict[tuple[int, int], _Step] = {}
        self.divided: dict[int, int] = {}

    def at(self, level: int, parts: int) -> _Step:
        key = level, parts
        if key not in self.known:
            own = rank_batch(self.batch, parts, self.training.accumulate)
            programs = self.training.programs(level, Mesh(BASE, "host"), *own)
            if level not in self.divided:  # it does not depend on the batch
                self.divided[level] = _divided(programs, self.training.programs(level, Mesh(2 * BASE, "host"), *own))
            self.known[key] = _Step.of(programs, self.divided[level])
        return self.known[key]


def _divided(few: RankPrograms, many: RankPrograms) -> int:
    """FLOPs of the update that its ranks divide among them, from the updates for `BASE` and for twice as many.

    One of N ranks does 1 / N of them, beside those on whole arrays and numbers, which all of them do.
    """
    flops, fewer = (sum(_flops(programs.rank_update).values()) for programs in (few, many))
    return 2 * BASE * (flops - fewer)


def _flops(program: Program) -> dict[str, int]:
    """FLOPs of one rank by part of the step, without those of collectives."""
    flops: dict[str, int] = {}
    for equation, times in _equations(program):
        own = 0 if equation.primitive.communicates else equation_cost(equation).flops * times
        flops[equation.source.part] = flops.get(equation.source.part, 0) + own
    return flops


@dataclass(frozen=True)
class _Step:
    """What one rank does in a step, and holds, for any number of ranks. `divided` is as `_divided` gives it."""

    programs: RankPrograms
    flops: dict[str, int]
    divided: int
    exchanged: tuple[Exchanged, ...]
    profile: Profile

    @classmethod
    def of(cls, programs: RankPrograms, divided: int) -> _Step:
        return cls(programs, _flops(programs.step), divided, tuple(_exchanged(programs.step)), profile(programs))

    def scenario(self, ranks: int, flops: float, bandwidth: float, latency: float, memory: float | None) -> Scenario:
        more = self.divided * (1 / ranks - 1 / BASE)  # than each of the ranks of the base
        seconds = {part: (count + (part == "update") * more) / flops for part, count in self.flops.items()}
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
