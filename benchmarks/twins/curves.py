"""Loss curves of ResNet-20 or ViT on CIFAR-10: antegrad from several seeds, torch from the same weights and batches.

    python -m benchmarks.twins.curves resnet20 --steps 200 --seeds 3

A seed sets the weights and the order of the images, which are not augmented. The first seed is run by torch too. Prints
means over windows of steps, the distances between the curves, and whether that of torch lies within the noise of seeds:
whether it is no further from antegrad's curve of the same seed than antegrad's curves are from each other, by the root
mean square over windows. Needs torch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from antegrad import optim, random
from benchmarks.twins import batches, recipes, runs, twin
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


def curves(model: str, steps: int, batch: int, seeds: int) -> tuple[list[np.ndarray], np.ndarray]:
    """The losses of antegrad for each seed, and those of torch for the first."""
    make, recipe_for, _ = MODELS[model]
    recipe, ours, theirs = recipe_for(steps), [], np.empty(0)
    for seed in range(seeds):
        made = make(key=random.key(seed))
        x, y = batches.photographs(steps, batch, seed, real=True, split="train")

        def by_antegrad(made: Twin = made, x: np.ndarray = x, y: np.ndarray = y) -> np.ndarray:
            return runs.trainer_losses(made, recipe.antegrad(), x, y)

        def by_torch(made: Twin = made, x: np.ndarray = x, y: np.ndarray = y) -> np.ndarray:
            return runs.torch_losses(made, recipe, x, y)

        ours.append(timed(f"antegrad, seed {seed}", by_antegrad))
        if seed == 0:
            theirs = timed("torch, seed 0", by_torch)
    return ours, theirs


def windowed(losses: np.ndarray, windows: int) -> np.ndarray:
    """Means over `windows` parts of equal size, or nearly."""
    return np.array([part.mean() for part in np.array_split(losses, windows)])


def distance(first: np.ndarray, second: np.ndarray) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean((first - second) ** 2)))


def report(ours: Sequence[np.ndarray], theirs: np.ndarray, windows: int) -> bool:
    """Print the windows of all curves, and whether torch lies within the noise of seeds."""
    means, of_torch = [windowed(each, windows) for each in ours], windowed(theirs, windows)
    first = np.abs(ours[0] - theirs)[:10] / theirs[:10]
    print("first ten steps, relative:", " ".join(f"{value:.0e}" for value in first))
    print(f"{'steps':>9} {'torch 0':>9}" + "".join(f"{f'seed {i}':>9}" for i in range(len(ours))))
    stops = np.cumsum([len(part) for part in np.array_split(theirs, windows)])
    for index, stop in enumerate(stops):
        start = stops[index - 1] if index else 0
        row = "".join(f"{each[index]:9.4f}" for each in means)
        print(f"{start:>4}-{stop - 1:<4} {of_torch[index]:9.4f}{row}")
    apart = distance(of_torch, means[0])
    noise = [distance(a, b) for a, b in combinations(means, 2)]
    inside = apart <= float(np.mean(noise))
    print(f"torch and antegrad of the same seed: {apart:.4f}, mean difference {np.mean(of_torch - means[0]):+.4f}")
    print(f"antegrad of two seeds: {np.mean(noise):.4f} ({', '.join(f'{value:.4f}' for value in noise)})")
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
    if not report(*curves(args.model, args.steps, batch, args.seeds), args.windows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
