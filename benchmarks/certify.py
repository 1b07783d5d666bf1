"""Certifies a device: every equation of a training step of a small transformer against the host and against f64."""

from __future__ import annotations

import argparse

import numpy as np

import antegrad as ag
from antegrad import losses, nn, random, tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=8)
    arguments = parser.parse_args()
    config = nn.models.GPTConfig(vocabulary=65, context=32, layers=2, heads=2, features=32)
    model = nn.models.GPT(config, key=random.key(0))
    rng = np.random.default_rng(0)
    tokens, targets = (rng.integers(0, 65, (4, 32)).astype(np.int32) for _ in range(2))
    program = ag.capture(lambda model, x, y: losses.cross_entropy(model(x), y), model, tokens, targets, name="gpt")
    gradient = ag.reverse(program, program.input_names[: len(tree.leaves(model))])
    certificate = ag.certify(gradient, model, tokens, targets, device=arguments.device)
    print(f"{len(certificate.rows)} float equations; {certificate}".replace(str(certificate.table()), ""))
    print(certificate.table(arguments.rows))


if __name__ == "__main__":
    main()
