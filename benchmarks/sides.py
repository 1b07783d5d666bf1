"""A workload in training with antegrad, with JAX and Optax, or with torch: ``run(steps)`` gives the last loss.

All data lie where the computation runs, and every step of each side takes its batch out of them by index.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workloads import Workload


class Antegrad:
    """The Trainer's engine at its defaults: data on the device, batches made there, many steps a dispatch."""

    def __init__(self, workload: Workload) -> None:
        from antegrad import data, train

        twin, (x, y) = workload.make(), workload.draw()
        rows = (array.reshape(-1, *array.shape[2:]) for array in (x, y))
        trainer = train.Trainer(
            twin.model, twin.antegrad_loss, workload.recipe.antegrad(), batch_size=x.shape[1], shuffle=False
        )
        dataset = data.Dataset(*rows)
        self.engine = trainer.captured(dataset)
        trainer.start(self.engine, dataset)
        self.done = 0

    def run(self, steps: int) -> float:
        loss, end = np.nan, self.done + steps
        while self.done < end:
            epoch, first = divmod(self.done, self.engine.feed.steps)
            count = min(self.engine.feed.steps - first, end - self.done)
            sums = self.engine.dispatch(epoch, first, count)
            loss = float(sums[0][-1] / sums[1][-1])
            self.done += count
        return loss

    def product_flops(self) -> int:
        """Floating-point operations of the matrix products and convolutions of a step."""
        equations = self.engine.programs.step.all_equations()
        return sum(e.primitive.flops(e) for e in equations if e.primitive.name in ("dot_general", "conv_general"))


class AntegradRepeated:
    """`train.repeat`: so many full-batch steps in one dispatch."""

    def __init__(self, workload: Workload) -> None:
        import antegrad as ag
        from antegrad import train

        twin, (x, y) = workload.make(), workload.draw()
        step = ag.train_step(twin.model, twin.antegrad_loss, workload.recipe.antegrad(), x[0], y[0])
        self.step, self.count = step.step, workload.dispatch
        self.compiled = ag.compile(train.repeat(step, workload.dispatch), donate=step.state_names)
        self.arrays, self.batch = step.init().arrays, (x[0], y[0])

    def run(self, steps: int) -> float:
        loss = np.array([np.nan])
        for _ in range(steps // self.count):
            loss, *self.arrays = self.compiled(*self.arrays, *self.batch)
        return float(np.asarray(loss)[-1])

    def product_flops(self) -> int:
        """As for `Antegrad`."""
        return sum(e.primitive.flops(e) for e in self.step.all_equations() if e.primitive.name == "dot_general")


class Jax:
    """A jitted step with donation on data that lie on the device, where the step takes its batch by index.

    Where the workload says so, a scan over steps on one batch.
    """

    def __init__(self, workload: Workload) -> None:
        import jax

        from benchmarks.twins import jax_training

        twin, (x, y) = workload.make(), workload.draw()
        transform = jax_training.optimizer(workload.recipe)
        step = jax_training.train_step(twin.jax_apply, transform, getattr(jax_training, twin.loss))
        parameters, state = jax.device_put(twin.arrays())
        self.carry = parameters, state, transform.init(parameters)
        self.data = jax.device_put([array.reshape(-1, *array.shape[2:]) for array in (x, y)])
        self.places = jax.device_put(list(_places(x)))
        self.step = _indexed(step) if workload.dispatch == 1 else _scanned(step, workload.dispatch)
        self.done, self.count = 0, workload.dispatch

    def run(self, steps: int) -> float:
        loss = np.nan
        for _ in range(steps // self.count):
            *self.carry, loss = self.step(*self.carry, self.data, self.places[self.done % len(self.places)])
            self.done += 1
        return float(np.asarray(loss).reshape(-1)[-1])


def _places(x: np.ndarray) -> np.ndarray:
    """The rows of each batch, i32[count,batch]."""
    return np.arange(x.shape[0] * x.shape[1], dtype=np.int32).reshape(x.shape[:2])


def _indexed(step: Any) -> Any:
    import jax

    def indexed(parameters: Any, state: Any, opt: Any, data: Any, places: Any) -> Any:
        return step(parameters, state, opt, data[0][places], data[1][places])

    return jax.jit(indexed, donate_argnums=(0, 1, 2))


def _scanned(step: Any, count: int) -> Any:
    import jax

    def steps(parameters: Any, state: Any, opt: Any, data: Any, places: Any) -> Any:
        x, y = data[0][places], data[1][places]

        def one(carry: Any, _: Any) -> Any:
            *carry, loss = step(*carry, x, y)
            return tuple(carry), loss

        carry, losses = jax.lax.scan(one, (parameters, state, opt), None, length=count)
        return *carry, losses

    return jax.jit(steps, donate_argnums=(0, 1, 2))


class Torch:
    """Eager torch, with convolutions in the layout that is fastest there (channels last)."""

    def __init__(self, workload: Workload) -> None:
        import torch

        from benchmarks.twins import torch_training

        twin, (x, y) = workload.make(), workload.draw()
        module, images = twin.torch_module(), x.ndim == 5 and twin.name in ("cnn", "resnet20")
        layout = torch.channels_last if images else torch.contiguous_format
        loss: Any = getattr(torch_training, twin.loss)
        module = module.to(memory_format=layout)
        optimizer = torch_training.optimizer(workload.recipe, module)
        self.step = torch_training.train_step(module, optimizer, loss)
        rows = (array.reshape(-1, *array.shape[2:]) for array in (x, y))
        self.x, self.y = map(torch_training.to_torch, rows)
        self.x = self.x.contiguous(memory_format=layout)
        self.places = torch.as_tensor(_places(x).astype(np.int64))
        self.done = 0

    def run(self, steps: int) -> float:
        loss: Any = np.nan
        for _ in range(steps):
            places = self.places[self.done % len(self.places)]
            loss = self.step(self.x[places], self.y[places])
            self.done += 1
        return float(loss)


def side(name: str, workload: Workload) -> Any:
    """A workload on one of the sides."""
    if name == "antegrad":
        return (Antegrad if workload.dispatch == 1 else AntegradRepeated)(workload)
    return {"jax": Jax, "torch": Torch}[name](workload)
