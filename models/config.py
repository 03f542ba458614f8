"""What a Transformer is made of: the configuration, and the paper's models by name. Next: `transformer.py`."""

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

CHOICES = {
    "norm": ("post", "pre"),
    "positions": ("sinusoidal", "sinusoidal_halves", "learned"),
    "embedding_init": ("normal", "xavier"),
}


def is_whole(value: Any, least: int) -> bool:
    """Whether `value` is a whole number (True and False are none) of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_real(value: Any) -> bool:
    """Whether `value` is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True)
class TransformerConfig:
    """The shape of a Transformer; the defaults are the paper's base model. ValueError for what cannot be built."""

    vocab_size: int  # V: pieces of the vocabulary shared by both languages
    d_model: int = 512  # D: size of every vector between sub-layers
    d_ff: int = 2048  # F: inner size of the feed-forward network
    n_heads: int = 8  # H
    n_layers: int = 6  # N: layers of the encoder, and of the decoder
    d_k: int | None = None  # size of a head's queries and keys; None: d_model / n_heads
    d_v: int | None = None  # size of a head's values; None: d_model / n_heads
    dropout: float = 0.1  # on each sub-layer's output and on embedding + position
    attention_dropout: float = 0.0  # on attention weights (tensor2tensor's later models)
    activation_dropout: float = 0.0  # after the ReLU (the same)
    norm: str = "post"  # LayerNorm after the residual sum (the paper), or "pre": before each sub-layer
    positions: str = "sinusoidal"  # or "sinusoidal_halves" (tensor2tensor, fairseq, Marian), or "learned"
    max_positions: int = 1024  # rows of the learned table
    attention_bias: bool = False  # biases in the attention projections (fairseq, PyTorch, Marian)
    layer_norm_eps: float = 1e-6
    embedding_init: str = "normal"  # N(0, d_model^-0.5) with a zero padding row, or "xavier"
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "d_ff", "n_heads", "n_layers", "max_positions"):
            self._expect(name, is_whole(getattr(self, name), 1), "a positive whole number")
        for name in ("pad_id", "bos_id", "eos_id"):
            fine = is_whole(getattr(self, name), 0) and getattr(self, name) < self.vocab_size
            self._expect(name, fine, f"a whole number below vocab_size = {self.vocab_size}")
        for name in ("d_k", "d_v"):
            value = getattr(self, name)
            self._expect(name, value is None or is_whole(value, 1), "a positive whole number")
            if value is None and self.d_model % self.n_heads:
                raise ValueError(
                    f"d_model: expected a multiple of n_heads = {self.n_heads}; got {self.d_model}; "
                    f"try {self.d_model // self.n_heads * self.n_heads or self.n_heads}, or set d_k and d_v"
                )
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            share = getattr(self, name)
            self._expect(name, is_real(share) and 0 <= share < 1, "a share from 0 to below 1")
        for name, choices in CHOICES.items():
            self._expect(name, getattr(self, name) in choices, f"one of {', '.join(choices)}")
        self._expect("layer_norm_eps", is_real(self.layer_norm_eps) and self.layer_norm_eps > 0, "a positive number")

    def _expect(self, name: str, fine: bool, expected: str) -> None:
        if not fine:
            raise ValueError(f"{name}: expected {expected}; got {getattr(self, name)!r}")

    @property
    def key_size(self) -> int:
        """d_k of one head."""
        return self.d_k or self.d_model // self.n_heads

    @property
    def value_size(self) -> int:
        """d_v of one head."""
        return self.d_v or self.d_model // self.n_heads

    def n_parameters(self) -> int:
        """The exact number of learned numbers, from the shapes alone."""
        d, h, bias = self.d_model, self.n_heads, int(self.attention_bias)
        widths = h * (2 * self.key_size + self.value_size)
        attention = d * widths + h * self.value_size * d + bias * (widths + d)
        feed_forward = 2 * d * self.d_ff + self.d_ff + d
        norm = 2 * d
        layers = self.n_layers * (3 * attention + 2 * feed_forward + 5 * norm)
        learned = 2 * self.max_positions * d if self.positions == "learned" else 0
        return self.vocab_size * d + learned + layers + (2 * norm if self.norm == "pre" else 0)

    def training_flops(self, source_tokens: int, target_tokens: int, length: int = 30) -> float:
        """Floating-point operations of one update: 6 for each weight and token passing it, plus the attention products.

        Forward is 2 (multiply, add), backward twice that. `length`: tokens of a typical sentence, for the n^2 part.
        """
        d, h = self.d_model, self.n_heads
        keys, values = h * self.key_size, h * self.value_size
        feed_forward = 2 * d * self.d_ff
        encoder = self.n_layers * (2 * d * keys + 2 * d * values + feed_forward + (keys + values) * length)
        cross = self.n_layers * (d * keys + d * values)  # keys and values of the source, made once a token
        decoder = self.n_layers * (3 * d * keys + 3 * d * values + feed_forward + 2 * (keys + values) * length)
        return 6.0 * (source_tokens * (encoder + cross) + target_tokens * (decoder + d * self.vocab_size))

    def to_dict(self) -> dict[str, Any]:
        """Field name -> value."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TransformerConfig":
        """The inverse of `to_dict`; ValueError names what does not belong."""
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
        return replace(cls(vocab_size=vocab_size, **PRESETS[name].model), **changes)


@dataclass(frozen=True)
class Preset:
    """A model of the paper: what differs from base, in the model and in training, and the paper's figures for it."""

    model: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, float] = field(default_factory=dict)  # params_millions; ppl and bleu on newstest2013


def _row(bleu: float, ppl: float, params: float = 65, train: dict[str, Any] | None = None, **model: Any) -> Preset:
    train = {"label_smoothing": 0.1, "max_steps": 100_000} | (train or {})
    return Preset(model, train, {"ppl": ppl, "bleu": bleu, "params_millions": params})


def _big(**model: Any) -> Preset:
    sizes = {"d_model": 1024, "d_ff": 4096, "n_heads": 16, "dropout": 0.3}
    return _row(26.4, 4.33, 213, {"max_steps": 300_000}, **(sizes | model))


PRESETS: dict[str, Preset] = {
    "base": _row(25.8, 4.92),
    "big": _big(),
    "big-enfr": _big(dropout=0.1),
    # Table 3. A: heads; B: key size; C: model size; D: dropout and label smoothing; E: learned positions.
    "A-h1": _row(24.9, 5.29, n_heads=1, d_k=512, d_v=512),
    "A-h4": _row(25.5, 5.00, n_heads=4, d_k=128, d_v=128),
    "A-h16": _row(25.8, 4.91, n_heads=16, d_k=32, d_v=32),
    "A-h32": _row(25.4, 5.01, n_heads=32, d_k=16, d_v=16),
    "B-dk16": _row(25.1, 5.16, 58, d_k=16, d_v=64),
    "B-dk32": _row(25.4, 5.01, 60, d_k=32, d_v=64),
    "C-N2": _row(23.7, 6.11, 36, n_layers=2),
    "C-N4": _row(25.3, 5.19, 50, n_layers=4),
    "C-N8": _row(25.5, 4.88, 80, n_layers=8),
    "C-d256": _row(24.5, 5.75, 28, d_model=256, d_k=32, d_v=32),
    "C-d1024": _row(26.0, 4.66, 168, d_model=1024, d_k=128, d_v=128),
    "C-ff1024": _row(25.4, 5.12, 53, d_ff=1024),
    "C-ff4096": _row(26.2, 4.75, 90, d_ff=4096),
    "D-drop0.0": _row(24.6, 5.77, dropout=0.0),
    "D-drop0.2": _row(25.5, 4.95, dropout=0.2),
    "D-ls0.0": _row(25.3, 4.67, train={"label_smoothing": 0.0}),
    "D-ls0.2": _row(25.7, 5.47, train={"label_smoothing": 0.2}),
    "E-learned": _row(25.7, 4.92, positions="learned"),
    # Not in the paper: the small model of Wu et al. (ACL 2021) for Multi30k.
    "tiny": Preset(
        {"d_model": 128, "d_ff": 256, "n_heads": 4, "n_layers": 4, "dropout": 0.3},
        {"label_smoothing": 0.1, "max_steps": 8000},
    ),
}
