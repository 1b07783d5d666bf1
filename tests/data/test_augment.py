"""Augmentation: each change against plain NumPy from the same draws, and what a sample's change depends on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import data, losses, nn, optim, random, train
from antegrad.data.augment import draws
from antegrad.train.feeds import EpochFeed
from tests.support import assert_same_bits

KEY = np.asarray(random.key(3))
RNG = np.random.default_rng(0)
COUNT, HEIGHT, WIDTH, CHANNELS, CLASSES = 64, 7, 5, 3, 4
IMAGES = RNG.uniform(0.1, 1, (COUNT, HEIGHT, WIDTH, CHANNELS)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, COUNT).astype(np.int32)
PLACES = RNG.permutation(1000)[:COUNT].astype(np.int32)


def changed(change: Any, x: Any = IMAGES, y: Any = LABELS, places: Any = PLACES) -> tuple[np.ndarray, np.ndarray]:
    images, targets = change(KEY, places, x, y)
    return np.asarray(images), np.asarray(targets)


def uniform(count: int) -> list[np.ndarray]:
    """The draws that a change gets."""
    return [np.asarray(each, np.float64) for each in draws(KEY, PLACES, count)]


def whole(values: np.ndarray, count: int) -> list[int]:
    return [min(int(value * count), count - 1) for value in values]


def test_draws_are_uniform_and_independent() -> None:
    first, second = (np.asarray(each, np.float64) for each in draws(KEY, np.arange(20_000), 2))
    for each in (first, second):
        counts = np.histogram(each, 20, (0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 44  # chi-square with 19 degrees of freedom: p = 0.001
        assert 0 <= each.min() < each.max() < 1
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.025  # 3.5 standard deviations


@pytest.mark.parametrize("padding", [1, 2, 9])
def test_random_crop(padding: int) -> None:
    """A window of the padded image, all of them with the same frequency."""
    found, labels = changed(data.RandomCrop(padding))
    down, right = (whole(each, 2 * padding + 1) for each in uniform(2))
    for image, result, top, left in zip(IMAGES, found, down, right, strict=True):
        padded = np.zeros((HEIGHT + 2 * padding, WIDTH + 2 * padding, CHANNELS), np.float32)
        padded[padding:-padding, padding:-padding] = image
        np.testing.assert_array_equal(result, padded[top : top + HEIGHT, left : left + WIDTH])
    assert set(down) == set(right) == set(range(2 * padding + 1)) or padding == 9
    assert np.array_equal(labels, LABELS)


@pytest.mark.parametrize("probability", [0.0, 0.25, 0.5, 1.0])
def test_horizontal_flip(probability: float) -> None:
    places = np.arange(1000)
    images = np.broadcast_to(IMAGES[:1], (1000, *IMAGES.shape[1:]))
    found, _ = changed(data.HorizontalFlip(probability), images, np.zeros(1000, np.int32), places)
    turned = (found == images[:, :, ::-1]).all((1, 2, 3))
    assert ((found == images).all((1, 2, 3)) == ~turned).all()
    assert abs(turned.mean() - probability) <= 3.5 * np.sqrt(probability * (1 - probability) / 1000)


def box(middles: tuple[int, int], extents: tuple[int, int]) -> np.ndarray:
    """bool[height,width]: a box around a pixel, cut off at the border; of an even extent the larger part is before."""
    inside = np.zeros((HEIGHT, WIDTH), bool)
    for row in range(HEIGHT):
        for column in range(WIDTH):
            inside[row, column] = all(
                middle - extent // 2 <= at < middle - extent // 2 + extent
                for at, middle, extent in zip((row, column), middles, extents, strict=True)
            )
    return inside


@pytest.mark.parametrize("size", [1, 2, 3, 4, 20])
def test_cutout(size: int) -> None:
    found, labels = changed(data.Cutout(size))
    for image, result, *middle in zip(
        IMAGES, found, *(whole(u, n) for u, n in zip(uniform(2), (HEIGHT, WIDTH), strict=True)), strict=True
    ):
        inside = box((middle[0], middle[1]), (size, size))
        np.testing.assert_array_equal(result, np.where(inside[:, :, None], 0, image))
    areas = (found == 0).all(3).sum((1, 2))
    assert areas.max() == min(size, HEIGHT) * min(size, WIDTH)
    assert areas.min() >= min(-(-size // 2), HEIGHT) * min(-(-size // 2), WIDTH)  # in a corner, a quarter is left
    assert np.array_equal(labels, LABELS)


def mixed(share: np.ndarray, labels: np.ndarray = LABELS) -> np.ndarray:
    """f64[batch,classes]: each sample's own class, and that of its partner."""
    targets = np.zeros((len(labels), CLASSES))
    for row, (own, other) in enumerate(zip(labels, labels[::-1], strict=True)):
        targets[row, own] += share[row]
        targets[row, other] += 1 - share[row]
    return targets


def test_mixup() -> None:
    found, targets = changed(data.MixUp(CLASSES))
    (share,) = uniform(1)
    of_image = share[:, None, None, None]
    np.testing.assert_allclose(found, IMAGES * of_image + IMAGES[::-1] * (1 - of_image), rtol=3e-7)
    np.testing.assert_allclose(targets, mixed(share), atol=1e-7)
    np.testing.assert_allclose(targets.sum(1), 1, atol=2e-7)
    assert targets.dtype == np.float32


def test_cutmix() -> None:
    """The share of the targets is the area that was left, also where the box was cut off at the border."""
    found, targets = changed(data.CutMix(CLASSES))
    share, *centre = uniform(3)
    middles = [whole(u, n) for u, n in zip(centre, (HEIGHT, WIDTH), strict=True)]
    kept = np.zeros(COUNT)
    for row in range(COUNT):
        side = np.sqrt(1 - share[row])
        inside = box((middles[0][row], middles[1][row]), (int(side * HEIGHT), int(side * WIDTH)))
        np.testing.assert_array_equal(found[row], np.where(inside[:, :, None], IMAGES[::-1][row], IMAGES[row]))
        kept[row] = 1 - inside.mean()
    np.testing.assert_allclose(targets, mixed(kept), atol=1e-7)
    assert kept.min() < 0.5 < kept.max() == 1  # boxes of all sizes, also empty ones


def test_mixtures_take_probabilities_too() -> None:
    soft = np.eye(CLASSES, dtype=np.float32)[LABELS]
    for change in (data.MixUp(CLASSES), data.CutMix(CLASSES)):
        assert_same_bits(changed(change, y=soft)[1], changed(change)[1], str(change))
    twice = data.Augment([data.MixUp(CLASSES), data.CutMix(CLASSES)])
    np.testing.assert_allclose(changed(twice)[1].sum(1), 1, atol=1e-6)


def test_normalize() -> None:
    mean, std = (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)
    found, labels = changed(data.Normalize(mean, std))
    np.testing.assert_allclose(found, (IMAGES - np.array(mean)) / np.array(std), rtol=3e-7, atol=1e-8)
    assert np.array_equal(labels, LABELS)
    model = nn.Sequential(data.Normalize(mean, std).normalized, nn.Flatten())
    assert_same_bits(np.asarray(model(IMAGES)), found.reshape(COUNT, -1), "as a layer")


ALL = [data.RandomCrop(2), data.HorizontalFlip(), data.Cutout(3), data.Normalize((0.5,) * 3, (2.0,) * 3)]


def test_each_change_has_its_own_key() -> None:
    """The same change twice draws twice."""
    one = changed(data.Augment([data.HorizontalFlip()]))[0]
    two = changed(data.Augment([data.HorizontalFlip(), data.HorizontalFlip()]))[0]
    np.testing.assert_array_equal(changed(data.Augment([]))[0], IMAGES)
    turned = [(each != IMAGES).any((1, 2, 3)) for each in (one, two)]
    assert 0.2 < np.mean(turned[0] & ~turned[1]) + np.mean(~turned[0] & turned[1]) < 0.8


def test_a_sample_is_changed_alike_in_any_batch() -> None:
    """What happens to it depends on (seed, epoch, its place in the data), not on its neighbours."""
    feed = EpochFeed(COUNT, 8, augment=data.Augment(ALL))
    everything = data_of(feed, np.arange(COUNT), epoch=1)
    for size in (1, 3, 16):
        rows = RNG.permutation(COUNT)[:size]
        assert_same_bits(data_of(feed, rows, epoch=1), everything[rows], f"batch of {size}")
    other_epoch, other_seed = data_of(feed, np.arange(COUNT), epoch=2), data_of(feed, np.arange(COUNT), 1, seed=4)
    for other in (other_epoch, other_seed):
        assert (other != everything).any((1, 2, 3)).mean() > 0.9


def data_of(feed: EpochFeed, rows: np.ndarray, epoch: int, seed: int = 0) -> np.ndarray:
    """The images at `rows`, as `feed` has them in an epoch."""
    places = rows.astype(np.int32)
    batch = train.feeds.Rows(IMAGES[rows], LABELS[rows], None, places)
    return np.asarray(feed.augmented(batch, np.asarray(random.key(seed)), np.int32(epoch))[0])


@pytest.mark.parametrize(
    "change", [*ALL[:3], data.MixUp(CLASSES), data.CutMix(CLASSES)], ids=lambda c: type(c).__name__
)
def test_host_and_xla_agree(change: Any) -> None:
    program = ag.capture(change, KEY, PLACES, IMAGES, LABELS, name="change")
    host, cpu = (program.run(KEY, PLACES, IMAGES, LABELS, device=device) for device in ("host", "cpu"))
    if isinstance(change, data.MixUp):  # XLA may round a product and a sum once
        np.testing.assert_allclose(cpu[0], host[0], rtol=3e-7)
    else:
        assert_same_bits(np.asarray(cpu[0]), np.asarray(host[0]), "images")
    np.testing.assert_allclose(cpu[1], host[1], atol=1e-7)


WRONG: dict[str, tuple[Any, str]] = {
    "crop": (lambda: data.RandomCrop(0), r"RandomCrop: padding must be a whole number in \[1, .*found 0"),
    "part": (lambda: data.RandomCrop(2.5), r"RandomCrop: padding .*found 2.5"),
    "flip": (lambda: data.HorizontalFlip(1.5), r"HorizontalFlip: probability .*\[0, 1\].*found 1.5"),
    "nan": (lambda: data.HorizontalFlip(float("nan")), "found nan"),
    "cutout": (lambda: data.Cutout(-1), "Cutout: size .*found -1"),
    "mixup": (lambda: data.MixUp(0), "MixUp: classes .*found 0"),
    "cutmix": (lambda: data.CutMix("10"), "CutMix: classes .*found '10'"),
    "std": (lambda: data.Normalize((0.5,), (0.0,)), r"Normalize: std .*\(0, inf\).*found 0.0"),
    "lengths": (lambda: data.Normalize((0.5,), (1.0, 1.0)), "mean has 1 channels and std 2"),
    "lone": (lambda: data.Augment(data.RandomCrop(4)), "Augment takes a list of changes.*found RandomCrop"),
    "called": (lambda: data.Augment([data.RandomCrop(4), 3]), "Augment takes a list of changes.*3"),
}


@pytest.mark.parametrize(("wrong", "message"), WRONG.values(), ids=WRONG)
def test_wrong_settings_are_refused(wrong: Any, message: str) -> None:
    with pytest.raises(ag.SettingError, match=message):
        wrong()


@pytest.mark.parametrize(
    "change", [*ALL[:3], data.MixUp(CLASSES), data.CutMix(CLASSES)], ids=lambda c: type(c).__name__
)
def test_what_is_no_batch_of_images_is_refused(change: Any) -> None:
    message = rf"{type(change).__name__} is for images \[batch,height,width,channels\], found f32\[64,35\]"
    with pytest.raises(ag.ShapeError, match=message):
        changed(change, np.zeros((COUNT, 35), np.float32))
    with pytest.raises(ag.ShapeError, match="found 2 inputs"):
        changed(change, (IMAGES, IMAGES))


def test_other_misfits_are_refused() -> None:
    with pytest.raises(ag.ShapeError, match=r"Normalize with 1 channels .*found f32\[64,7,5,3\]"):
        changed(data.Normalize((0.5,), (1.0,)))
    with pytest.raises(ag.ShapeError, match=r"one target a sample of 4 classes, found f32\[64\]"):
        changed(data.MixUp(CLASSES), y=LABELS.astype(np.float32))
    with pytest.raises(ag.ShapeError, match=r"one target a sample of 4 classes, found f32\[64,5\]"):
        changed(data.CutMix(CLASSES), y=np.zeros((COUNT, 5), np.float32))


def test_a_trainer_learns_from_mixtures_and_says_where_images_do_not_fit() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dense(HEIGHT * WIDTH * CHANNELS, CLASSES, key=random.key(0)))
    images = (IMAGES * 255).astype(np.uint8)
    augment = data.Augment([data.RandomCrop(1), data.CutMix(CLASSES), data.MixUp(CLASSES)])
    made = train.Trainer(model, losses.cross_entropy, optim.adam(0.01), batch_size=24, device="cpu", augment=augment)
    history = made.fit((images, LABELS), 6, validation=(images, LABELS), verbose=False)
    assert history["val_loss"][-1] < history["val_loss"][0]
    with pytest.raises(ag.ShapeError, match=r"train: RandomCrop is for images .*found f32\[24,105\]"):
        made.fit((images.reshape(COUNT, -1), LABELS), 7, verbose=False)
    with pytest.raises(losses.LabelError, match=r"train: labels\[\d+\] is 4, expected a class from 0 to 3"):
        made.fit((images, np.where(LABELS == 3, 4, LABELS)), 7, verbose=False)
