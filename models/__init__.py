"""Models: modules, layers, architectures, and search."""

from models.architectures.base import SequenceModel
from models.architectures.encoder import Encoder
from models.architectures.encoder_decoder import EncoderDecoderState, Transformer
from models.architectures.layers import DecoderLayer, EncoderLayer
from models.config import TransformerConfig
from models.layers import GRU, LSTM, Bidirectional, Convolution, RestrictedSelfAttention
from models.layers import CrossAttention, Dropout, Embedding, FeedForward, LayerNorm, Linear, Residual, SelfAttention
from models.layers import LearnedPositions, RotaryPositions, SinusoidalPositions, SplitSinusoidalPositions, sinusoids
from models.module import Module, Parameter
from models.parameters import FlatParameters
from models.presets import PRESETS
from models.registry import ACTIVATIONS, ARCHITECTURES, CELLS, NORMS, POSITIONS, architecture
from models.cache import DecodingState
