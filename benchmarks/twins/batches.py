"""Batches ``x``, ``y`` with the axes [steps, batch, ...] of the data sets of the workloads, or of the like made up.

They are made up where the environment variable ``ANTEGRAD_DATA`` names no copy of the data; with ``real=True`` the data
are downloaded instead.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from antegrad import data
from antegrad.data.cache import local_copy

CIFAR_MEAN = np.array([0.4914, 0.4822, 0.4465], np.float32)
CIFAR_STD = np.array([0.2470, 0.2435, 0.2616], np.float32)
VOCABULARY = 65

Batches = tuple[np.ndarray, np.ndarray]


def digits(steps: int, batch: int, seed: int = 0, real: bool = False) -> Batches:
    """MNIST, flat and from 0 to 1: f32[steps,batch,784]."""
    if real or local_copy("mnist"):
        images, labels = _taken(data.mnist("train"), steps * batch, seed)
    else:
        images, labels = _made_up((28, 28), steps * batch, seed)
    return _stacked(images.reshape(len(images), -1) / np.float32(255), labels, steps)


def photographs(steps: int, batch: int, seed: int = 0, real: bool = False, split: str = "test") -> Batches:
    """CIFAR-10, normalized by channel: f32[steps,batch,32,32,3]. The test images are decoded sooner."""
    if real or local_copy("cifar10"):
        images, labels = _taken(_cifar10(split), steps * batch, seed)
    else:
        images, labels = _made_up((32, 32, 3), steps * batch, seed)
    return _stacked((images / np.float32(255) - CIFAR_MEAN) / CIFAR_STD, labels, steps)


def thumbnails(steps: int, batch: int, seed: int = 0) -> Batches:
    """`photographs` at a quarter of their size: f32[steps,batch,8,8,3]."""
    x, y = photographs(steps, batch, seed)
    return x.reshape(steps, batch, 8, 4, 8, 4, 3).mean((3, 5)), y


def characters(steps: int, batch: int, context: int, seed: int = 0, real: bool = False) -> Batches:
    """Windows of TinyShakespeare, and the same one character further on: i32[steps,batch,context]."""
    rng = np.random.default_rng(seed)
    if real or local_copy("tinyshakespeare"):
        text = data.tiny_shakespeare("train")
        corpus = data.text_corpus(text, data.CharTokenizer.fit(text))
    else:
        corpus = _made_up_text(100_000, rng)
    starts = rng.integers(0, len(corpus) - context, (steps, batch, 1))
    windows = corpus[starts + np.arange(context + 1)].astype(np.int32)
    return windows[..., :-1], windows[..., 1:]


@cache
def _cifar10(split: str) -> data.Dataset:
    return data.cifar10(split)


def _taken(dataset: data.Dataset, count: int, seed: int) -> Batches:
    """`count` examples, each of them once before any comes again."""
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(len(dataset)) for _ in range(-(-count // len(dataset)))])[:count]
    return dataset.inputs[order], dataset.targets[order]


def _made_up(shape: tuple[int, ...], count: int, seed: int) -> Batches:
    """u8 images of ten classes: a pattern for each class and noise, about half of it black.

    A third of the labels are wrong, so that the loss does not go to 0, where rounding counts for much.
    """
    rng = np.random.default_rng(seed)
    patterns, classes = rng.uniform(-200, 255, (10, *shape)), rng.integers(0, 10, count)
    images = patterns[classes] + rng.normal(0, 60, (count, *shape))
    labels = np.where(rng.random(count) < 1 / 3, rng.integers(0, 10, count), classes)
    return np.clip(images, 0, 255).astype(np.uint8), labels


def _made_up_text(length: int, rng: np.random.Generator) -> np.ndarray:
    """Characters of which each has a usual successor, which follows it two times in three.

    There is something to learn for as long as a training lasts. Where there is not, as with characters drawn one by
    one, gradients are soon nothing but noise, and Adam makes steps of their rounding.
    """
    successors = rng.permutation(VOCABULARY)
    weights = 1 / np.arange(1.0, VOCABULARY + 1)
    text = rng.choice(VOCABULARY, length, p=weights / weights.sum())
    usual = rng.random(length) < 2 / 3
    for i in range(1, length):
        if usual[i]:
            text[i] = successors[text[i - 1]]
    return text


def _stacked(images: np.ndarray, labels: np.ndarray, steps: int) -> Batches:
    x, y = images.astype(np.float32), labels.astype(np.int32)
    return x.reshape(steps, -1, *x.shape[1:]), y.reshape(steps, -1)
