"""`memory_report`: what a training takes of the memory of each device, predicted from its program and measured.

`profile` is the prediction: liveness over the step of one rank. `plan` scales it to other numbers of devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from antegrad import optim, tree
from antegrad.errors import DeviceError, NameMissing, ShapeError
from antegrad.ir.cost import memory_owners, total_bytes
from antegrad.ir.program import Equation, Program, Value
from antegrad.optim import settings
from antegrad.parallel.mesh import mesh as default_mesh
from antegrad.parallel.programs import RankPrograms, rank_batch
from antegrad.parallel.strategy import BUCKET_BYTES, Strategy, check_bucket_bytes
from antegrad.passes.autocast import autocast
from antegrad.runtime.mesh import Mesh, MeshExecutable
from antegrad.train.checks import check_functions
from antegrad.train.loop import types
from antegrad.train.objective import Objective
from antegrad.train.options import compiler_options
from antegrad.train.programs import has_convolutions

LEVELS = (0, 1, 2, 3)
"""DDP and the levels of ZeRO."""


@dataclass(frozen=True)
class Predicted:
    """Bytes of one device, from the program of a rank.

    - `parameters`, `optimizer`: what the rank holds of them from one step to the next.
    - `inputs`: its part of the batch, the key, and the rest of the state.
    - `gradients`: what is alive where the update begins.
    - `activations`: what the backward pass needs of the forward pass, and depends on the batch.
    - `transient`: the most that is alive at one time of anything else: buckets, gathered parameters, partial results.
    - `total`: the most at one time. It is less than the sum of the others where they are not all there at once.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    transient: int
    inputs: int
    total: int

    @property
    def arguments(self) -> int:
        """What is there before the step."""
        return self.parameters + self.optimizer + self.inputs

    @property
    def temporaries(self) -> int:
        """What the step needs beside that."""
        return self.total - self.arguments


@dataclass(frozen=True)
class Measured:
    """Bytes of one device, as XLA accounts for the compiled step; `aliased` outputs lie in memory of the arguments."""

    arguments: int
    outputs: int
    aliased: int
    temporaries: int

    @property
    def total(self) -> int:
        return self.arguments + self.outputs - self.aliased + self.temporaries


@dataclass(frozen=True)
class StrategyMemory:
    """One strategy: "DDP", "ZeRO-1", "ZeRO-2" or "ZeRO-3"."""

    name: str
    predicted: Predicted
    measured: Measured | None


@dataclass(frozen=True)
class MemoryReport:
    """Of each strategy what it takes on one of `devices` devices. `unmeasured` says why nothing was measured."""

    devices: int
    platform: str
    strategies: tuple[StrategyMemory, ...]
    unmeasured: str = ""

    def __getitem__(self, name: str) -> StrategyMemory:
        for each in self.strategies:
            if each.name == name:
                return each
        raise NameMissing(f"the report has no {name!r}, it has {', '.join(each.name for each in self.strategies)}")

    def __str__(self) -> str:
        names = [each.name for each in fields(Predicted)]
        rows = [["", *names, "of DDP", "measured", "of DDP"]]
        first = self.strategies[0]
        for each in self.strategies:
            found, ours = each.measured, [getattr(each.predicted, name) for name in names]
            rows.append([
                each.name, *(f"{value:,}" for value in ours), f"{each.predicted.total / first.predicted.total:.3f}",
                "-" if found is None else f"{found.total:,}",
                "-" if found is None or first.measured is None else f"{found.total / first.measured.total:.3f}",
            ])  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        head = f"bytes of each of {self.devices} devices ({self.platform}); total is the most at one time"
        return "\n".join([head, *lines, *([f"not measured: {self.unmeasured}"] if self.unmeasured else [])])


@dataclass(frozen=True)
class Training:
    """What is trained, apart from where."""

    objective: Objective
    optimizer: optim.Optimizer
    bucket_bytes: int
    precision: str
    accumulate: int

    @classmethod
    def of(
        cls,
        model: Any,
        loss: Any,
        optimizer: Any,
        bucket_bytes: int,
        precision: str,
        accumulate: int,
        clip: Any,
        owner: str = "Training",
    ) -> Training:
        """What the arguments say, each checked: a `SettingError` names `owner`, the argument and what was found."""
        check_functions(owner, model, loss, optimizer)
        check_bucket_bytes(owner, bucket_bytes)
        settings.choice(owner, "precision", precision, ("f32", "bf16"))
        parts = settings.whole(owner, "accumulate", accumulate, 1)
        if clip is not None:
            clip = settings.number(owner, "clip_norm", clip, "[0, inf)")
            optimizer = optim.chain(optim.clip_by_global_norm(clip), optimizer)
        return cls(Objective(model, loss), optimizer, bucket_bytes, precision, parts)

    def programs(self, level: int, mesh: Mesh, x: Any, y: Any) -> RankPrograms:
        """The programs of a rank of `mesh`, whose part of the batch has the types `x` and `y`."""
        transform: Callable[[Program], Program] = autocast if self.precision == "bf16" else lambda program: program
        loops = mesh.platform != "cpu" or self.accumulate == 1 or not has_convolutions(self.objective.prediction(x))
        return RankPrograms(
            Strategy(level, mesh, self.bucket_bytes), self.objective, self.optimizer, x, y,
            accumulate=self.accumulate, transform=transform, loops=loops,
        )  # fmt: skip


def batch_types(owner: str, x: Any, y: Any) -> tuple[Any, Any]:
    """The types of inputs and targets; a `ShapeError` unless all of them have one row for each sample."""
    found = types((x, y))
    named = tree.named_leaves(dict(zip("xy", found, strict=True)))
    if not named:
        raise ShapeError(f"{owner}: x and y have no arrays, expected those of a batch or their types")
    first, expected = next(iter(named.items()))
    for name, type in named.items():
        if not type.ndim or not type.shape[0]:
            raise ShapeError(f"{owner}: {name} must have one row for each sample of a batch, found {type}")
        if type.shape[0] != expected.shape[0]:
            raise ShapeError(
                f"{owner}: {first} and {name} must have one row for each sample, and so the same number: found "
                f"{expected} and {type}"
            )
    return found


def memory_report(
    model: Any,
    loss: Callable[..., Any],
    optimizer: optim.Optimizer,
    x: Any,
    y: Any,
    *,
    devices: int = 4,
    bucket_bytes: int = BUCKET_BYTES,
    precision: Literal["f32", "bf16"] = "f32",
    accumulate: int = 1,
    clip_norm: float | None = None,
    mesh: Mesh | None = None,
) -> MemoryReport:
    """Bytes of each device for DDP and ZeRO-1, 2 and 3: predicted, and as XLA accounts for the compiled step.

    The prediction is that of `Predicted`: what is alive in the program of one rank. The forward and backward pass count
    as they are written, without fusion, but elementwise results take over memory that is free. The update counts as
    XLA compiles it: fused, in the memory of the state. Measured is the whole step with its state donated: arguments and
    temporaries, and those outputs that lie nowhere else. XLA does not say what a temporary is for, so gradients cannot
    be told from activations there: the column has activations, buckets and the batch in it.

    An optimizer that needs all gradients before the first update, such as one with `clip_norm`, holds them all at once.
    Without, XLA may update a parameter and free its gradient while the backward pass goes on, and then takes less than
    is predicted.

    Both are of the step alone. Not in them: the data of a training, of which a device holds its part or the batches
    that come next, and the exchange of the rows of a batch where they are drawn from data that is divided.

    Arguments:
      model, loss, optimizer, precision, accumulate, clip_norm: as for `train.Trainer`.
      x, y: inputs and targets of the whole batch, arrays or their types; each device has its part.
      devices: how many ranks, where no `mesh` is given. If JAX has fewer devices nothing is measured.
      bucket_bytes: see `ddp`.
      mesh: the ranks; with that of ``parallel.mesh(4, device="host")`` nothing is compiled.
    Raises `SettingError` for arguments that make no sense, `ShapeError` where `x` and `y` are not of one batch or the
    batch has no equal parts.
    """
    owner, reason = "memory_report", ""
    training = Training.of(model, loss, optimizer, bucket_bytes, precision, accumulate, clip_norm, owner)
    batch = batch_types(owner, x, y)
    if mesh is not None and not isinstance(mesh, Mesh):
        settings.refuse(owner, "mesh", "what parallel.mesh gives", mesh)
    devices = settings.whole(owner, "devices", devices, 1) if mesh is None else mesh.size
    part_x, part_y = rank_batch(batch, devices, training.accumulate)  # before JAX is asked for so many devices
    if mesh is None:
        try:
            mesh = default_mesh(devices)
        except DeviceError as error:
            mesh, reason = Mesh(devices, "host"), str(error)
    if not mesh.devices and not reason:
        reason = "the ranks run on the host, where nothing is compiled"
    rows = []
    for level in LEVELS:
        programs = training.programs(level, mesh, part_x, part_y)
        found = measured(programs, mesh) if mesh.devices else None
        rows.append(StrategyMemory(programs.strategy.name, profile(programs).predicted(), found))
    return MemoryReport(mesh.size, mesh.platform, tuple(rows), reason)


def measured(programs: RankPrograms, mesh: Mesh) -> Measured:
    """The account that XLA gives of `compiled_step`."""
    found = compiled_step(programs, mesh).memory()
    return Measured(
        found.argument_size_in_bytes, found.output_size_in_bytes, found.alias_size_in_bytes, found.temp_size_in_bytes
    )


def compiled_step(programs: RankPrograms, mesh: Mesh) -> MeshExecutable:
    """The step with its state donated, compiled for the mesh with the options of a training."""
    flags = tree.leaves(programs.sharded)
    batch = [True] * len(tree.leaves((programs.x, programs.y)))
    outputs = [*[False] * programs.reported, *flags]
    options = compiler_options(mesh.device, graph_capture=False, deterministic=False)
    return MeshExecutable(programs.step, mesh, [*flags, *batch, False], outputs, range(len(flags)), options)


@dataclass(frozen=True)
class Alive:
    """Bytes alive at one time beside the arguments: gradients, activations, and anything else."""

    gradients: int
    activations: int
    other: int


@dataclass(frozen=True)
class Profile:
    """What is alive in the course of a step. `gradients` are those at the begin of the update."""

    parameters: int
    optimizer: int
    inputs: int
    gradients: int
    course: tuple[Alive, ...]

    def predicted(self, gradients: int | None = None) -> Predicted:
        """The memory of a device; where it holds as many bytes of `gradients` as given, of all else as it is."""
        held = self.gradients if gradients is None else gradients
        scale = held / self.gradients if self.gradients else 0.0
        peak = max(round(each.gradients * scale) + each.activations + each.other for each in self.course)
        return Predicted(
            parameters=self.parameters,
            gradients=held,
            optimizer=self.optimizer,
            activations=max(each.activations for each in self.course),
            transient=max(each.other for each in self.course),
            inputs=self.inputs,
            total=self.parameters + self.optimizer + self.inputs + peak,
        )


def profile(programs: RankPrograms) -> Profile:
    """The liveness of the step of one rank."""
    step, state = programs.step, programs.state_types
    parameters, optimizer = (sum(type.nbytes for type in tree.leaves(state[name])) for name in ("param", "opt"))
    begin = next(
        (place for place, equation in enumerate(step.equations) if equation.source.part == "update"),
        len(step.equations),
    )
    owners = memory_owners(step)
    own = [equation for equation in step.equations[:begin] if equation.primitive.name != "constant"]
    made = {value for equation in own for value in equation.outputs}
    read = [owners.get(value, value) for equation in step.equations[begin:] for value in equation.inputs]
    gradients = made.intersection(read)
    given = len(tree.leaves(state))
    course = _course(step, step.inputs[given:], gradients, (), begin)
    held = total_bytes(gradients)
    update = Alive(held, 0, _update_peak(step, begin))
    inputs = total_bytes(step.inputs) - parameters - optimizer
    return Profile(parameters, optimizer, inputs, held, (*course, update))


def _course(
    program: Program, batch: Sequence[Value], gradients: set[Value], donated: Sequence[Value], end: int
) -> list[Alive]:
    """What is alive at each of the first `end` equations, beside the inputs.

    `batch` are the inputs from which activations are told. The memory of `donated` inputs is free after their last use.
    """
    owners, last = memory_owners(program), {}
    for place, equation in enumerate(program.equations):
        last.update({owners.get(value, value): place for value in equation.inputs})
    last.update({owners.get(value, value): len(program.equations) for value in program.outputs})
    activations = _activations(program, batch, owners)
    sizes = [0, 0, 0]  # gradients, activations, anything else
    kinds = dict.fromkeys(gradients, 0) | dict.fromkeys(activations - gradients, 1)
    course = [Alive(0, 0, 0)]
    fixed = set(program.inputs) - set(donated)
    for place, equation in enumerate(program.equations[:end]):
        made = [value for value in equation.outputs if value not in owners]
        read = {owners.get(value, value) for value in (*equation.inputs, *equation.outputs)} - fixed
        dead = {value for value in read if last.get(value, -1) <= place}
        reused = _reused(equation, dead) if made else 0
        for value in made:
            sizes[kinds.get(value, 2)] += value.type.nbytes
        for inner in _inside(equation):
            course.append(Alive(sizes[0], sizes[1] + inner.activations, sizes[2] + inner.other - reused))
        for value in dead:
            sizes[kinds.get(value, 2)] -= value.type.nbytes
    return course


def _reused(equation: Equation, dead: set[Value]) -> int:
    """Bytes of a result that takes over the memory of an operand."""
    size = equation.outputs[0].type.nbytes
    free = dead.intersection(equation.inputs)
    return size if equation.primitive.elementwise and any(value.type.nbytes == size for value in free) else 0


def _activations(program: Program, batch: Sequence[Value], owners: dict[Value, Value]) -> set[Value]:
    """What the backward pass reads, and the forward pass made of the batch."""
    places = enumerate(program.equations)
    start = next((place for place, equation in places if equation.source.part == "backward"), None)
    if start is None:
        return set()
    dependent, made = set(batch), set()
    for equation in program.equations[:start]:
        if dependent.intersection(equation.inputs):
            dependent.update(equation.outputs)
            made.update(equation.outputs)
    read = {owners.get(value, value) for equation in program.equations[start:] for value in equation.inputs}
    return made & read


def _inside(equation: Equation) -> Iterator[Alive]:
    """What the sub-programs of an equation need beside its operands and results, in their course."""
    yield Alive(0, 0, 0)
    for program in equation.programs:
        slices: Sequence[Value] = ()
        carry: Sequence[Value] = ()
        if equation.primitive.name == "scan":
            constants, both = equation.params["counts"][0], sum(equation.params["counts"])
            carry, slices = program.inputs[constants:both], program.inputs[both:]
        for each in _course(program, slices, set(), carry, len(program.equations)):
            yield Alive(0, each.activations, each.other + total_bytes(slices))


FUSED = frozenset({"reshape", "broadcast_in_dim", "slice", "dynamic_slice", "iota"})
"""Primitives whose results XLA computes where they are read, beside those that are elementwise or reduce."""


def _update_peak(program: Program, begin: int) -> int:
    """The most that the update needs beside gradients and state: what is gathered, and whole arrays for other work."""
    held: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for place, equation in enumerate(program.equations[begin:], begin):
        primitive = equation.primitive
        if not (primitive.elementwise or primitive.reduces or primitive.name in FUSED):
            held.update({value: value.type.nbytes for value in equation.outputs})
        last.update(dict.fromkeys(equation.inputs, place))
    live = peak = 0
    for place, equation in enumerate(program.equations[begin:], begin):
        live += sum(held.get(value, 0) for value in equation.outputs)
        peak = max(peak, live)
        read = {*equation.inputs, *equation.outputs}
        live -= sum(held.get(value, 0) for value in read if last.get(value, place) <= place)
    return peak
