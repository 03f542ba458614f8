"""What a model is made of: the keys of its configuration, with their meaning, choices and range."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from models.fields import LENGTH, POSITIVE, SHARE, WIDTH, check, key
from models.init import shapes_only
from models.presets import PRESETS
from models.registry import ACTIVATIONS, ARCHITECTURES, NORMS, POSITIONS
from npx.ranges import Range

VOCABULARY = Range(int, "[1, 16777216]")


@dataclass(frozen=True)
class TransformerConfig:
    """The shape of a Transformer; the defaults are the paper's base model. ValueError for what cannot be built."""

    vocab_size: int  # V: pieces of the vocabulary, shared by both languages where there are two
    d_model: int = key(512, "Width D of every layer.", within=WIDTH)
    d_ff: int = key(2048, "Width F inside the feed-forward network.", within=LENGTH)
    n_heads: int = key(8, "Attention heads H.", within="[1, 1024]")
    n_layers: int = key(6, "Layers N of the encoder, and of the decoder.", within="[1, 1000]")
    d_k: int | None = key(None, "Width of a head's queries and keys.", within=WIDTH, unset="d_model / n_heads")
    d_v: int | None = key(None, "Width of a head's values.", within=WIDTH, unset="d_model / n_heads")
    dropout: float = key(
        0.1, "Dropout where the paper has it: on each sub-layer's output and on embedding + position.", within=SHARE
    )
    attention_dropout: float = key(0.0, "Dropout on attention weights (none in the paper).", within=SHARE)
    activation_dropout: float = key(0.0, "Dropout after the inner ReLU (none in the paper).", within=SHARE)
    norm: str = key(
        "post",
        "Layer norm after the residual sum (post, the paper's), or before the sub-layer and at the very end (pre).",
        choices=("post", "pre"),
    )
    positions: str = key(
        "sinusoidal",
        "Positions: sine and cosine interleaved (the paper's), in two halves (tensor2tensor, fairseq), learned, or as"
        " a rotation of queries and keys (Su et al., 2021).",
        choices=POSITIONS,
    )
    max_positions: int = key(1024, "Longest sentence, in tokens, that learned positions can take.", within=LENGTH)
    attention_bias: bool = key(False, "Biases in the attention projections (none in the paper).")
    attention_gain: float = key(
        1.0,
        "Factor on Xavier's bound of the first W^Q, W^K and W^V; 0.7071, as if the three were one matrix (fairseq).",
        within="(0, 10]",
    )
    layer_norm_eps: float = key(1e-6, "Added to the variance in layer norm.", within=POSITIVE)
    embedding_init: str = key(
        "normal", "First values of the embedding: N(0, D^-0.5), or Xavier's uniform.", choices=("normal", "xavier")
    )
    normalization: str = key("layer_norm", "Which norm stands where `norm` says.", choices=NORMS)
    activation: str = key("relu", "What stands inside the feed-forward network.", choices=ACTIVATIONS)
    architecture: str = key("encoder_decoder", "What the layers are stacked to.", choices=ARCHITECTURES)
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    n_outputs: int | None = None  # a model writes the ids below it, which its tokenizer decides; None: all V

    def __post_init__(self) -> None:
        v = self.vocab_size
        if not VOCABULARY.fits(v):
            raise ValueError(f"vocab_size: expected {VOCABULARY.words()}; got {v!r}")
        special = {name: getattr(self, name) for name in ("pad_id", "bos_id", "eos_id")}
        for name, value in special.items():
            if not (type(value) is int and 0 <= value < v):
                raise ValueError(f"{name}: expected a whole number below vocab_size = {v}; got {value!r}")
        names, ids = ", ".join(special), special.values()
        if len({*ids}) < len(ids):  # a search writes neither padding nor BOS, and ends with EOS
            raise ValueError(f"{names}: expected ids that differ; got {', '.join(map(str, ids))}")
        n = self.n_outputs
        if n is not None and not (type(n) is int and max(ids) < n <= v):
            least = f"{max(ids) + 1}, above {names}"
            raise ValueError(f"n_outputs: expected a whole number from {least}, to {v}; got {n!r}")
        check(self)
        if self.d_model % self.n_heads and None in (self.d_k, self.d_v):
            raise ValueError(
                f"d_model: expected a multiple of n_heads = {self.n_heads}; got {self.d_model}; "
                f"try {self.d_model // self.n_heads * self.n_heads or self.n_heads}, or set d_k and d_v"
            )

        if POSITIONS[self.positions].rotary and self.key_size % 2:
            raise ValueError(
                f"d_k: expected an even number with {self.positions} positions; got {self.key_size}; "
                f"try {self.key_size + 1}"
            )

    @property
    def key_size(self) -> int:
        """d_k of one head."""
        return self.d_k or self.d_model // self.n_heads

    @property
    def value_size(self) -> int:
        """d_v of one head."""
        return self.d_v or self.d_model // self.n_heads

    def build(self, seed: int = 0, dtype: Any = "float32") -> Any:
        """A new model of this architecture."""
        return ARCHITECTURES[self.architecture](self, seed, dtype)

    def outline(self) -> Any:
        """The model without its numbers: shapes alone, which take no memory."""
        with shapes_only():
            return self.build()

    def n_parameters(self) -> int:
        """The exact number of learned numbers."""
        return self.outline().n_parameters()

    def training_flops(self, source_tokens: int, target_tokens: int, length: int = 30) -> float:
        """Floating-point operations of one update: 6 for each weight and token passing it, plus the attention products.

        Forward is 2 (multiply, add), backward twice that. `length`: tokens of a typical sentence, for the n^2 part.
        """
        return 6.0 * self.outline().products(source_tokens, target_tokens, length)

    def to_dict(self) -> dict[str, Any]:
        """Field name -> value."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TransformerConfig":
        """The inverse of `to_dict`; what is left out has its default. ValueError names what does not belong."""
        unknown = set(values) - {f.name for f in fields(cls)}
        if unknown:
            raise ValueError(f"TransformerConfig: expected its field names; got {', '.join(sorted(unknown))}")
        return cls(**values)

    @classmethod
    def base(cls, vocab_size: int, **changes: Any) -> "TransformerConfig":
        """The paper's base model."""
        return cls.preset("base", vocab_size, **changes)

    @classmethod
    def big(cls, vocab_size: int, **changes: Any) -> "TransformerConfig":
        """The paper's big model."""
        return cls.preset("big", vocab_size, **changes)

    @classmethod
    def preset(cls, name: str, vocab_size: int, **changes: Any) -> "TransformerConfig":
        """A model of `PRESETS` by name, with changes."""
        if name not in PRESETS:
            raise ValueError(f"preset: expected one of {', '.join(PRESETS)}; got {name!r}")
        return replace(cls(vocab_size=vocab_size, **PRESETS[name]), **changes)
