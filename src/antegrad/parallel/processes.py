"""Several processes as one run: who they are, how they find each other, and how they end.

The same script runs alone, under ``antegrad launch``, SLURM, Open MPI or Kubernetes: `initialize` reads from the
environment which it is. JAX joins the devices of all processes; a `Watch` beside it ends the run when a peer is lost.

Any other scheduler can set the launcher's variables: ``JAX_COORDINATOR_ADDRESS`` (host:port of process 0, read by JAX),
``ANTEGRAD_PROCESS_COUNT``, ``ANTEGRAD_PROCESS_INDEX``, and if it likes ``ANTEGRAD_PROCESS_TIMEOUT`` in seconds. JAX
itself reads ``JAX_NUM_CPU_DEVICES`` and ``JAX_LOCAL_DEVICE_IDS``, the CPU devices and the GPUs of one process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from types import TracebackType
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from antegrad.errors import DeviceError
from antegrad.optim import settings
from antegrad.parallel.watch import EXIT_CODE, GRACE, PeerError, Watch, describe, flush, serve
from antegrad.runtime.allocator import keep_freed_memory
from antegrad.runtime.device import cores

__all__ = ["count", "index", "initialize", "leader", "local_devices", "watch"]

COUNT, INDEX, TIMEOUT = "ANTEGRAD_PROCESS_COUNT", "ANTEGRAD_PROCESS_INDEX", "ANTEGRAD_PROCESS_TIMEOUT"
ADDRESS = "JAX_COORDINATOR_ADDRESS"
THREADS = "PJRT_NPROC"
"""The size of the thread pools of JAX's CPU client, which it reads when it starts."""

SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
"""What JAX needs to see of SLURM; the batch script of a job, which is no step, has no SLURM_STEP_NODELIST."""
SECONDS = "(0, 1e8]"
"""What a timeout can be: three times as much must still be an i32 of JAX."""
INVITATION = 1024
"""Bytes in which process 0 says where its channel is."""
LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")


@dataclass
class _Run:
    """The state of this process; it is alone until `initialize` finds others."""

    initialized: bool = False
    count: int = 1
    index: int = 0
    watch: Watch | None = None
    pid: int = 0
    failed: bool = False
    told: bool = False
    """Whether it was said that a pod runs alone."""


_run = _Run()


def count() -> int:
    """How many processes the run has; before `initialize` what the environment says: 1 on TPU and Kubernetes pods."""
    return _run.count if _run.initialized else (_detect() or {}).get("num_processes", 1)


def index() -> int:
    """The number of this process, from 0; before `initialize` what the environment says: 0 on TPU pods."""
    return _run.index if _run.initialized else (_detect() or {}).get("process_id", 0)


def leader() -> bool:
    """Whether this is process 0, which does what is done once for all: printing, writing."""
    return index() == 0


def watch() -> Watch | None:
    """The channel to the other processes; None when there are none."""
    return _run.watch


def initialize(*, timeout: float | None = None, start_timeout: float = 300.0) -> None:
    """Join the other processes of the run, if the environment says that there are some. A second call does nothing.

    Call it before anything starts JAX's devices, and in every process. `timeout` is how long a peer may be silent, in
    seconds, before the run ends (60, unless the launcher was told otherwise); all processes wait `start_timeout` for
    each other to start. A process that was joined by ``jax.distributed.initialize`` already only gets its `watch`.

    From then on, the end of Python waits for the others to end too, and an exception that nobody catches is told to
    them. Raises `SettingError` for arguments and variables of the environment that are not the numbers they should be;
    `DeviceError` when JAX has started too early, or the processes have different numbers of devices; `PeerError` when
    one is lost meanwhile; RuntimeError from JAX when they do not find each other.
    """
    if _run.initialized:
        return
    timeout = _time(TIMEOUT, 60.0) if timeout is None else settings.number("initialize", "timeout", timeout, SECONDS)
    start_timeout = settings.number("initialize", "start_timeout", start_timeout, SECONDS)
    if not jax.distributed.is_initialized():
        arguments = _detect()
        if arguments is None:
            _run.initialized = True
            return
        _join(arguments, timeout, start_timeout)
    _run.count, _run.index = jax.process_count(), jax.process_index()
    if _run.count > 1:
        _delay_abort()
        _run.watch = _open_watch(timeout)
        _run.pid = os.getpid()
        _handle_the_end()
    _run.initialized = True


def local_devices(count: int) -> None:
    """Make the CPU of this process `count` devices of JAX, or more if it is set to more; call it before JAX starts.

    Raises `DeviceError` when JAX has started with fewer.
    """
    several = max(count, _cpu_devices())
    os.environ[THREADS] = str(pool_size(several))
    try:
        jax.config.update("jax_num_cpu_devices", several)
    except RuntimeError:
        found = len(jax.local_devices(backend="cpu"))
        if found < count:
            raise DeviceError(
                f"{count} CPU devices were asked for, but JAX has started with {found}: ask before anything runs on a "
                f"device, or start Python with JAX_NUM_CPU_DEVICES={count} {THREADS}={2 * count}"
            ) from None


def _detect() -> dict[str, Any] | None:
    """The arguments for ``jax.distributed.initialize``, None when this process is alone. It starts no device."""
    environment = os.environ
    if COUNT in environment:
        return _several(_whole(COUNT), _whole(INDEX, -1), COUNT, needs_address=True)
    if "OMPI_COMM_WORLD_SIZE" in environment:
        size, rank = _whole("OMPI_COMM_WORLD_SIZE"), _whole("OMPI_COMM_WORLD_RANK")
        return _several(size, rank, "OMPI_COMM_WORLD_SIZE", needs_address="OMPI_MCA_orte_hnp_uri" not in environment)
    if all(name in environment for name in SLURM):
        tasks = _whole("SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS")
        return _several(tasks, _whole("SLURM_PROCID"), "SLURM_NTASKS")
    if "," in environment.get("TPU_WORKER_HOSTNAMES", ""):  # JAX, too, looks for it before Kubernetes
        return {}
    if "KUBERNETES_SERVICE_HOST" in environment and "JOB_COMPLETION_INDEX" in environment:
        return _kubernetes()
    return None


def _whole(name: str, default: int | None = None) -> int:
    """The whole number that a variable of the environment has. Raises `SettingError`."""
    text = os.environ.get(name) or default
    try:
        return int(text)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        settings.refuse("the environment", name, "a whole number", os.environ.get(name))


def _time(name: str, default: float) -> float:
    """The seconds that a variable of the environment has. Raises `SettingError`."""
    text = os.environ.get(name) or default
    with contextlib.suppress(ValueError):
        return settings.number("the environment", name, float(text), SECONDS)
    settings.refuse("the environment", name, f"a number in {SECONDS}", text)


def _several(count: int, index: int, origin: str, *, needs_address: bool = False) -> dict[str, Any] | None:
    if count < 1:
        settings.refuse("the environment", origin, "at least 1", count)
    if count == 1:
        return None
    if not 0 <= index < count:
        raise DeviceError(f"{origin}={count} processes, but the number of this one is {index}: set {INDEX}")
    address = os.environ.get(ADDRESS)
    if needs_address and not address:
        raise DeviceError(f"{origin}={count} processes, but {ADDRESS} is not set: give it host:port of process 0")
    if address and not re.fullmatch(r".+:[0-9]+", address):
        settings.refuse("the environment", ADDRESS, "the host:port of process 0", address)
    return {"num_processes": count, "process_id": index}


def _kubernetes() -> dict[str, Any] | None:
    """Only the cluster knows how many pods an indexed job has, and JAX asks it through the package kubernetes."""
    if find_spec("kubernetes") is not None:
        return {"process_id": _whole("JOB_COMPLETION_INDEX")}
    if _run.told:
        return None
    _run.told = True
    note = f"to join its pods, install jax[k8s], or set {ADDRESS}, {COUNT} and {INDEX}"
    print(f"antegrad: an indexed Kubernetes job; this pod runs alone: {note}", file=sys.stderr)
    return None


def _join(arguments: dict[str, Any], timeout: float, start_timeout: float) -> None:
    keep_freed_memory()  # before JAX starts threads
    os.environ[THREADS] = str(pool_size(_cpu_devices()))
    # The trainer saves on SIGTERM by itself, and a script without one should end by it.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            **arguments,
            initialization_timeout=int(start_timeout),
            # JAX ends a process without naming anybody, so it comes after the watch.
            heartbeat_timeout_seconds=int(3 * timeout) + 30,
            shutdown_timeout_seconds=max(int(timeout), 10),
        )
    except RuntimeError as error:
        if "must be called before" in str(error):
            message = "antegrad.parallel.initialize() came after JAX had started its devices: call it first"
            raise DeviceError(message) from error
        raise


def pool_size(devices: int) -> int:
    """How many threads JAX's CPU client needs for `devices`: it has one for each core, or what is set already.

    Devices that wait for each other in a collective can block two each, and with too few threads all of them for ever.
    """
    return max(_whole(THREADS, cores()), 2 * devices)


def _cpu_devices() -> int:
    """How many CPU devices JAX will have in this process."""
    set_by_flag = re.search(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    configured = getattr(jax.config, "jax_num_cpu_devices", -1)
    return configured if configured > 0 else int(set_by_flag[1]) if set_by_flag else 1


def _open_watch(timeout: float) -> Watch:
    """Process 0 opens the channel, and says where in a collective: all launchers have that way, and JAX shows no other.

    It starts JAX's devices. The token travels where the data of the run does.
    """
    shares = Counter(device.process_index for device in jax.devices())
    if len(shares) != _run.count or len(set(shares.values())) != 1:
        raise DeviceError(f"every process needs equally many devices; by rank they have {dict(sorted(shares.items()))}")
    coordinator = os.environ.get(ADDRESS, "").rpartition(":")[0]
    server = None
    letter = np.zeros(INVITATION, np.uint8)
    if _run.index == 0:
        server = serve(_run.count, "127.0.0.1" if coordinator in LOOPBACK else "", timeout=timeout)
        hosts = ["127.0.0.1"] if coordinator in LOOPBACK else _own_names(coordinator)
        text = json.dumps({"hosts": hosts, "port": server.address[1], "token": server.token}).encode()
        letter[: len(text)] = np.frombuffer(text, np.uint8)
    invitation = json.loads(bytes(multihost_utils.broadcast_one_to_all(letter)).rstrip(b"\0"))
    address = _reachable(invitation["hosts"] if server is None else ["localhost"], invitation["port"], timeout)
    return Watch(_run.index, _run.count, address, timeout=timeout, token=invitation["token"], server=server)


def _own_names(coordinator: str) -> list[str]:
    """Under what names and numbers other machines may reach this one, the likeliest first."""
    names = [coordinator] if coordinator else []
    names += [socket.getfqdn(), socket.gethostname()]
    with contextlib.suppress(OSError):
        names += [str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: it only asks which interface leads out
        names.append(probe.getsockname()[0])
    return [name for name in dict.fromkeys(names) if not name.startswith("127.") and name != "::1"][:8]


def _reachable(hosts: list[str], port: int, timeout: float) -> tuple[str, int]:
    for host in hosts:
        with contextlib.suppress(OSError), socket.create_connection((host, port), min(timeout, 5.0)):
            return host, port
    raise PeerError(f"rank 0 listens on port {port}, but cannot be reached as {' or '.join(hosts)}: is it open?", 0)


def _delay_abort() -> None:
    """JAX aborts this process at once when process 0 dies, without naming it: give the watch time to do so.

    The C function sleep becomes the handler of SIGABRT. It is called with the number of the signal, so it holds the
    thread that aborts for six seconds, and the others go on; the watch ends the process after two.
    """
    if sys.platform == "win32" or signal.getsignal(signal.SIGABRT) != signal.SIG_DFL:
        return
    libc = ctypes.CDLL(None)
    libc.signal(ctypes.c_int(signal.SIGABRT), ctypes.cast(libc.sleep, ctypes.c_void_p))


def _handle_the_end() -> None:
    """Tell the others of an exception that nobody catches, and leave the run together with them."""
    previous = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        previous(kind, error, trace)
        if _run.watch is None or issubclass(kind, KeyboardInterrupt):
            return
        if _run.watch.verdict(wait=1.0) is not None:  # the exception may be what a lost peer left behind
            raise SystemExit(EXIT_CODE)
        _run.watch.fail(describe(error))
        _run.failed = True

    sys.excepthook = tell
    atexit.register(_leave)  # it runs before JAX's own


def _leave() -> None:
    """The end of Python. JAX's part of it waits for all processes, so it must not begin when one is lost."""
    if _run.watch is None or os.getpid() != _run.pid:
        return
    if _run.failed:
        flush()
        os._exit(1)
    try:
        _run.watch.leave()
    except PeerError:
        time.sleep(2 * GRACE)  # the watch ends this process before
        os._exit(EXIT_CODE)
    _run.watch.close()
