"""The plan: its collectives against the programs and the optimized HLO, its times and bytes worked out by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest

import antegrad as ag
from antegrad import losses, nn, ops, optim, random
from antegrad.errors import NameMissing, SettingError, ShapeError
from antegrad.ir.cost import equation_cost
from antegrad.parallel.plan import Exchanged, Plan, plan
from antegrad.parallel.programs import rank_batch
from antegrad.parallel.report import LEVELS, Training, profile
from antegrad.runtime.mesh import Mesh

NAMES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
RATES: dict[str, Any] = {"flops": 1e9, "bandwidth": 1e6, "latency": 1e-3}


def model() -> Any:
    """Sizes that 4 does not divide."""
    sizes = (5, 7, 3, 6)
    layers = [nn.Dense(a, b, key=random.key(a), activation=ops.tanh) for a, b in pairwise(sizes)]
    return nn.Sequential(*layers)


def planned(**settings: Any) -> Plan:
    chosen = {
        **RATES, "batch": "whole", "devices": (2, 4, 8), "bucket_bytes": 100, "clip_norm": 1.0, **settings
    }  # fmt: skip
    types = ag.spec((48, 5)), ag.spec((48, 6))
    return plan(model(), losses.mean_squared_error, optim.adam(1e-3), *types, **chosen)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("bucket_bytes", [1, 100, 1 << 20])
def test_collectives_are_those_of_the_programs(bucket_bytes: int, accumulate: int) -> None:
    """Also for numbers of ranks other than the one that they are made from, and tensors that do not divide."""
    found = planned(bucket_bytes=bucket_bytes, accumulate=accumulate)
    training = Training.of(model(), losses.mean_squared_error, optim.adam(1e-3), bucket_bytes, "f32", accumulate, 1.0)
    for ranks in (2, 4, 8):
        x, y = rank_batch((ag.spec((48, 5)), ag.spec((48, 6))), ranks, accumulate)
        for level, name in zip(LEVELS, NAMES, strict=True):
            programs = training.programs(level, Mesh(ranks, "host"), x, y)
            scenario = found.at(name, ranks)
            assert scenario.collectives == programs.step.cost().collectives, (name, ranks)
            own = profile(programs).predicted()
            assert (scenario.memory.parameters, scenario.memory.optimizer) == (own.parameters, own.optimizer)
            assert scenario.memory.gradients == own.gradients
            assert scenario.memory.total == pytest.approx(own.total, rel=0.15), "buckets are scaled from two ranks"


def test_a_ring() -> None:
    """1000 f32 over 8 ranks: 7 parts of 500 bytes, twice for an all-reduce, and as many hops of a millisecond."""
    reduced, gathered = (Exchanged(kind, "backward", (600, 400), 4) for kind in ("all_reduce", "all_gather"))
    assert (reduced.received(8), gathered.received(8)) == (7000, 3500)
    assert reduced.seconds(8, 1e6, 1e-3) == pytest.approx(7e-3 + 14e-3)
    assert gathered.seconds(8, 1e6, 1e-3) == pytest.approx(3.5e-3 + 7e-3)
    assert Exchanged("all_gather", "", (9, 3), 4).received(8) == 7 * (2 + 1) * 4, "shards are filled up"


def test_overlap_hides_what_fits_beside_the_computation() -> None:
    """Between nothing but the last bucket, where computing takes long, and everything, where it takes no time."""
    slow, quick = (planned(flops=rate, devices=(4,)).at("DDP", 4) for rate in (1.0, 1e30))
    sums = Exchanged("all_reduce", "forward", (2,), 4)
    last = Exchanged("all_reduce", "backward", (5 * 7,), 4)  # the weights of the first layer, alone in a bucket
    assert slow.exposed == pytest.approx(sum(each.seconds(4, 1e6, 1e-3) for each in (sums, last)))
    assert quick.exposed == pytest.approx(quick.communication)
    assert slow.overlapped < slow.seconds
    assert slow.collectives == quick.collectives


def test_time_of_computing() -> None:
    """Forward and backward on a rank's part, and the optimizer, of which ZeRO-1 does a share."""
    ddp, zero = (planned(devices=(4,)).at(name, 4) for name in ("DDP", "ZeRO-1"))
    training = Training.of(model(), losses.mean_squared_error, optim.adam(1e-3), 100, "f32", 1, 1.0)
    programs = training.programs(0, Mesh(4, "host"), ag.spec((12, 5)), ag.spec((12, 6)))
    own = [equation for equation in programs.step.equations if not equation.primitive.communicates]
    total = sum(equation.primitive.flops(equation) for equation in own)
    assert ddp.compute == pytest.approx(total / 1e9)
    assert zero.compute < ddp.compute


OPTIMIZERS = {"adam": optim.adam(1e-3), "muon": optim.muon(1e-3), "adafactor": optim.adafactor(1e-3)}


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_flops_are_those_of_the_programs(optimizer: str, clip_norm: float | None) -> None:
    """At 8 ranks, from programs for 2 and 4: also of an optimizer that works on whole matrices on every rank."""
    sizes = (24, 64, 64, 40)
    layers = [nn.Dense(a, b, key=random.key(a), activation=ops.tanh) for a, b in pairwise(sizes)]
    batch, loss = (ag.spec((4, 24)), ag.spec((4, 40))), losses.mean_squared_error
    chosen: dict[str, Any] = {**RATES, "batch": "per device", "devices": (1, 8, 16384), "bucket_bytes": 5000}
    arguments = nn.Sequential(*layers), loss, OPTIMIZERS[optimizer]
    found = plan(*arguments, *batch, **chosen, clip_norm=clip_norm)
    training = Training.of(*arguments, 5000, "f32", 1, clip_norm)
    for level, name in zip(LEVELS, NAMES, strict=True):
        programs = training.programs(level, Mesh(8, "host"), *batch)
        own = [equation for equation in programs.step.equations if not equation.primitive.communicates]
        total = sum(equation_cost(equation).flops for equation in own)
        assert found.at(name, 8).compute == pytest.approx(total / 1e9, rel=5e-4), name
        assert found.at(name, 8).collectives == programs.step.cost().collectives, name
        assert found.at(name, 1).compute == pytest.approx(found.at("DDP", 1).compute, rel=0.01), "nothing is divided"
    most = found.at("ZeRO-3", 16384).compute / found.at("DDP", 16384).compute
    assert most > 0.97 if optimizer == "muon" else most < 0.9, "the matrices of Muon are whole on every rank"


def test_batches_per_device_and_whole() -> None:
    """With as much work for each of more devices, or less."""
    same, less = (planned(batch=batch, devices=(2, 8)) for batch in ("per device", "whole"))
    assert same.at("DDP", 8).compute == same.at("DDP", 2).compute
    assert less.at("DDP", 8).compute < 0.6 * less.at("DDP", 2).compute
    assert less.at("DDP", 2).compute < same.at("DDP", 2).compute
    assert "the batch is per device" in str(same)
    assert "the batch is whole" in str(less)


def test_one_device_exchanges_nothing() -> None:
    for name in NAMES:
        found = planned(devices=(1,)).at(name, 1)
        assert (found.communication, found.exposed, found.collectives) == (0, 0, {})
        assert found.memory.parameters == planned(devices=(1,)).at("DDP", 1).memory.parameters


def test_many_devices() -> None:
    """Shards become small, down to one number of each tensor."""
    found = planned(batch="per device", devices=(8, 64, 512, 4096, 16384), memory=3000)
    tensors, numbers = 6, 5 * 7 + 7 + 7 * 3 + 3 + 3 * 6 + 6
    assert found.at("DDP", 16384).memory.parameters == 4 * numbers
    assert found.at("ZeRO-3", 16384).memory.parameters == 4 * tensors
    assert found.at("DDP", 16384).collectives["all_reduce"].count == found.at("DDP", 8).collectives["all_reduce"].count
    assert found.at("ZeRO-2", 16384).communication > found.at("ZeRO-2", 8).communication, "more hops"
    assert found.at("DDP", 8).fits is False
    text = str(found)
    assert text.startswith("a model, not a measurement")
    assert text.count("does not fit") == sum(each.fits is False for each in found.scenarios)
    assert "16,384" in text


def test_what_does_not_divide_is_left_out() -> None:
    found = planned(devices=(4, 64))
    assert [each.devices for each in found.scenarios] == [4] * 4
    assert "does not divide among 64 devices" in str(found)


@pytest.mark.parametrize(("name", "devices"), [("ZeRO-4", 2), ("DDP", 16)])
def test_a_prediction_that_is_not_there(name: str, devices: int) -> None:
    message = f"the plan has no '{name}' on {devices} devices, it has DDP, ZeRO-1, ZeRO-2, ZeRO-3 on 2, 4, 8"
    with pytest.raises(NameMissing, match=message):
        planned().at(name, devices)


@pytest.mark.parametrize(
    ("error", "match", "settings"),
    [
        (SettingError, "per device", {"batch": "each"}),
        (SettingError, "even", {"devices": (3,)}),
        (SettingError, r"plan: devices .* found '8'", {"devices": "8"}),
        (SettingError, "plan: devices .* found None", {"devices": None}),
        (SettingError, r"plan: devices .* found \(\)", {"devices": ()}),
        (SettingError, "plan: devices .* found True", {"devices": (True,)}),
        (SettingError, "plan: devices .* found 0", {"devices": (8, 0)}),
        (SettingError, "plan: devices .* found 2.0", {"devices": (2.0,)}),
        (SettingError, "plan: flops", {"flops": 0}),
        (SettingError, "plan: flops .* found '1e12'", {"flops": "1e12"}),
        (SettingError, "plan: bandwidth", {"bandwidth": -1.0}),
        (SettingError, "plan: latency", {"latency": -1.0}),
        (SettingError, "plan: latency .* found nan", {"latency": float("nan")}),
        (SettingError, "plan: memory .* found -1", {"memory": -1}),
        (SettingError, "plan: memory .* found '80GB'", {"memory": "80GB"}),
        (SettingError, "plan: bucket_bytes .* found 0", {"bucket_bytes": 0}),
        (SettingError, "plan: bucket_bytes .* found 1.5", {"bucket_bytes": 1.5}),
        (SettingError, "plan: bucket_bytes .* found '1'", {"bucket_bytes": "1"}),
        (SettingError, "plan: precision", {"precision": "f16"}),
        (SettingError, "plan: accumulate", {"accumulate": 1.0}),
        (SettingError, "plan: clip_norm", {"clip_norm": -1.0}),
        (ShapeError, "divides among none", {"devices": (64,)}),
    ],
)
def test_errors(error: type[Exception], match: str, settings: dict[str, Any]) -> None:
    with pytest.raises(error, match=match):
        planned(**settings)


@pytest.mark.parametrize(
    ("error", "match", "changed"),
    [
        (SettingError, "plan: model .* found 4", {"model": 4}),
        (SettingError, "plan: loss .* found 'mse'", {"loss": "mse"}),
        (SettingError, "plan: optimizer .* found 'adam'", {"optimizer": "adam"}),
        (ShapeError, "plan: x must have one row", {"x": 3.0}),
        (ShapeError, "plan: y must have one row", {"y": ag.spec(())}),
        (ShapeError, "plan: x must have one row", {"x": ag.spec((0, 5))}),
        (ShapeError, r"plan: x and y must .* found f32\[48,5\] and f32\[24,6\]", {"y": ag.spec((24, 6))}),
        (ShapeError, "plan: x and y have no arrays", {"x": (), "y": ()}),
    ],
)
def test_errors_of_what_is_trained(error: type[Exception], match: str, changed: dict[str, Any]) -> None:
    arguments = {
        "model": model(), "loss": losses.mean_squared_error, "optimizer": optim.adam(1e-3),
        "x": ag.spec((48, 5)), "y": ag.spec((48, 6)), **changed,
    }  # fmt: skip
    with pytest.raises(error, match=match):
        plan(**arguments, **RATES, batch="whole", devices=2)


def test_one_number_of_devices() -> None:
    assert planned(devices=8).scenarios == planned(devices=(8,)).scenarios


SCRIPT = r"""
import json
import re
import jax
jax.config.update("jax_num_cpu_devices", 4)
import antegrad as ag
from antegrad import losses, nn, ops, optim, parallel, random, tree
from antegrad.parallel.plan import plan
from antegrad.parallel.programs import rank_batch
from antegrad.parallel.report import LEVELS, Training, compiled_step, measured

sizes = (33, 70, 31, 62)
layers = [nn.Dense(a, b, key=random.key(a), activation=ops.tanh) for a, b in zip(sizes, sizes[1:])]
model, x, y = nn.Sequential(*layers), ag.spec((4, 33)), ag.spec((4, 62))
training = Training.of(model, losses.mean_squared_error, optim.adam(1e-3), 5000, "f32", 1, 1.0)
predicted = plan(
    model, losses.mean_squared_error, optim.adam(1e-3), x, y, flops=1e9, bandwidth=1e9, latency=1e-5, batch="whole",
    devices=(2, 4), bucket_bytes=5000, clip_norm=1.0,
)
LINE = re.compile(r" = (\(?[^=]*?\)?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-start)?\(")
rows = []
for ranks in (4, 2):  # JAX starts with as many devices as are asked for first
    parallel_mesh = parallel.mesh(ranks, device="cpu")
    for level in LEVELS:
        programs = training.programs(level, parallel_mesh, *rank_batch((x, y), ranks, 1))
        step = compiled_step(programs, parallel_mesh)
        found = {}
        for shape, kind, _ in LINE.findall(step.hlo()):
            numbers = re.findall(r"f32\[([0-9,]*)\]", shape)
            size = 4 * sum(eval("*".join(each.split(",")) or "1") for each in numbers)
            times = {"all-reduce": 2 * (ranks - 1) / ranks, "all-gather": (ranks - 1) / ranks}.get(kind, ranks - 1)
            count, total = found.get(kind.replace("-", "_"), (0, 0))
            found[kind.replace("-", "_")] = count + 1, total + int(size * times)
        scenario = predicted.at(programs.strategy.name, ranks)
        ours = {kind: (each.count, each.bytes) for kind, each in scenario.collectives.items()}
        rows.append([scenario.name, ranks, ours, found, scenario.memory.total, measured(programs, parallel_mesh).total])
print(json.dumps(rows))
"""


@pytest.fixture(scope="module")
def compiled() -> list[list[Any]]:
    """Strategy, ranks, collectives of the plan and of the HLO (count, bytes received), bytes of a device in both."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PJRT_NPROC": "8"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_collectives_are_those_of_the_executable(compiled: list[list[Any]]) -> None:
    assert {(name, ranks) for name, ranks, *_ in compiled} == {(name, ranks) for name in NAMES for ranks in (2, 4)}
    for name, ranks, ours, found, *_ in compiled:
        assert ours == found, (name, ranks)


def test_memory_is_that_of_the_executable(compiled: list[list[Any]]) -> None:
    for name, ranks, _, _, ours, found in compiled:
        assert ours == pytest.approx(found, rel=0.1), (name, ranks)
