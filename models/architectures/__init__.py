"""The architectures, by name in ARCHITECTURES. Each file that enters one is imported here."""

from models.architectures.decoder import LanguageModel
from models.architectures.encoder_decoder import Transformer
