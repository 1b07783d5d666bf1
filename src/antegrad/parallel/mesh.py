"""`mesh`: which devices train together."""

from __future__ import annotations

import contextlib

import jax

from antegrad.errors import DeviceError
from antegrad.optim import settings
from antegrad.parallel import processes
from antegrad.runtime.device import default_device, resolve
from antegrad.runtime.mesh import Mesh


def mesh(data: int | None = None, *, device: str | None = None) -> Mesh:
    """`data` ranks, each on one device of JAX; by default all devices of the platform, those of other processes too.

    Call it before anything runs on a device: it joins the other processes of the run (see `initialize`), and on the
    CPU it asks JAX for as many devices as are wanted, unless it is set to more (``JAX_NUM_CPU_DEVICES``), which is
    possible only before JAX has started.

    Arguments:
      data: how many ranks, each with its part of every batch. In a run of several processes it is that of all devices.
      device: a platform, ``"gpu"``, ``"tpu"`` or ``"cpu"`` (by default that of the default device), or ``"host"``,
        where NumPy runs all ranks, so that any program can be tried without devices.
    Raises `SettingError` for a number or a name that is none, and `DeviceError` where there are not so many devices.
    """
    data = None if data is None else settings.whole("mesh", "data", data, 1)
    if device is not None and not isinstance(device, str):
        settings.refuse("mesh", "device", "the name of a platform, such as 'cpu'", device)
    if device == "host":
        return Mesh(1 if data is None else data, "host")
    processes.initialize()
    if data is not None and device in (None, "cpu") and processes.count() == 1:
        with contextlib.suppress(DeviceError):  # what there is and what is asked for is compared below
            processes.local_devices(data)
    platform = (default_device() if device is None else resolve(device)).platform
    if platform == "host":
        return Mesh(1 if data is None else data, "host")
    found = sorted(jax.devices(platform), key=lambda each: (each.process_index, each.id))
    count = len(found) if data is None else data
    if count > len(found) or (processes.count() > 1 and count != len(found)):
        if processes.count() > 1:
            raise DeviceError(
                f"mesh: data={data}, but the {processes.count()} processes of this run have {len(found)} devices of "
                f"{platform}, and all of them train together: leave data out"
            )
        raise DeviceError(
            f"mesh: data={data} needs as many devices of {platform}, and JAX has {len(found)}. On the CPU call "
            f"parallel.mesh before anything else runs on a device, or start Python with JAX_NUM_CPU_DEVICES={data}"
        )
    return Mesh(count, platform, tuple(found[:count]))
