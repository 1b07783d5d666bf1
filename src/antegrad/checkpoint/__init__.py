"""Training state in safetensors files, written atomically and trusted only after it has been checked.

    tensors, metadata = pack(parameters, optimizer, step=600, optimizer_kind="adam", seed=1)
    save("out/disc.safetensors", tensors, metadata)

    saved = load("out/disc.safetensors")
    parameters = restore_parameters(saved, {"0.w": spec((2, 16)), ...})
    model = load_model("out/run", model)

Three layers, each usable alone: `codec` (bytes of the format), `store` (files) and `state` (names of training state).
`names` takes the weights of PyTorch and Hugging Face models. `shards` and `index` are about checkpoints that several
processes write together, `directory` about those of a run; `load` reads all of them, and `export` makes one file.
"""

from antegrad.checkpoint.codec import decode, encode
from antegrad.checkpoint.directory import checkpoint_at, export
from antegrad.checkpoint.model import load_model
from antegrad.checkpoint.names import load_torch_names
from antegrad.checkpoint.shards import Sharded
from antegrad.checkpoint.state import (
    FORMAT_VERSION,
    TrainingInfo,
    pack,
    restore_optimizer,
    restore_parameters,
    training_info,
)
from antegrad.checkpoint.store import Checkpoint, ensure_writable, load, load_metadata, save, write_file

__all__ = [
    "FORMAT_VERSION",
    "Checkpoint",
    "Sharded",
    "TrainingInfo",
    "checkpoint_at",
    "decode",
    "encode",
    "ensure_writable",
    "export",
    "load",
    "load_model",
    "load_torch_names",
    "load_metadata",
    "pack",
    "restore_optimizer",
    "restore_parameters",
    "save",
    "training_info",
    "write_file",
]
