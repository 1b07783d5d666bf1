"""Loss curves of ResNet-20 or ViT on CIFAR-10: antegrad from several seeds, torch from the same weights and batches.

    python -m benchmarks.twins.curves resnet20 --steps 200 --seeds 3

A seed sets the weights and the order of the images, which are not augmented. The first seed is run by torch too, and by
antegrad once more from weights that are moved by one unit in the last place, which shows what rounding alone does.
Prints means over windows of steps, the distances between the curves (root mean squares over windows), and whether torch
lies within the noise of seeds: no further from antegrad's curve of the same seed than those of two seeds are from each
other. Needs torch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import numpy as np

from antegrad import optim, random
from benchmarks.twins import batches, recipes, runs, twin
from benchmarks.twins.batches import Batches
from benchmarks.twins.recipes import Recipe
from benchmarks.twins.twin import Twin


def resnet20_recipe(steps: int) -> Recipe:
    """That of `examples/cifar_resnet20.py`."""
    rate = optim.schedules.step(0.1, [max(1, steps // 2), max(2, 3 * steps // 4)], 0.1)
    return recipes.SGD(rate, momentum=0.9, weight_decay=1e-4)


def vit_recipe(steps: int) -> Recipe:
    """That of `examples/cifar_vit.py`."""
    return recipes.AdamW(optim.schedules.warmup_cosine(1e-3, max(1, steps // 20), steps), weight_decay=0.05)


MODELS: dict[str, tuple[Callable[..., Twin], Callable[[int], Recipe], int]] = {
    "resnet20": (twin.resnet20, resnet20_recipe, 128),
    "vit": (twin.vit, vit_recipe, 64),
}
"""By name: the model, the recipe for a number of steps, and the batch size."""


def timed(name: str, run: Callable[[], np.ndarray]) -> np.ndarray:
    """The losses that `run` gives, after a line with the time that it took."""
    started = time.perf_counter()
    found = run()
    print(f"{name:<18} {time.perf_counter() - started:7.1f} s   last loss {found[-1]:.4f}", flush=True)
    return found


@dataclass(frozen=True)
class Curves:
    """Losses by step: antegrad's of each seed, and of the first seed those of torch, and from moved weights."""

    ours: list[np.ndarray]
    torch: np.ndarray
    moved: np.ndarray


def curves(model: str, steps: int, batch: int, seeds: int) -> Curves:
    """Train with both sides."""
    make, recipe_for, _ = MODELS[model]
    recipe, ours = recipe_for(steps), []

    def drawn(seed: int) -> Batches:
        return batches.photographs(steps, batch, seed, real=True, split="train")

    for seed in range(seeds):
        run = partial(runs.trainer_losses, make(key=random.key(seed)), recipe.antegrad(), *drawn(seed))
        ours.append(timed(f"antegrad, seed {seed}", run))
    first, (x, y) = make(key=random.key(0)), drawn(0)
    moved = timed("antegrad, moved", partial(runs.trainer_losses, moved_weights(first), recipe.antegrad(), x, y))
    return Curves(ours, timed("torch, seed 0", partial(runs.torch_losses, first, recipe, x, y)), moved)


def moved_weights(twin: Twin) -> Twin:
    """The twin with every weight moved by one unit in the last place, up or down."""
    (parameters, state), rng = twin.arrays(), np.random.default_rng(0)
    for name, value in parameters.items():
        towards = np.where(rng.random(value.shape) < 0.5, -np.inf, np.inf).astype(value.dtype)
        parameters[name] = np.nextafter(value, towards)
    return replace(twin, model=twin.model.with_parameters({**parameters, **state}))


def windowed(losses: np.ndarray, windows: int) -> np.ndarray:
    """Means over `windows` parts of equal size, or nearly."""
    return np.array([part.mean() for part in np.array_split(losses, windows)])


def distance(first: np.ndarray, second: np.ndarray) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean((first - second) ** 2)))


def report(found: Curves, windows: int) -> bool:
    """Print the windows of all curves, and whether torch lies within the noise of seeds."""
    first = np.abs(found.ours[0] - found.torch)[:10] / found.torch[:10]
    print("first ten steps, relative:", " ".join(f"{value:.0e}" for value in first))
    columns = {"torch": found.torch, "moved": found.moved, **{f"seed {i}": each for i, each in enumerate(found.ours)}}
    means = {name: windowed(each, windows) for name, each in columns.items()}
    print(f"{'steps':>9}" + "".join(f"{name:>9}" for name in means))
    stops = np.cumsum([len(part) for part in np.array_split(found.torch, windows)])
    for start, stop, *row in zip([0, *stops], stops, *means.values(), strict=False):
        print(f"{start:>4}-{stop - 1:<4}" + "".join(f"{value:9.4f}" for value in row))
    ours = [mean for name, mean in means.items() if name.startswith("seed")]
    apart, noise = distance(means["torch"], ours[0]), [distance(a, b) for a, b in combinations(ours, 2)]
    print(f"torch and antegrad of seed 0: {apart:.4f}, mean difference {np.mean(means['torch'] - ours[0]):+.4f}")
    print(f"antegrad of seed 0 and from moved weights: {distance(means['moved'], ours[0]):.4f}")
    print(f"antegrad of two seeds: {np.mean(noise):.4f} ({', '.join(f'{value:.4f}' for value in noise)})")
    inside = apart <= float(np.mean(noise))
    print(f"torch lies {'within' if inside else 'OUTSIDE'} the noise of seeds")
    return inside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=None, help="by default that of the example")
    parser.add_argument("--seeds", type=int, default=3, help="at least 2")
    parser.add_argument("--windows", type=int, default=10)
    args = parser.parse_args()
    if args.seeds < 2 or not 1 <= args.windows <= args.steps:
        parser.error("--seeds must be at least 2, and --windows between 1 and --steps")
    batch = args.batch or MODELS[args.model][2]
    print(f"{args.model} on CIFAR-10, {args.steps} steps of {batch} images without augmentation")
    if not report(curves(args.model, args.steps, batch, args.seeds), args.windows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
