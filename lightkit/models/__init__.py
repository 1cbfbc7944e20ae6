"""Networks by name; each takes the sizes of the data set as plain arguments and returns a `torch.nn.Module`."""

from __future__ import annotations

from lightkit.models.cnn import CNN, UNet
from lightkit.models.huggingface import huggingface_model
from lightkit.models.mlp import MLP, Heads
from lightkit.models.recurrent import RecurrentLM
from lightkit.models.resnet import ResNet
from lightkit.models.soft_tree import SoftTree
from lightkit.models.tabm import TabM
from lightkit.models.tabular import Tabular
from lightkit.models.transformer import TransformerClassifier, TransformerLM
from lightkit.models.zoo import timm_model, torchvision_model

__all__ = [
    "CNN",
    "MLP",
    "Heads",
    "RecurrentLM",
    "ResNet",
    "SoftTree",
    "TabM",
    "Tabular",
    "TransformerClassifier",
    "TransformerLM",
    "UNet",
    "huggingface_model",
    "timm_model",
    "torchvision_model",
]
