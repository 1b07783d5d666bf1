"""Training on more than one device: what travels between them is written in the program.

    trainer = train.Trainer(model, loss, optimizer, batch_size=512, parallel=parallel.zero(2))

`ddp` and `zero` say what is divided among the ranks of a `mesh`. One process may have several ranks, and a run several
processes: ``antegrad launch --processes 4 script.py``, or SLURM, MPI or Kubernetes, start the same script.
"""

from antegrad.parallel.mesh import mesh
from antegrad.parallel.plan import Plan, plan
from antegrad.parallel.processes import count, index, initialize, leader
from antegrad.parallel.report import MemoryReport, memory_report
from antegrad.parallel.strategy import NAMES, Strategy, ddp, strategy, zero
from antegrad.parallel.watch import PeerError
from antegrad.runtime.lockstep import lockstep, run_ranks
from antegrad.runtime.mesh import Mesh, MeshExecutable

__all__ = [
    "Mesh",
    "MemoryReport",
    "MeshExecutable",
    "NAMES",
    "PeerError",
    "Plan",
    "Strategy",
    "count",
    "ddp",
    "index",
    "initialize",
    "leader",
    "lockstep",
    "memory_report",
    "mesh",
    "plan",
    "run_ranks",
    "strategy",
    "zero",
]
