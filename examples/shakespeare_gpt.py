"""A small GPT on the characters of Shakespeare, at the setting that nanoGPT publishes for a CPU."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import antegrad as ag
from antegrad import data, nn, optim, parallel, random, train

CONTEXT, BATCH = 64, 12


def model(vocabulary: int, seed: int) -> nn.Module:
    """4 layers, 4 heads, 128 features, no dropout, no biases."""
    config = nn.models.GPTConfig(
        vocabulary=vocabulary, context=CONTEXT, layers=4, heads=4, features=128, dropout=0.0, bias=False
    )
    return nn.models.GPT(config, key=random.key(seed))


def optimizer(steps: int) -> optim.Optimizer:
    """AdamW; the rate grows to 2e-3 in 100 steps and falls to 1e-4 along a cosine. Matrices decay, gains do not."""
    rate = optim.schedules.warmup_cosine(2e-3, min(100, steps // 2), steps, 1e-4)
    return optim.adamw(rate, b2=0.99, weight_decay=0.1, mask=optim.decay_matrices)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=None, help="host, cpu, gpu, ...; by default the best there is")
    parser.add_argument("--parallel", choices=parallel.NAMES, help="train on several devices, divided in this way")
    parser.add_argument("--ranks", type=int, help="with --parallel: how many devices; by default all")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--out", type=Path, default=Path("out/shakespeare_gpt"))
    parser.add_argument("--resume", action="store_true", help="go on from the latest checkpoint in --out")
    arguments = parser.parse_args()
    several = None
    if arguments.parallel:
        several = parallel.strategy(arguments.parallel, parallel.mesh(arguments.ranks, device=arguments.device))

    text = data.tiny_shakespeare("train")
    tokenizer = data.CharTokenizer.fit(data.tiny_shakespeare(None))
    tokens, held_out = (data.text_corpus(t, tokenizer) for t in (text, data.tiny_shakespeare("validation")))
    trainer = train.AutoregressiveTrainer(
        model(tokenizer.vocabulary_size, arguments.seed),
        optimizer(arguments.steps),
        context=CONTEXT,
        batch_size=BATCH,
        seed=arguments.seed,
        device=None if several else arguments.device,
        parallel=several,
        precision=arguments.precision,
        clip_norm=1.0,
    )
    started = time.perf_counter()
    history = trainer.fit(
        tokens,
        arguments.steps,
        eval_every=min(250, arguments.steps),
        validation=held_out,
        run=arguments.out,
        resume="latest" if arguments.resume else None,
    )
    written = tokenizer.decode(trainer.generate(tokenizer.encode("\n"), 500, seed=arguments.seed))
    if parallel.leader():
        print(written)
    summary = {
        "val_loss": history[-1]["val_loss"],
        "steps": arguments.steps,
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
