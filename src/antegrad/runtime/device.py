"""Devices: what there is, which one is used, and why.

Nothing here runs at import: the first question about a device of JAX starts JAX's backends, and on a GPU that takes
most of its memory (JAX's own variable ``XLA_PYTHON_CLIENT_PREALLOCATE=false`` turns that off until then).
"""

from __future__ import annotations

import os
import shutil
import threading
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, overload

import jax

from antegrad.errors import DeviceError
from antegrad.runtime.allocator import keep_freed_memory

VARIABLE = "ANTEGRAD_DEVICE"
"""The environment variable that names the default device; it is read at first use."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device. `memory` is in bytes, None where it is not known; `handle` is JAX's device, None for the host."""

    name: str
    platform: str
    kind: str
    memory: int | None
    handle: Any = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        """``gpu:1 (NVIDIA H200, 139 GiB)``."""
        memory = f", {self.memory / 2**30:.0f} GiB" if self.memory else ""
        return f"{self.name} ({self.kind}{memory})"


def devices() -> list[DeviceInfo]:
    """The host, then the devices of this process that JAX finds, the preferred platform first."""
    return [_host(), *_accelerated()]


def _host() -> DeviceInfo:
    return DeviceInfo("host", "host", "NumPy", _main_memory())


_NO_BACKEND = (RuntimeError, AssertionError)
"""What JAX raises when it can start no backend, or not the one asked for; the second where JAX_PLATFORMS=cuda fails."""


def _accelerated() -> list[DeviceInfo]:
    keep_freed_memory()  # before JAX starts threads, which would get heaps of their own
    platforms = ["gpu", "tpu", "cpu"]
    try:
        default = jax.default_backend()
    except _NO_BACKEND:  # `_why_not_faster` says so
        return []
    platforms = platforms if default in platforms else [default, *platforms]
    return [info for platform in platforms for info in _of_platform(platform)]


def _of_platform(platform: str) -> list[DeviceInfo]:
    try:
        handles = jax.local_devices(backend=platform)
    except _NO_BACKEND:
        return []
    return [
        DeviceInfo(platform if len(handles) == 1 else f"{platform}:{index}", platform, *_details(handle), handle)
        for index, handle in enumerate(handles)
    ]


def _details(handle: Any) -> tuple[str, int | None]:
    if handle.platform == "cpu":
        return f"{cores()} cores", _main_memory()
    return handle.device_kind, (handle.memory_stats() or {}).get("bytes_limit")


def cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _main_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


@dataclass(frozen=True)
class _Choice:
    device: DeviceInfo
    origin: str
    """Where the name came from; empty when the best device was taken."""


_blocks: ContextVar[tuple[_Choice, ...]] = ContextVar("antegrad.blocks", default=())
"""The choices of the ``with`` blocks around, the innermost last."""
_process: list[_Choice] = []
"""What was set for the process, the last one last."""
_lock = threading.Lock()


class Scope:
    """What `default_device(name)` returns: the name is set already; as a context manager it holds for the block."""

    def __init__(self, choice: _Choice) -> None:
        self._choice = choice
        with _lock:
            _process.append(choice)

    def __enter__(self) -> DeviceInfo:
        with _lock:  # its own entry goes, wherever it is by now: other threads set names too
            _process[:] = [choice for choice in _process if choice is not self._choice]
        _blocks.set((*_blocks.get(), self._choice))
        return self._choice.device

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _blocks.set(_blocks.get()[:-1])

    def __repr__(self) -> str:
        return f"default_device({self._choice.device.name!r})"


@overload
def default_device() -> DeviceInfo: ...
@overload
def default_device(name: str | DeviceInfo) -> Scope: ...
def default_device(name: str | DeviceInfo | None = None) -> DeviceInfo | Scope:
    """The device on which programs run unless a call names one: get it, set it, or set it for a block.

    ``default_device()`` is the current one: what was set, else ``ANTEGRAD_DEVICE``, else the best of gpu, tpu and cpu.
    ``default_device("host")`` sets it for the process; ``with default_device("host"):`` for the block and its thread.
    Names are ``"host"``, ``"cpu"``, ``"gpu"``, ``"tpu"``, with an index as in ``"gpu:1"`` where there are several.

    Raises `DeviceError` for a name that is unknown or not to be had here.
    """
    if name is None:
        return _current().device
    origin = f"ag.default_device({_name(name)!r})"
    return Scope(_Choice(_find(_name(name), origin), origin))


def resolve(device: str | DeviceInfo | None) -> DeviceInfo:
    """The device that `device` names, or the default one. Raises `DeviceError`."""
    if device is None:
        return default_device()
    return device if isinstance(device, DeviceInfo) else _find(device, f"device={device!r}")


def describe_device() -> str:
    """One line: the default device, and why it is not a faster one."""
    choice = _current()
    if choice.origin:
        return f"antegrad runs on {choice.device}: chosen by {choice.origin}"
    if choice.device.platform in ("host", "cpu"):
        return f"antegrad runs on {choice.device}: {_why_not_faster()}"
    return f"antegrad runs on {choice.device}: the best of {', '.join(info.name for info in devices())}"


def _current() -> _Choice:
    if blocks := _blocks.get():
        return blocks[-1]
    if not _process:
        name = os.environ.get(VARIABLE, "").strip()
        origin = f"{VARIABLE}={name}" if name else ""
        choice = _Choice(_find(name, origin) if name else [*_accelerated(), _host()][0], origin)
        with _lock:  # another thread may have set one meanwhile, which then comes after it
            _process.insert(0, choice)
    return _process[-1]


def _name(device: str | DeviceInfo) -> str:
    return device.name if isinstance(device, DeviceInfo) else device


def _find(name: str, origin: str) -> DeviceInfo:
    """The device called `name`. The host is found without a start of JAX."""
    if name == "host":
        return _host()
    found = _accelerated()
    platform, _, index = name.partition(":")
    same = [info for info in found if info.platform == platform]
    if name == platform and same:
        return same[0]
    if index.isdecimal() and int(index) < len(same):
        return same[int(index)]
    if platform not in ("cpu", "gpu", "tpu") and not same:
        reason = "is unknown: expected host, cpu, gpu or tpu, or one of several such as gpu:1"
    else:
        reason = f"is not to be had: {f'only {len(same)} of {platform} here' if same else _why_not_faster()}"
    available = ", ".join(["host", *(info.name for info in found)])
    raise DeviceError(f"{origin}: the device {name!r} {reason}. Available here: {available}")


def _why_not_faster() -> str:
    """Why JAX offers no GPU or TPU."""
    allowed = getattr(jax.config, "jax_platforms", None)
    limit = f" (JAX_PLATFORMS={allowed})" if allowed else ""
    try:
        jax.default_backend()
    except _NO_BACKEND as error:
        return f"jax could not start{limit}: {str(error) or 'no such platform'}"
    if limit or not _nvidia_visible():
        return f"jax found no GPU or TPU{limit}"
    if any(find_spec(plugin) for plugin in ("jax_cuda12_plugin", "jax_cuda13_plugin")):
        return "jax's CUDA plugin did not start: python -c \"import jax; jax.devices('cuda')\" says why"
    return "an NVIDIA GPU is visible, but this jax has no CUDA: pip install 'antegrad[cuda]'"


def _nvidia_visible() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
