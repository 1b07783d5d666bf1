"""The models as a user of PyTorch writes them: modules over images [batch, channels, height, width], or tokens.

`torch_weights` fills them with antegrad's arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from antegrad.nn.models import GPTConfig, ViTConfig


def mlp(sizes: Sequence[int]) -> nn.Sequential:
    """`antegrad.nn.models.mlp` with ReLU: the classifier of digits, and the disc."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn(
    image: tuple[int, int, int] = (32, 32, 3),
    classes: int = 10,
    channels: tuple[int, int, int] = (32, 64, 128),
    hidden: int = 256,
) -> nn.Sequential:
    """`antegrad.nn.models.cnn`; `image` is (height, width, channels) of one."""
    height, width, inputs = image
    first, second, third = channels
    return nn.Sequential(
        nn.Conv2d(inputs, first, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(first, second, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(second, third, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(third * (height // 4) * (width // 4), hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


class BasicBlock(nn.Module):
    """Two convolutions with batch norms, and a shortcut without parameters (option A)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride, self.extra = 1 if inputs == outputs else 2, outputs - inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.extra:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))
        return F.relu(y + x)


class ResNet(nn.Module):
    """`antegrad.nn.models.resnet20` with option A, also of other depths ``6 * n + 2``."""

    def __init__(self, classes: int = 10, depth: int = 20) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        widths = [16, *(width for width in (16, 32, 64) for _ in range((depth - 2) // 6))]
        self.blocks = nn.Sequential(*(BasicBlock(*pair) for pair in pairwise(widths)))
        self.fc = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn1(self.conv1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Attention(nn.Module):
    """Attention of several heads with one map for queries, keys and values, as in nanoGPT and timm."""

    def __init__(self, features: int, heads: int, bias: bool, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(features, 3 * features, bias=bias)
        self.proj = nn.Linear(features, features, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, features = x.shape
        parts = self.qkv(x).split(features, dim=2)
        q, k, v = (part.view(batch, length, self.heads, features // self.heads).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.proj(y.transpose(1, 2).reshape(batch, length, features))


class Block(nn.Module):
    """A block of a transformer with the norms first, and exact GELU."""

    def __init__(self, features: int, heads: int, hidden: int, bias: bool, causal: bool, eps: float) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(features, eps=eps, bias=bias)
        self.attn = Attention(features, heads, bias, causal)
        self.ln2 = nn.LayerNorm(features, eps=eps, bias=bias)
        self.fc1 = nn.Linear(features, hidden, bias=bias)
        self.fc2 = nn.Linear(hidden, features, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class GPT(nn.Module):
    """`antegrad.nn.models.GPT` without dropout; the head is the embedding."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        features, bias = config.features, config.bias
        self.wte = nn.Embedding(config.vocabulary, features)
        self.wpe = nn.Embedding(config.context, features)
        shape = (features, config.heads, 4 * features)
        self.blocks = nn.Sequential(*(Block(*shape, bias, causal=True, eps=1e-5) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(features, bias=bias)
        self.head = nn.Linear(features, config.vocabulary, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.wte(tokens) + self.wpe(positions))))


class ViT(nn.Module):
    """`antegrad.nn.models.ViT` with a class token, without dropout."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        features = config.features
        self.patches = nn.Conv2d(config.channels, features, config.patch, stride=config.patch)
        self.class_token = nn.Parameter(torch.zeros(features))
        self.positions = nn.Parameter(torch.zeros((config.size // config.patch) ** 2 + 1, features))
        shape = (features, config.heads, config.hidden or 4 * features)
        self.blocks = nn.Sequential(*(Block(*shape, True, causal=False, eps=1e-6) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(features, eps=1e-6)
        self.head = nn.Linear(features, config.classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(len(x), 1, -1), x), dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])
