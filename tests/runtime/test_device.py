"""Which device is chosen, who says so, and what is said when there is none. Fresh processes where the start matters."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import Any

import jax
import numpy as np
import pytest

import antegrad as ag
from antegrad.errors import DeviceError
from antegrad.runtime import device as device_module
from antegrad.runtime.device import DeviceInfo, describe_device, resolve


def fresh(code: str, **environment: str) -> str:
    """What a new Python prints that runs `code`."""
    kept = {name: value for name, value in os.environ.items() if name not in ("ANTEGRAD_DEVICE", "JAX_PLATFORMS")}
    head = "import antegrad as ag\nfrom antegrad.runtime.device import describe_device"
    command = [sys.executable, "-c", f"{head}\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**kept, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def _untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No choice is left from another test, and none leaves this one."""
    monkeypatch.delenv("ANTEGRAD_DEVICE", raising=False)
    monkeypatch.setattr(device_module, "_process", [])


def test_devices_lists_the_host_first() -> None:
    found = ag.devices()
    assert found[0].name == "host"
    assert {"host", "cpu"} <= {info.platform for info in found}
    assert str(found[0]).startswith("host (NumPy")
    assert all(info.memory for info in found)


def test_case_gpu_preallocation() -> None:
    """Importing starts no backend, so JAX's settings of memory can still be made; nor does the choice of the host."""
    started = "from jax._src import xla_bridge\nprint(xla_bridge.backends_are_initialized())"
    work = "import numpy as np\nag.capture(lambda x: x + 1, np.ones(3)).run(np.ones(3))\nag.default_device()"
    assert fresh(started) == "False"
    assert fresh(f"{work}\n{started}", ANTEGRAD_DEVICE="host") == "False"
    assert fresh(f"ag.default_device('host')\n{work}\nwith ag.default_device('host'): pass\n{started}") == "False"
    assert fresh(f"ag.devices()\n{started}") == "True"


def test_the_variable_names_the_default_device() -> None:
    assert fresh("print(ag.default_device().name)", ANTEGRAD_DEVICE="host") == "host"
    assert fresh("print(ag.default_device().name)", ANTEGRAD_DEVICE="cpu") == "cpu"
    assert fresh("import os; os.environ['ANTEGRAD_DEVICE'] = 'host'; print(ag.default_device().name)") == "host"
    assert fresh("ag.default_device('cpu'); print(ag.default_device().name)", ANTEGRAD_DEVICE="host") == "cpu"
    assert fresh("print(describe_device())", ANTEGRAD_DEVICE="host").endswith("chosen by ANTEGRAD_DEVICE=host")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "ANTEGRAD_DEVICE=gpu: the device 'gpu' is not to be had: jax found no GPU or TPU (JAX_PLATFORMS=cpu)."),
        ("gqu", "ANTEGRAD_DEVICE=gqu: the device 'gqu' is unknown: expected host, cpu, gpu or tpu, or one of several"),
        ("cpu:7", "ANTEGRAD_DEVICE=cpu:7: the device 'cpu:7' is not to be had: only 1 of cpu here."),
    ],
)
def test_a_wrong_variable_is_one_clear_error(name: str, message: str) -> None:
    code = """
try:
    ag.default_device()
except ag.DeviceError as error:
    print(error)
"""
    said = fresh(code, ANTEGRAD_DEVICE=name, JAX_PLATFORMS="cpu")
    assert said.startswith(message)
    assert said.endswith("Available here: host, cpu")


def test_unknown_names_in_calls() -> None:
    program = ag.capture(lambda x: x + 1, np.ones(3, np.float32))
    for call in (lambda: program.run(np.ones(3, np.float32), device="gqu"), lambda: ag.compile(program, device="gqu")):
        with pytest.raises(DeviceError, match="device='gqu': the device 'gqu' is unknown"):
            call()
    with pytest.raises(DeviceError, match=r"ag.default_device\('tpu:9'\): the device 'tpu:9'"):
        ag.default_device("tpu:9")


@pytest.mark.parametrize("name", ["cpu:", "cpu:x", "cpu:-1", ":0", "", "host:0", "CPU"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(DeviceError, match="Available here: host, cpu"):
        resolve(name)


def test_setting_and_scoping() -> None:
    ag.default_device("cpu")
    assert ag.default_device().name == "cpu"
    with ag.default_device("host") as info:
        assert (info.name, ag.default_device().name) == ("host", "host")
        assert describe_device().endswith("chosen by ag.default_device('host')")
        with ag.default_device("cpu"):
            assert ag.default_device().name == "cpu"
        assert ag.default_device().name == "host"
    assert ag.default_device().name == "cpu"
    with pytest.raises(KeyError), ag.default_device("host"):
        raise KeyError
    assert ag.default_device().name == "cpu"


def seen_by_another_thread() -> str:
    names: list[str] = []
    thread = threading.Thread(target=lambda: names.append(ag.default_device().name))
    thread.start()
    thread.join()
    return names[0]


def test_a_block_is_for_its_thread_and_a_setting_for_all() -> None:
    ag.default_device("cpu")
    with ag.default_device("host"):
        assert seen_by_another_thread() == "cpu"
    ag.default_device("host")
    assert seen_by_another_thread() == "host"


def test_blocks_that_begin_at_once_leave_nothing_behind() -> None:
    """Two threads call, then both enter, then both leave."""
    ag.default_device("cpu")
    first, second = ag.default_device("host"), ag.default_device("host")
    with first:
        pass
    with second:
        assert seen_by_another_thread() == "cpu"
    assert ag.default_device().name == "cpu"


def test_a_setting_between_a_call_and_its_block_stays() -> None:
    ag.default_device("host")
    scope = ag.default_device("host")
    thread = threading.Thread(target=ag.default_device, args=("cpu",))
    thread.start()
    thread.join()
    with scope:
        assert ag.default_device().name == "host"
    assert ag.default_device().name == "cpu"


def test_a_setting_whose_object_is_kept_counts_too() -> None:
    """In the order of the calls."""
    kept = ag.default_device("host")
    assert ag.default_device().name == "host"
    kept = [kept, ag.default_device("cpu"), ag.default_device("host")]
    ag.default_device("cpu")
    del kept
    assert ag.default_device().name == "cpu"


def test_a_block_is_for_its_task() -> None:
    async def inside(name: str) -> str:
        with ag.default_device(name):
            await asyncio.sleep(0)
            return ag.default_device().name

    async def both() -> list[str]:
        return await asyncio.gather(inside("host"), inside("cpu"))

    assert asyncio.run(both()) == ["host", "cpu"]


def test_the_default_device_is_where_programs_run() -> None:
    x = np.ones(3, np.float32)
    with ag.default_device("host"):
        assert isinstance(ag.compile(lambda x: x + 1)(x), np.ndarray)
    with ag.default_device("cpu"):
        assert isinstance(ag.compile(lambda x: x + 1)(x), jax.Array)


class FakeGpu:
    """What `devices` asks of a device of JAX."""

    platform, device_kind = "gpu", "NVIDIA H200"

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": 100 * 2**30}


def pretend(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    """As if JAX had found so many GPUs."""
    real = jax.local_devices

    def local_devices(backend: str | None = None) -> list[Any]:
        return [FakeGpu() for _ in range(gpus)] if backend == "gpu" and gpus else real(backend=backend)

    monkeypatch.setattr(jax, "local_devices", local_devices)


def test_the_best_device_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 2)
    assert [info.name for info in ag.devices()] == ["host", "gpu:0", "gpu:1", "cpu"]
    assert ag.default_device().name == "gpu:0"
    assert describe_device() == "antegrad runs on gpu:0 (NVIDIA H200, 100 GiB): the best of host, gpu:0, gpu:1, cpu"
    assert (resolve("gpu").name, resolve("gpu:1").name) == ("gpu:0", "gpu:1")
    with pytest.raises(DeviceError, match="'gpu:2' is not to be had: only 2 of gpu here"):
        resolve("gpu:2")


def test_the_line_says_why_nothing_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "local_devices", lambda backend: jax.devices("cpu") if backend == "cpu" else [])
    for visible, plugin, reason in [
        (False, False, "jax found no GPU or TPU"),
        (True, False, "an NVIDIA GPU is visible, but this jax has no CUDA: pip install 'antegrad[cuda]'"),
        (True, True, "jax's CUDA plugin did not start"),
    ]:
        monkeypatch.setattr(device_module, "_nvidia_visible", lambda visible=visible: visible)
        monkeypatch.setattr(device_module, "find_spec", lambda name, plugin=plugin: plugin or None)
        line = describe_device()
        assert line.startswith("antegrad runs on cpu")
        assert reason in line
        assert "\n" not in line


def test_a_jax_that_cannot_start_leaves_the_host() -> None:
    assert "host (NumPy" in fresh("print(describe_device())", JAX_PLATFORMS="nonsense")
    assert "JAX_PLATFORMS=nonsense" in fresh("print(describe_device())", JAX_PLATFORMS="nonsense")
    assert fresh("print([d.name for d in ag.devices()])", JAX_PLATFORMS="cuda") == "['host']"


def test_infos_are_values() -> None:
    assert ag.devices() == ag.devices()
    assert len({*ag.devices(), *ag.devices()}) == len(ag.devices())
    assert isinstance(resolve(ag.devices()[0]), DeviceInfo)
