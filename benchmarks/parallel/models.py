"""The models of data-parallel training against measurement, on 1, 2 and 4 CPU devices: memory, and time of a step.

    python -m benchmarks.parallel models

Rates are calibrated on the machine for each number of devices, since they share its cores: FLOP/s by the gradient
without collectives, bandwidth and latency by all-reduces of two sizes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import antegrad as ag
from antegrad import losses, nn, ops, optim, parallel, random, tree
from antegrad.ops.dispatch import apply
from antegrad.parallel.plan import plan
from antegrad.parallel.programs import RankPrograms, rank_batch
from antegrad.parallel.report import LEVELS, Training, compiled_step, memory_report
from antegrad.runtime.mesh import Mesh, MeshExecutable

WIDTH, LAYERS, BATCH, ROUNDS = 512, 8, 512, 15
BUCKET = 2 * WIDTH * WIDTH * 4


def model(width: int, layers: int) -> Any:
    return nn.Sequential(*[nn.Dense(width, width, key=random.key(i), activation=ops.tanh) for i in range(layers)])


def seconds(run: MeshExecutable, inputs: Sequence[Any], donated: int = 0, before: int = 0) -> float:
    """The median time of a call; the outputs after the first `before` go in again as the `donated` inputs."""
    inputs, times = list(inputs), []
    for _ in range(ROUNDS + 2):
        started = time.perf_counter()
        outputs = run(*inputs)
        for each in outputs:
            getattr(each, "block_until_ready", lambda: None)()
        times.append(time.perf_counter() - started)
        inputs[:donated] = outputs[before : before + donated]
    return statistics.median(times[2:])


def put(mesh: Mesh, types: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
    """Zeros of the types of one rank, on all of them."""
    found = [mesh.global_type(type, flag) for type, flag in zip(types, flags, strict=True)]
    return [mesh.put(np.zeros(type.shape, type.dtype), flag) for type, flag in zip(found, flags, strict=True)]


def flop_rate(mesh: Mesh, programs: RankPrograms) -> float:
    """FLOP/s of each device while all of them work."""
    gradient = programs.gradient
    flags = [False] * len(tree.leaves(programs.objective.model)) + [True, True, False]
    # Of each output one number is given, so that nothing has to be made equal on all ranks.
    program = ag.capture(
        lambda *inputs: sum(ops.sum(each) for each in apply(gradient, list(inputs))),
        *gradient.input_types[: gradient.argument_count], name="gradient",
    )  # fmt: skip
    run = MeshExecutable(program, mesh, flags, [False])
    return program.cost().total.flops / seconds(run, put(mesh, program.input_types[: program.argument_count], flags))


def exchange_rates(mesh: Mesh) -> tuple[float, float]:
    """Bytes/s that a device receives, and seconds of a hop, of all-reduces over a ring."""
    if mesh.size == 1:
        return 1e12, 0.0
    times, sizes = [], (256, 1 << 20)
    for size in sizes:
        program = ag.capture(lambda x: ops.all_reduce(x, mesh.size), ag.spec((size,)), name="reduced")
        run = MeshExecutable(program, mesh, [True], [False])
        times.append(seconds(run, put(mesh, [ag.spec((size,))], [True])))
    received = [2 * (mesh.size - 1) * size * 4 // mesh.size for size in sizes]
    bandwidth = (received[1] - received[0]) / max(times[1] - times[0], 1e-9)
    # What an empty call takes is in the calls of both sizes, and so in the latency.
    return bandwidth, max(times[0] - received[0] / bandwidth, 0.0) / (2 * (mesh.size - 1))


def timed() -> None:
    """Predicted and measured times of a step."""
    net, types = model(WIDTH, LAYERS), (ag.spec((BATCH, WIDTH)), ag.spec((BATCH, WIDTH)))
    training = Training.of(net, losses.mean_squared_error, optim.adam(1e-3), BUCKET, "f32", 1, None)
    print(f"\nMLP of {LAYERS} layers of {WIDTH}, batch {BATCH}, Adam: ms of a step, with all overlap to none")
    for ranks in (4, 2, 1):
        mesh = parallel.mesh(ranks, device="cpu")
        x, y = rank_batch(types, ranks, 1)
        flops = flop_rate(mesh, training.programs(0, mesh, x, y))
        bandwidth, latency = exchange_rates(mesh)
        rates = f"{flops / 1e9:.1f} GFLOP/s each, {bandwidth / 1e9:.2f} GB/s, {latency * 1e6:.0f} us a hop"
        print(f"{ranks} devices: {rates}")
        found = plan(
            net, losses.mean_squared_error, optim.adam(1e-3), *types, flops=flops, bandwidth=bandwidth,
            latency=latency, batch="whole", devices=(ranks,), bucket_bytes=BUCKET,
        )  # fmt: skip
        for level in LEVELS:
            programs = training.programs(level, mesh, x, y)
            run, flags = compiled_step(programs, mesh), tree.leaves(programs.sharded)
            inputs = put(mesh, programs.step.input_types[: programs.step.argument_count], [*flags, True, True, False])
            took = seconds(run, inputs, len(flags), programs.reported)
            ours = found.at(programs.strategy.name, ranks)
            ends = f"{ours.overlapped * 1e3:8.2f} to {ours.seconds * 1e3:8.2f}"
            print(f"  {ours.name:<7} {ends}   measured {took * 1e3:8.2f}")


def models() -> None:
    """Memory for buckets of one and of several tensors, then times."""
    for bucket, what in ((1, "each tensor alone"), (2 * (64 * 64 + 64) * 4, "two layers in a bucket")):
        x = ag.spec((4, 64))
        print(f"\nMLP of 48 layers of 64, Adam, gradients clipped, {what}")
        print(memory_report(
            model(64, 48), losses.mean_squared_error, optim.adam(1e-3), x, x, bucket_bytes=bucket, clip_norm=1.0
        ))  # fmt: skip
    timed()
