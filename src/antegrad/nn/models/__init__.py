"""Models that are made of the layers, each by one function."""

from antegrad.nn.models.cnn import cnn as cnn
from antegrad.nn.models.gpt import GPT as GPT
from antegrad.nn.models.gpt import GPTConfig as GPTConfig
from antegrad.nn.models.mlp import mlp as mlp
from antegrad.nn.models.resnet import resnet18 as resnet18
from antegrad.nn.models.resnet import resnet20 as resnet20
from antegrad.nn.models.vit import ViT as ViT
from antegrad.nn.models.vit import ViTConfig as ViTConfig
