"""The disc's training step against the same model in JAX and Optax, on one device.

    python benchmarks/disc.py [--device cpu] [--rounds 21]

Prints, as interleaved medians: K steps in one dispatch against `jax.lax.scan` over the same steps, and one dispatch a
step against `jax.jit`. Needs the bench extra.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from timing import interleaved, report

import antegrad as ag
from antegrad import losses, optim, random, train

sys.path.insert(0, str(Path(__file__).parents[1]))
from examples.disc import build, labels

STEPS = 200


def jax_step(optimizer: optax.GradientTransformation):
    """One step of the same network in JAX: (parameters, optimizer state, x, y) to the same and the loss."""

    def loss(parameters, x, y):
        for index, (w, b) in enumerate(parameters):
            x = x @ w + b
            x = x if index == len(parameters) - 1 else jax.nn.relu(x)
        return jnp.mean((x - y) ** 2)

    def step(parameters, state, x, y):
        value, gradient = jax.value_and_grad(loss)(parameters, x, y)
        updates, state = optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    return step


class Antegrad:
    """Our side: the state is donated and carried from call to call."""

    def __init__(self, step: train.TrainStep, x, y, device: str, steps: int | None) -> None:
        program = step.step if steps is None else train.repeat(step, steps)
        self.run = ag.compile(program, device=device, donate=step.state_names)
        self.arrays, self.batch = step.init().arrays, (jax.device_put(x), jax.device_put(y))

    def __call__(self, calls: int = 1):
        for _ in range(calls):
            loss, *self.arrays = self.run(*self.arrays, *self.batch)
        return loss.block_until_ready()


class Jax:
    """The other side, with donation too."""

    def __init__(self, model, x, y, steps: int | None) -> None:
        optimizer = optax.adam(0.02)
        # Copies, because both arrays of one buffer cannot be donated, and donation deletes what is passed.
        self.parameters = [(jnp.array(np.array(d.w)), jnp.array(np.array(d.b))) for d in (model[0], model[2], model[4])]
        self.state, self.batch = optimizer.init(self.parameters), (jax.device_put(x), jax.device_put(y))
        step = jax_step(optimizer)

        def scanned(parameters, state, x, y):
            def body(carry, _):
                *carry, value = step(*carry, x, y)
                return tuple(carry), value

            (parameters, state), values = jax.lax.scan(body, (parameters, state), None, length=steps)
            return parameters, state, values

        self.run = jax.jit(step if steps is None else scanned, donate_argnums=(0, 1))

    def __call__(self, calls: int = 1):
        for _ in range(calls):
            self.parameters, self.state, loss = self.run(self.parameters, self.state, *self.batch)
        return loss.block_until_ready()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=21)
    args = parser.parse_args()
    key, model_key = random.split(random.key(20260921))
    x = np.asarray(random.uniform(key, (512, 2), low=-1, high=1))
    y, model = labels(x), build(model_key)
    step = ag.train_step(model, losses.mean_squared_error, optim.adam(0.02), x, y)
    print(f"jax {jax.__version__}, optax {optax.__version__}, {jax.devices()[0].device_kind}, {args.rounds} rounds")

    ours, theirs = Antegrad(step, x, y, args.device, STEPS), Jax(model, x, y, STEPS)
    check = np.abs(np.asarray(ours())[-1] - np.asarray(theirs())[-1])
    print(f"losses after {STEPS} steps differ by {check:.1e}")
    times = interleaved({"antegrad, 200 steps a dispatch": ours, "jax.lax.scan, 200 steps": theirs}, args.rounds)
    report(times, "jax.lax.scan, 200 steps", per=STEPS)

    ours, theirs = Antegrad(step, x, y, args.device, None), Jax(model, x, y, None)
    single = {"antegrad, one dispatch a step": ours, "jax.jit, one dispatch a step": theirs}
    times = interleaved({name: partial(side, STEPS) for name, side in single.items()}, args.rounds)
    report(times, "jax.jit, one dispatch a step", per=STEPS)


if __name__ == "__main__":
    main()
