"""Several devices that run one program together, each as one rank with its part of the data.

A program for a mesh is written for one rank. An input or output is either *replicated*, the same array on every rank,
or *sharded*: the ranks hold equal parts of a global array, one after the other along its first axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from antegrad.errors import DeviceError, DTypeError, ShapeError
from antegrad.ir.program import Program
from antegrad.ir.types import TensorType, type_of
from antegrad.runtime.device import DeviceInfo, resolve
from antegrad.runtime.lockstep import check_ranks, run_ranks
from antegrad.runtime.signature import Signature
from antegrad.runtime.xla import default_options, known_options, program_function

AXIS = "data"

OPTIONS: dict[str, dict[str, Any]] = {
    "cpu": {
        "xla_disable_hlo_passes": "cpu-all-reduce-combiner",
        "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    },
    "gpu": {
        "xla_gpu_all_reduce_combine_threshold_bytes": 0,
        "xla_gpu_all_gather_combine_threshold_bytes": 0,
        "xla_gpu_reduce_scatter_combine_threshold_bytes": 0,
        "xla_gpu_enable_latency_hiding_scheduler": True,
    },
}
"""XLA would put collectives that do not need each other into one, at the end: the executable has those of the program,
and on a GPU they run beside the computation that does not need them. XLA:CPU would order a program with collectives
breadth first: all parameters of ZeRO-3 gathered before the first layer, all gradients of ZeRO-2 whole at once."""


@dataclass(frozen=True, eq=False)
class Mesh:
    """`size` ranks. `devices` are their devices of JAX in order, also those of other processes; none on the host."""

    size: int
    platform: str
    devices: tuple[Any, ...] = ()

    @cached_property
    def local_ranks(self) -> range:
        """The ranks of this process, which follow each other."""
        if not self.devices:
            return range(self.size)
        own = [rank for rank, device in enumerate(self.devices) if device.process_index == jax.process_index()]
        return range(own[0], own[-1] + 1) if own else range(0)

    @cached_property
    def spans_processes(self) -> bool:
        """Whether other processes have ranks too."""
        return len(self.local_ranks) < self.size

    @property
    def device(self) -> DeviceInfo:
        """The device of the first rank of this process."""
        if not self.devices:
            return resolve("host")
        handle = self.devices[self.local_ranks[0]]
        return DeviceInfo(self.platform, self.platform, handle.device_kind, None, handle)

    def sharding(self, sharded: bool) -> NamedSharding:
        """How JAX places a sharded or a replicated global array."""
        return self._shardings[sharded]

    @cached_property
    def _shardings(self) -> tuple[NamedSharding, NamedSharding]:
        mesh = jax.sharding.Mesh(np.array(self.devices), (AXIS,))
        return NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(AXIS))

    def global_type(self, local: TensorType, sharded: bool) -> TensorType:
        """The type of the global array of which each rank holds a `local` one."""
        return local.with_shape((local.shape[0] * self.size, *local.shape[1:])) if sharded else local

    def put(self, array: Any, sharded: bool) -> Any:
        """A global array on the devices of this process, of which it copies its own parts alone.

        All processes call it, each with the whole array or with something that can be sliced along the first axis.
        """
        if not self.devices:
            return np.array(array)
        shape, dtype = tuple(array.shape), array.dtype
        with jax.enable_x64(True):  # or else JAX would narrow 64-bit types
            if not sharded and not self.spans_processes:
                return jax.device_put(np.array(array, order="C"), self.sharding(False))
            return jax.make_array_from_callback(
                shape, self.sharding(sharded), lambda index: np.array(array[index], order="C"), dtype=dtype
            )

    def put_own(self, rows: np.ndarray) -> Any:
        """A sharded global array of which this process gives the parts of its own ranks, one after the other."""
        if not self.devices:
            return np.array(rows)
        size = len(rows) // len(self.local_ranks) * self.size
        with jax.enable_x64(True):
            return jax.make_array_from_process_local_data(self.sharding(True), np.array(rows), (size, *rows.shape[1:]))

    def fetch(self, array: Any) -> np.ndarray:
        """The whole of a global array, as NumPy has it. All processes call it."""
        if not array.size:
            return np.zeros(array.shape, array.dtype)
        if isinstance(array, jax.Array) and not (array.is_fully_addressable or array.is_fully_replicated):
            return np.array(multihost_utils.process_allgather(array, tiled=True))
        return np.array(array)

    def own_rows(self, array: Any) -> np.ndarray:
        """The parts of a sharded array that the ranks of this process hold, one after the other."""
        if not isinstance(array, jax.Array):
            return np.array(array)
        parts = {shard.index[0].start or 0: np.asarray(shard.data) for shard in array.addressable_shards}
        return np.concatenate([parts[start] for start in sorted(parts)])


class MeshExecutable:
    """A program for one rank, compiled for all ranks of a mesh.

    It takes and gives global arrays. `sharded_inputs` and `sharded_outputs` say of each input and output whether it is
    sharded; the others are replicated. `donate` lists positions of inputs whose memory the outputs take over.
    """

    def __init__(
        self,
        program: Program,
        mesh: Mesh,
        sharded_inputs: Sequence[bool],
        sharded_outputs: Sequence[bool],
        donate: Sequence[int] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.program, self.mesh, self.signature = program, mesh, Signature.of(program)
        self.sharded_inputs, self.sharded_outputs = tuple(sharded_inputs), tuple(sharded_outputs)
        self.signature.check_donation(donate)
        self._check_flags()
        check_ranks(program, mesh.size)
        self.compiled: Any = None
        if mesh.devices:
            own = known_options(OPTIONS.get(mesh.platform, {})) if mesh.size > 1 else {}
            self._compile(tuple(donate), {**default_options(mesh.platform, program), **own, **(options or {})})

    def _check_flags(self) -> None:
        flags = (*self.sharded_inputs, *self.sharded_outputs)
        types = (*self.signature.input_types, *self.signature.output_types)
        if len(flags) != len(types):
            raise ShapeError(f"program {self.program.name}: {len(types)} inputs and outputs, and {len(flags)} flags")
        for flag, type in zip(flags, types, strict=True):
            if flag and not type.ndim:
                raise ShapeError(f"program {self.program.name}: a scalar cannot be sharded, found {type}")

    def _compile(self, donate: tuple[int, ...], options: dict[str, Any]) -> None:
        mesh, captured = self.mesh, len(self.program.captured)
        flags = (*self.sharded_inputs, *[False] * captured)
        specs, results = (
            tuple(PartitionSpec(AXIS) if flag else PartitionSpec() for flag in each)
            for each in (flags, self.sharded_outputs)
        )
        inner = jax.shard_map(
            program_function(self.program),
            mesh=mesh.sharding(False).mesh,
            in_specs=specs,
            out_specs=results,
            check_vma=False,
        )
        jitted = jax.jit(
            inner,
            in_shardings=tuple(map(mesh.sharding, flags)),
            out_shardings=tuple(map(mesh.sharding, self.sharded_outputs)),
            donate_argnums=donate,
            compiler_options=options or None,
        )
        with jax.enable_x64(True):
            types = [
                jax.ShapeDtypeStruct(mesh.global_type(type, flag).shape, type.dtype)
                for type, flag in zip(self.program.input_types, flags, strict=True)
            ]
            self.compiled = jitted.lower(*types).compile()
            self._captured = [mesh.put(array, False) for array in self.program.captured]

    def __call__(self, *arguments: Any) -> list[Any]:
        """The outputs as global arrays, for global arrays; those of NumPy are copied to the devices.

        Raises `ShapeError`, `DTypeError` and `DeviceError` for what does not fit, or has been donated to an earlier
        call, naming the input.
        """
        self.signature.check_count(arguments)
        checked = [self._checked(position, leaf) for position, leaf in enumerate(arguments)]
        if self.compiled is None:
            return self._run_on_host(checked)
        ready = [
            leaf if isinstance(leaf, jax.Array) else self.mesh.put(leaf, flag)
            for leaf, flag in zip(checked, self.sharded_inputs, strict=True)
        ]
        results = list(self.compiled(*ready, *self._captured))
        # On the CPU ranks wait for each other in threads, of which there would not be enough for several calls at once.
        return jax.block_until_ready(results) if self.mesh.platform == "cpu" else results

    def _checked(self, position: int, leaf: Any) -> Any:
        """A global argument, if it fits; JAX would end the process for one whose memory was given away."""
        own, sharded = self.signature.input_types[position], self.sharded_inputs[position]
        where = f"program {self.program.name}: input {self.signature.input_names[position]}"
        if isinstance(leaf, jax.Array):
            if leaf.is_deleted():
                raise DeviceError(f"{where} has been deleted: an earlier call was given its memory (donate)")
            if not leaf.sharding.is_equivalent_to(self.mesh.sharding(sharded), leaf.ndim):
                held = "sharded over" if sharded else "replicated on"
                raise DeviceError(f"{where} must be {held} the devices of the mesh, found {leaf.sharding}")
        array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        expected = self.mesh.global_type(own, sharded)
        if tuple(array.shape) != expected.shape:
            raise ShapeError(f"{where} must be {expected} over all {self.mesh.size} ranks, found {type_of(array)}")
        if array.dtype != expected.dtype:
            raise DTypeError(f"{where} must be {expected}, found {type_of(array)}: convert it with .astype(...)")
        return array

    def _run_on_host(self, arguments: Sequence[Any]) -> list[Any]:
        size = self.mesh.size
        columns = [
            np.split(np.asarray(leaf), size) if flag else [np.asarray(leaf)] * size
            for leaf, flag in zip(arguments, self.sharded_inputs, strict=True)
        ]
        rows = run_ranks(self.program, [[column[rank] for column in columns] for rank in range(size)])
        return [
            np.concatenate([row[i] for row in rows]) if flag else rows[0][i]
            for i, flag in enumerate(self.sharded_outputs)
        ]

    def hlo(self) -> str:
        """The optimized HLO text. Raises `DeviceError` on the host."""
        return self._xla().as_text() or ""

    def memory(self) -> Any:
        """JAX's account of the memory that the executable needs on each device, in bytes; `DeviceError` on the host."""
        return self._xla().memory_analysis()

    def _xla(self) -> Any:
        if self.compiled is None:
            raise DeviceError(f"program {self.program.name} runs on the host, which has no XLA executable")
        return self.compiled
