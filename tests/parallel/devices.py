"""What `test_devices` checks, in a process of its own: it asks JAX for four CPU devices before JAX starts.

Run with the name of a check it prints one line of JSON.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from antegrad import losses, nn, ops, optim, parallel, random, train, tree
from antegrad.ir.program import Program
from antegrad.ir.types import type_of
from antegrad.parallel.programs import RankPrograms
from antegrad.runtime.mesh import MeshExecutable
from benchmarks.parallel.follow import RUNS, follow, furthest

COLLECTIVE = re.compile(r" (all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute)(?:-start)?\(")
X = np.random.default_rng(0).standard_normal((48, 6)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((48, 3)).astype(np.float32)


def followed(name: str) -> Callable[[], Any]:
    """The largest relative differences of losses, and how far the loss fell from the first step to the mean of the last
    ten. One rank exchanges nothing, which the quickest run shows."""

    def check() -> Any:
        found = follow(RUNS[name], (1, 2, 4) if name == "MLP" else (2, 4))
        return {"off": furthest(found), "fell": float(found["alone"][0] - found["alone"][-10:].mean())}

    return check


def mlp() -> nn.Module:
    keys = random.split(random.key(0), 3)
    first, second = nn.Dense(6, 13, key=keys[0]), nn.Dense(13, 13, key=keys[1])
    return nn.Sequential(first, ops.tanh, second, ops.tanh, nn.Dense(13, 3, key=keys[2]))


def trained(strategy: parallel.Strategy, steps: int = 4, **settings: Any) -> train.Trainer:
    optimizer = settings.pop("optimizer", optim.adam(1e-2))
    settings = {"clip_norm": 0.1, **settings}
    made = train.Trainer(
        mlp(), losses.mean_squared_error, optimizer, batch_size=12, parallel=strategy, shuffle=False, **settings
    )
    made.fit((X[: 12 * steps], Y[: 12 * steps]), 1, verbose=False)
    return made


def printed(program: Program) -> dict[str, int]:
    """The collectives of a program by their names in HLO, those in loops counted once as there."""
    names = Counter(eq.primitive.name.replace("_", "-") for eq in program.all_equations() if eq.primitive.communicates)
    del names["axis-index"]
    return dict(names)


def counts() -> Any:
    """What the printed training program and its optimized executable hold, for several sizes of buckets."""
    mesh, found = parallel.mesh(4), {}
    for name in parallel.NAMES:
        for size in (1, 700, 2**20):
            made = trained(parallel.strategy(name, mesh, bucket_bytes=size))
            assert made.engine is not None
            compiled = made.engine.compiled
            assert isinstance(compiled, MeshExecutable)
            hlo = dict(Counter(COLLECTIVE.findall(compiled.hlo())))
            found[f"{name} {size}"] = [printed(made.engine.program), hlo, printed(made.engine.programs.step)]
    return found


def differences(one: Any, other: Any) -> float:
    pairs = zip(tree.leaves(one), tree.leaves(other), strict=True)
    return float(max(np.max(np.abs(a - b), initial=0) / max(1e-6, np.max(np.abs(b), initial=0)) for a, b in pairs))


def lockstep() -> Any:
    """The largest difference of a state on the host from that on the devices, relative to the largest element."""
    found = {}
    for name in parallel.NAMES:
        for ranks in (2, 4):
            one, other = (
                trained(parallel.strategy(name, parallel.mesh(ranks, device=device)), 1).state
                for device in ("cpu", "host")
            )
            found[f"{name} {ranks}"] = differences(one, other)
    return found


def summed_gradients(name: str) -> list[np.ndarray]:
    """The gradients of the whole batch as they come out of the collectives, put together."""
    mesh = parallel.mesh(4)
    made = trained(parallel.strategy(name, mesh), 1)
    assert made.engine is not None
    programs = made.engine.programs
    assert isinstance(programs, RankPrograms)
    sharded, scattered = name == "zero3", name in ("zero2", "zero3")
    leaves, layout = tree.leaves(mlp()), programs.layout
    model = [mesh.put(layout.spread(leaf), True) if sharded else mesh.put(leaf, False) for leaf in leaves]
    inputs = [sharded] * len(leaves) + [True, True, False]
    outputs = [False] * (1 + programs.reported) + [scattered] * len(leaves)
    run = MeshExecutable(programs.exchanged, mesh, inputs, outputs)
    found = run(*model, X[:12], Y[:12], np.zeros(2, np.uint32))[1 + programs.reported :]
    arrays = [mesh.fetch(each) for each in found]
    if not scattered:
        return arrays
    return [layout.joined(each, type_of(leaf)) for each, leaf in zip(arrays, leaves, strict=True)]


def levels() -> Any:
    """Whether each level has the summed gradients of DDP bit for bit, and how far states are apart after four steps."""
    expected = summed_gradients("ddp")
    found: dict[str, Any] = {"gradients": {}, "states": {}}
    for name in parallel.NAMES:
        pairs = zip(summed_gradients(name), expected, strict=True)
        found["gradients"][name] = all(one.tobytes() == other.tobytes() for one, other in pairs)
    for optimizer in (optim.adam(1e-2), optim.sgd(0.1)):
        states = {
            name: trained(parallel.strategy(name, parallel.mesh(4)), optimizer=optimizer, clip_norm=None).state
            for name in parallel.NAMES
        }
        for name, state in states.items():
            found["states"][f"{optimizer.kind} {name}"] = differences(state, states["ddp"])
    return found


def repeated() -> Any:
    """Whether a training repeats itself bit for bit: run again, step by step, streamed, and resumed in another mesh."""
    found = {}
    for name in parallel.NAMES:
        strategy = parallel.strategy(name, parallel.mesh(4))
        state = trained(strategy).state
        settings: list[dict[str, Any]] = [{}, {"steps_per_dispatch": 1}, {"stream": True}, {"steps_per_dispatch": 3}]
        found[name] = [differences(trained(strategy, **more).state, state) for more in settings]
    return found


def evaluated() -> Any:
    """Loss of an evaluation on four devices, resident and streamed, and on one; predictions of both."""
    several = trained(parallel.zero(3, parallel.mesh(4)))
    alone = train.Trainer(
        mlp(), losses.mean_squared_error, optim.adam(1e-2), batch_size=12, clip_norm=0.1, device="cpu"
    )
    alone.restore(several.state)
    x, y = X[:37], Y[:37]
    resident, expected = several.evaluate((x, y))["loss"], alone.evaluate((x, y))["loss"]
    several.stream = True
    streamed = several.evaluate((x.copy(), y))["loss"]
    off = float(np.abs(several.predict(x) - alone.predict(x)).max())
    return {"resident": resident, "streamed": streamed, "expected": expected, "predictions": off}


CHECKS: dict[str, Callable[[], Any]] = {
    **{f"follow {name}": followed(name) for name in RUNS},
    **{check.__name__: check for check in (counts, lockstep, levels, repeated, evaluated)},
}

if __name__ == "__main__":
    parallel.mesh(4, device="cpu")
    print(json.dumps({name: CHECKS[name]() for name in sys.argv[1:]}))
