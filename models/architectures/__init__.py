"""The registered architectures (`ARCHITECTURES`). Each module that registers an architecture is imported here."""

from models.architectures.convolutional import ByteNet, ConvS2S
from models.architectures.decoder import LanguageModel
from models.architectures.encoder import Encoder
from models.architectures.encoder_decoder import Transformer
from models.architectures.recurrent import RecurrentModel
