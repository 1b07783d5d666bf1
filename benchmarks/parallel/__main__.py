"""``python -m benchmarks.parallel follow``, ``overhead`` or ``models``; see the package."""

from __future__ import annotations

import argparse
import sys

import numpy as np

from antegrad import parallel
from benchmarks.parallel.follow import RUNS, follow, furthest, kinks, strategies
from benchmarks.parallel.models import models
from benchmarks.parallel.overhead import overhead


def _follow() -> None:
    for run in RUNS.values():
        found = follow(run)
        print(f"{run.name}: loss {found['alone'][0]:.4f} to {found['alone'][-1]:.4f}; at most {run.within:g} is wanted")
        for name, off in furthest(found).items():
            print(f"  {name:<10} {off:.1e}")
    print("CNN with ReLU and max pooling, steps 20 and 100:")
    alone, mesh = kinks(None, "cpu"), parallel.mesh(4, device="cpu")
    others = {f"4 {strategy.name}": kinks(strategy, None) for strategy in strategies(mesh)}
    others |= {f"weights moved by an ulp, seed {seed}": kinks(None, "cpu", seed) for seed in range(3)}
    for name, losses in others.items():
        off = np.abs(losses / alone - 1)
        print(f"  {name:<36} {off[:20].max():.1e} {off.max():.1e}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = {"follow": _follow, "overhead": overhead, "models": models}
    parser.add_argument("what", choices=parts)
    what = parser.parse_args().what
    parallel.mesh(4, device="cpu")  # before JAX starts
    parts[what]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
