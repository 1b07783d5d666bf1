"""What the environment of a process says of its run, before JAX has started."""

from __future__ import annotations

import os

import pytest

from antegrad import parallel
from antegrad.errors import DeviceError, SettingError
from antegrad.parallel import processes
from tests.parallel.test_launch import environment

STEP = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}
MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
OURS_SET = {"ANTEGRAD_PROCESS_COUNT": "3", "ANTEGRAD_PROCESS_INDEX": "2"}
ADDRESS = {"JAX_COORDINATOR_ADDRESS": "node1:1234"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        (ADDRESS, None),
        (STEP, {"num_processes": 4, "process_id": 3}),
        ({**STEP, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, None),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, None),
        ({name: value for name, value in STEP.items() if name != "SLURM_STEP_NODELIST"}, None),
        ({**MPI, "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:1"}, {"num_processes": 2, "process_id": 1}),
        ({**MPI, **ADDRESS}, {"num_processes": 2, "process_id": 1}),
        ({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, None),
        ({**OURS_SET, **ADDRESS}, {"num_processes": 3, "process_id": 2}),
        ({**OURS_SET, **ADDRESS, **STEP}, {"num_processes": 3, "process_id": 2}),
        ({"ANTEGRAD_PROCESS_COUNT": "1"}, None),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, {}),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"}, {}),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, None),
    ],
)
def test_what_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: dict[str, int] | None
) -> None:
    monkeypatch.setattr(os, "environ", environment(**variables))
    assert processes._detect() == expected


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (MPI, "OMPI_COMM_WORLD_SIZE=2 processes, but JAX_COORDINATOR_ADDRESS is not set"),
        (OURS_SET, "ANTEGRAD_PROCESS_COUNT=3 processes, but JAX_COORDINATOR_ADDRESS is not set"),
        ({"ANTEGRAD_PROCESS_COUNT": "2", **ADDRESS}, "the number of this one is -1: set ANTEGRAD_PROCESS_INDEX"),
    ],
)
def test_an_environment_that_says_too_little(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    monkeypatch.setattr(os, "environ", environment(**variables))
    with pytest.raises(DeviceError, match=message):
        processes._detect()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"ANTEGRAD_PROCESS_COUNT": "two"}, "ANTEGRAD_PROCESS_COUNT must be a whole number, found 'two'"),
        ({"ANTEGRAD_PROCESS_COUNT": "0"}, "ANTEGRAD_PROCESS_COUNT must be at least 1, found 0"),
        ({"ANTEGRAD_PROCESS_COUNT": "2", "ANTEGRAD_PROCESS_INDEX": "1.5"}, "ANTEGRAD_PROCESS_INDEX .* found '1.5'"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK must be a whole number, found None"),
        ({**OURS_SET, "JAX_COORDINATOR_ADDRESS": "node1"}, "JAX_COORDINATOR_ADDRESS must be .*port.* found 'node1'"),
        ({"ANTEGRAD_PROCESS_TIMEOUT": "inf"}, r"ANTEGRAD_PROCESS_TIMEOUT must be a number in \(0, 1e8\], found 'inf'"),
        ({"ANTEGRAD_PROCESS_TIMEOUT": "nan"}, "ANTEGRAD_PROCESS_TIMEOUT must be a number .* found 'nan'"),
        ({"ANTEGRAD_PROCESS_TIMEOUT": "long"}, "ANTEGRAD_PROCESS_TIMEOUT must be a number .* found 'long'"),
    ],
)
def test_variables_that_are_no_numbers(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    monkeypatch.setattr(os, "environ", environment(**variables))
    monkeypatch.setattr(processes, "_run", processes._Run())
    with pytest.raises(SettingError, match=f"the environment: {message}"):
        parallel.initialize()


@pytest.mark.parametrize("known", [True, False])
def test_an_indexed_kubernetes_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], known: bool
) -> None:
    """What is not known is said once."""
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "3"}
    monkeypatch.setattr(os, "environ", environment(**pod))
    monkeypatch.setattr(processes, "_run", processes._Run())
    monkeypatch.setattr(processes, "find_spec", lambda name: object() if known else None)
    assert processes._detect() == ({"process_id": 3} if known else None)
    assert (parallel.count(), parallel.index(), parallel.leader()) == ((1, 3, False) if known else (1, 0, True))
    assert capsys.readouterr().err.count("this pod runs alone") == (0 if known else 1)
