"""Wrong use as a new user would try it: one clear message that names the place, and nothing lost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import antegrad as ag
from antegrad import losses, nn, optim, random

THIS = Path(__file__).name


def model_with(second_inputs: int) -> nn.Sequential:
    first, second = random.split(random.key(0))
    return nn.Sequential(nn.Dense(4, 8, key=first), nn.relu, nn.Dense(second_inputs, 2, key=second))


def test_case_shape_error():
    with pytest.raises(ag.ShapeError) as caught:
        ag.train_step(model_with(9), losses.mean_squared_error, optim.adam(0.1), ag.spec((3, 4)), ag.spec((3, 2)))
    message = str(caught.value)
    assert "layer 2" in message
    assert "f32[3,8]" in message
    assert "f32[9,2]" in message
    assert "size 9" in message
    assert re.search(rf"{THIS}:\d+", message)


def test_a_shape_error_at_once_on_arrays_names_the_layer_too():
    with pytest.raises(ag.ShapeError, match=r"(?s)Dense\(9 -> 2\).*f32\[3,8\].*layer 2") as caught:
        model_with(9)(np.zeros((3, 4), np.float32))
    assert THIS in str(caught.value)


def test_a_target_of_another_rank_is_no_broadcast():
    with pytest.raises(ag.ShapeError) as caught:
        ag.capture(losses.mean_squared_error, ag.spec((8, 1)), ag.spec((8,)))
    assert "f32[8,1]" in str(caught.value)
    assert "f32[8]" in str(caught.value)


@pytest.fixture
def saved(tmp_path):
    step = ag.train_step(model_with(8), losses.mean_squared_error, optim.adam(0.1), ag.spec((3, 4)), ag.spec((3, 2)))
    path = tmp_path / "state.safetensors"
    step.save(path, step.init(), seed=3)
    return step, path


def test_a_truncated_checkpoint(saved):
    step, path = saved
    data = path.read_bytes()
    path.write_bytes(data[:-4])
    with pytest.raises(ag.CheckpointError, match=re.escape(str(path))):
        step.load(path)
    assert path.read_bytes() == data[:-4]


def test_a_directory_without_write_permission(saved, tmp_path):
    step, _ = saved
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    try:
        with pytest.raises(ag.CheckpointError, match="closed"):
            step.save(closed / "state.safetensors", step.init())
        assert list(closed.iterdir()) == []
    finally:
        closed.chmod(0o755)


def test_a_checkpoint_of_another_model(saved):
    _, path = saved
    other = nn.Sequential(nn.Dense(4, 8, key=random.key(0)), nn.relu, nn.Dense(8, 3, key=random.key(1)))
    step = ag.train_step(other, losses.mean_squared_error, optim.adam(0.1), ag.spec((3, 4)), ag.spec((3, 3)))
    with pytest.raises(ag.CheckpointError) as caught:
        step.load(path)
    message = str(caught.value)
    assert "f32[8,2]" in message
    assert "f32[8,3]" in message
    assert "2.w" in message


def test_a_checkpoint_of_another_optimizer(saved):
    _, path = saved
    step = ag.train_step(model_with(8), losses.mean_squared_error, optim.sgd(0.1), ag.spec((3, 4)), ag.spec((3, 2)))
    with pytest.raises(ag.CheckpointError, match=r"adam.*sgd"):
        step.load(path)


def test_an_unknown_device():
    with pytest.raises(ag.DeviceError, match=r"'abacus'.*Available here: host, cpu"):
        ag.compile(lambda x: x, device="abacus")


@pytest.mark.parametrize("name", ["gpu", "abacus"])
def test_a_device_variable_that_cannot_be_followed(name):
    if name == "gpu" and any(device.platform == "gpu" for device in ag.devices()):
        pytest.skip("this machine has a GPU, so ANTEGRAD_DEVICE=gpu is no mistake here")
    code = "import antegrad as ag; ag.default_device()"
    environment = {**os.environ, "ANTEGRAD_DEVICE": name}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert f"ANTEGRAD_DEVICE={name}" in last
    assert "Available here: host, cpu" in last


def test_a_batch_that_does_not_fit_the_compiled_step_loses_no_state():
    step = ag.train_step(model_with(8), losses.mean_squared_error, optim.adam(0.1), ag.spec((3, 4)), ag.spec((3, 2)))
    run = ag.compile(step.step, device="cpu", donate=step.state_names)
    x, y = np.ones((3, 4), np.float32), np.ones((3, 2), np.float32)
    loss, *arrays = run(*step.init().arrays, x, y)
    with pytest.raises(ag.ShapeError, match=r"x.*f32\[3,4\].*f32\[5,4\]|f32\[5,4\].*f32\[3,4\]"):
        run(*arrays, np.ones((5, 4), np.float32), y)
    again, *_ = run(*arrays, x, y)
    assert float(again) < float(loss)
