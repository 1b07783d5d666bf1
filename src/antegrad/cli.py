"""The command ``antegrad``, which is ``python -m antegrad`` too."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import antegrad as ag
from antegrad import checkpoint
from antegrad.parallel.launch import launch

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (those of the process by default), and return its exit code."""
    parser = argparse.ArgumentParser(prog="antegrad", description="Train neural networks on one or several processes.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_launch, _devices, _export):
        add(commands)
    parsed = vars(parser.parse_args(arguments))
    run = parsed.pop("run")
    try:
        return run(**parsed)
    except ag.AntegradError as error:
        print(f"antegrad: {error}", file=sys.stderr)
        return 2


def _launch(commands: Any) -> None:
    """``antegrad launch --processes 2 script.py ARGUMENTS``."""
    parser = commands.add_parser(
        "launch",
        help="run a script as several processes on this machine",
        usage="antegrad launch --processes N [options] (script.py | -m module) [arguments ...]",
        description="Run a script as several processes on this machine. The script trains with parallel=..., whose "
        "parallel.mesh() joins the processes; under SLURM or Kubernetes it needs no launcher.",
    )
    add = parser.add_argument
    add("--processes", type=int, required=True, metavar="N", help="how many")
    add("--devices-per-process", type=int, default=1, metavar="N", help="CPU devices, or GPUs, of each (1)")
    add("--timeout", type=float, default=60.0, metavar="S", help="seconds that a silent peer is waited for (60)")
    add("--restarts", type=int, default=0, metavar="N", help='after a failure start all again; for resume="latest" (0)')
    add("--port", type=int, default=0, metavar="PORT", help="port of process 0; 0, the default, for a free one")
    add("-m", dest="module", action="store_true", help="run a module, as python -m does")
    add("command", nargs=argparse.REMAINDER, metavar="script.py [arguments ...]")

    def run(command: list[str], module: bool, **options: Any) -> int:
        if not command:
            parser.error("no script to run was given")
        return launch(["-m", *command] if module else command, **options)

    parser.set_defaults(run=run)


def _devices(commands: Any) -> None:
    """``antegrad devices``."""
    parser = commands.add_parser("devices", help="list the devices that programs can run on here")

    def run() -> int:
        for device in ag.devices():
            print(device)
        print(ag.describe_device())
        return 0

    parser.set_defaults(run=run)


def _export(commands: Any) -> None:
    """``antegrad export RUN FILE.safetensors``."""
    parser = commands.add_parser(
        "export",
        help="write a checkpoint, however many processes wrote it, as one safetensors file",
        description="Write a checkpoint as one safetensors file with whole arrays, as one device would write it.",
    )
    parser.add_argument("source", help="a checkpoint, the index of one (*.index.json), or the directory of a run")
    parser.add_argument("target", help="the file to write; one that is there is replaced")

    def run(source: str, target: str) -> int:
        path = checkpoint.export(source, target)
        print(f"{path}: {path.stat().st_size:,} bytes")
        return 0

    parser.set_defaults(run=run)
