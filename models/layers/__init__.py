"""The layers. Each module that registers a layer is imported here."""

from models.layers.alibi import AlibiBias, AlibiPositions
from models.layers.attention import CrossAttention, SelfAttention
from models.layers.basic import Dropout, Embedding, Linear
from models.layers.convolution import Convolution
from models.layers.experts import Experts
from models.layers.feed_forward import FeedForward
from models.layers.gelu import GELU
from models.layers.gelu_erf import GELUErf
from models.layers.norm import LayerNorm, Residual
from models.layers.positions import LearnedPositions, RotaryPositions
from models.layers.positions import SinusoidalPositions, SplitSinusoidalPositions, sinusoids
from models.layers.recurrent import GRU, LSTM, Bidirectional
from models.layers.restricted_attention import RestrictedSelfAttention
from models.layers.rms_norm import RMSNorm
from models.layers.shaw_positions import ShawBias, ShawPositions
from models.layers.silu import SiLU
from models.layers.swiglu import SwiGLU
from models.layers.t5_positions import T5Bias, T5Positions
