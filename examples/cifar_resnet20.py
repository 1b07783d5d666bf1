"""ResNet-20 on CIFAR-10 by the recipe of He et al. (2015): SGD with momentum, steps at half and three quarters."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import antegrad as ag
from antegrad import data, losses, nn, optim, parallel, random, train

NORMALIZED = data.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)).normalized
"""By mean and standard deviation of the channels of the training images."""


def optimizer(steps: int) -> optim.Optimizer:
    """SGD with momentum 0.9; the rate of 0.1 is divided by ten after a half and after three quarters of the steps."""
    rate = optim.schedules.step(0.1, [steps // 2, 3 * steps // 4], 0.1)
    return optim.sgd(rate, momentum=0.9, weight_decay=1e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=None, help="host, cpu, gpu, ...; by default the best there is")
    parser.add_argument("--parallel", choices=parallel.NAMES, help="train on several devices, divided in this way")
    parser.add_argument("--ranks", type=int, help="with --parallel: how many devices; by default all")
    parser.add_argument("--epochs", type=int, default=164)
    parser.add_argument("--samples", type=int, default=None, help="train on the first so many images only")
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/cifar_resnet20"))
    parser.add_argument("--resume", action="store_true", help="go on from the latest checkpoint in --out")
    arguments = parser.parse_args()
    several = None
    if arguments.parallel:
        several = parallel.strategy(arguments.parallel, parallel.mesh(arguments.ranks, device=arguments.device))

    training, test = data.cifar10("train"), data.cifar10("test")
    if arguments.samples is not None:
        training = training.take(arguments.samples)
    steps = arguments.epochs * -(-len(training) // 128)
    trainer = train.Trainer(
        nn.Sequential(NORMALIZED, nn.models.resnet20(key=random.key(arguments.seed))),
        losses.cross_entropy,
        optimizer(steps),
        batch_size=128,
        seed=arguments.seed,
        device=None if several else arguments.device,
        parallel=several,
        precision=arguments.precision,
        augment=data.Augment([data.RandomCrop(4), data.HorizontalFlip()]),
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
