"""A multilayer perceptron on MNIST: 784-256-128-10, Adam, one executable for all of the training."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import antegrad as ag
from antegrad import data, losses, nn, optim, parallel, random, train


def model(seed: int) -> nn.Module:
    """The network; images [batch,28,28] with values from 0 to 1."""
    keys = random.split(random.key(seed), 3)
    return nn.Sequential(
        nn.Flatten(),
        nn.Dense(784, 256, key=keys[0]),
        nn.relu,
        nn.Dense(256, 128, key=keys[1]),
        nn.relu,
        nn.Dense(128, 10, key=keys[2]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=None, help="host, cpu, gpu, ...; by default the best there is")
    parser.add_argument("--parallel", choices=parallel.NAMES, help="train on several devices, divided in this way")
    parser.add_argument("--ranks", type=int, help="with --parallel: how many devices; by default all")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/mnist_mlp"))
    parser.add_argument("--resume", action="store_true", help="go on from the latest checkpoint in --out")
    arguments = parser.parse_args()
    several = None
    if arguments.parallel:
        several = parallel.strategy(arguments.parallel, parallel.mesh(arguments.ranks, device=arguments.device))

    training, test = data.mnist("train"), data.mnist("test")
    trainer = train.Trainer(
        model(arguments.seed),
        losses.cross_entropy,
        optim.adam(1e-3),
        batch_size=100,
        seed=arguments.seed,
        device=None if several else arguments.device,
        parallel=several,
        precision=arguments.precision,
        metrics={"accuracy": train.metrics.accuracy},
    )
    started = time.perf_counter()
    history = trainer.fit(
        training,
        arguments.epochs,
        validation=test,
        run=arguments.out,
        resume="latest" if arguments.resume else None,
    )
    summary = {
        "test_accuracy": history[-1]["val_accuracy"],
        "test_loss": history[-1]["val_loss"],
        "epochs": len(history),
        "training_seconds": sum(record.get("seconds", 0.0) for record in history),
        "total_seconds": time.perf_counter() - started,
        "executables": trainer.executables,
        "device": trainer.device.name,
        "antegrad": ag.__version__,
    }
    if parallel.leader():
        (arguments.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
