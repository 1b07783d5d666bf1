"""What was trained comes back as a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from antegrad import losses, nn, optim, random, train
from antegrad.checkpoint import load_model
from antegrad.errors import CheckpointError

X = np.random.default_rng(0).standard_normal((24, 3)).astype(np.float32)


def network(seed: int, width: int = 4) -> nn.Module:
    first, second = random.split(random.key(seed))
    return nn.Sequential(nn.Dense(3, width, key=first), nn.BatchNorm(width), nn.Dense(width, 2, key=second))


def test_a_trained_model_is_used_without_its_trainer(tmp_path: Path) -> None:
    """That of the run's latest checkpoint, state of layers included, or of any other."""
    trainer = train.Trainer(network(0), losses.mean_squared_error, optim.adam(0.1), batch_size=8, device="host")
    trainer.fit((X, X[:, :2]), 2, run=tmp_path / "run", verbose=False)
    fresh = network(1)
    loaded = load_model(tmp_path / "run", fresh)
    np.testing.assert_array_equal(loaded(X), trainer.predict(X))
    assert not np.array_equal(loaded(X), fresh(X))
    first = load_model(tmp_path / "run" / "step-00000003.safetensors", fresh)
    assert not np.array_equal(first(X), loaded(X))


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    trainer = train.Trainer(network(0), losses.mean_squared_error, optim.adam(0.1), batch_size=8, device="host")
    trainer.fit((X, X[:, :2]), 1, run=tmp_path / "run", verbose=False)
    with pytest.raises(CheckpointError, match=r"0\.w.*f32\[3,4\].*f32\[3,5\]"):
        load_model(tmp_path / "run", network(0, 5))
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"empty has no checkpoint: name a file, an index, or"):
        load_model(tmp_path / "empty", network(0))
