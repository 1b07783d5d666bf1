"""A vision transformer on CIFAR-10: patches of 4 x 4, 6 layers of 192 features, AdamW with warm-up and cosine."""

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
    """AdamW; the rate grows to 1e-3 in a twentieth of the steps and falls to 0. Biases and norms do not decay."""
    rate = optim.schedules.warmup_cosine(1e-3, max(1, steps // 20), steps)
    return optim.adamw(rate, weight_decay=0.05, mask=optim.decay_matrices)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=None, help="host, cpu, gpu, ...; by default the best there is")
    parser.add_argument("--parallel", choices=parallel.NAMES, help="train on several devices, divided in this way")
    parser.add_argument("--ranks", type=int, help="with --parallel: how many devices; by default all")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--samples", type=int, default=None, help="train on the first so many images only")
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/cifar_vit"))
    parser.add_argument("--resume", action="store_true", help="go on from the latest checkpoint in --out")
    arguments = parser.parse_args()
    several = None
    if arguments.parallel:
        several = parallel.strategy(arguments.parallel, parallel.mesh(arguments.ranks, device=arguments.device))

    training, test = data.cifar10("train"), data.cifar10("test")
    if arguments.samples is not None:
        training = training.take(arguments.samples)
    steps = arguments.epochs * -(-len(training) // 64)
    trainer = train.Trainer(
        nn.Sequential(NORMALIZED, nn.models.ViT(nn.models.ViTConfig(), key=random.key(arguments.seed))),
        losses.cross_entropy,
        optimizer(steps),
        batch_size=64,
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
