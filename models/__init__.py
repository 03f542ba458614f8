"""The model: modules, layers, attention, the Transformer, and search for translations.

Read in this order: `module.py`, `layers.py`, `attention.py`, `config.py`, `transformer.py`, `search.py`.
"""

from models.attention import MultiHeadAttention
from models.config import PRESETS, Preset, TransformerConfig
from models.layers import Dropout, Embedding, FeedForward, LayerNorm, Linear, Positions, Residual, sinusoids
from models.module import FlatParameters, Module, Parameter, flatten
from models.transformer import DecoderCache, DecoderLayer, EncoderLayer, Transformer

__all__ = [
    "PRESETS",
    "DecoderCache",
    "DecoderLayer",
    "Dropout",
    "Embedding",
    "EncoderLayer",
    "FeedForward",
    "FlatParameters",
    "LayerNorm",
    "Linear",
    "Module",
    "MultiHeadAttention",
    "Parameter",
    "Positions",
    "Preset",
    "Residual",
    "Transformer",
    "TransformerConfig",
    "flatten",
    "sinusoids",
]
