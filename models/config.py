"""The configuration of a model: keys with their meaning, choices and ranges."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from models.config_checks import check_config
from models.fields import FRACTION, LENGTH, POSITIVE, WIDTH, key
from models.flops import training_flops
from models.init import SCHEMES, use_shapes_only
from models.layers.norm import PLACEMENTS
from models.presets import PRESETS
from models.registry import ACTIVATIONS, ARCHITECTURES, CELLS, NORMS, POSITIONS
from npx.messages import nearest, suggest_arguments

# Keys of earlier versions, and their names now.
FORMER_NAMES = {
    "norm": "norm_placement",
    "normalization": "norm_type",
    "initialization": "matrix_init",
    "position_buckets": "relative_buckets",
    "position_distance": "max_relative_distance",
    "balance_loss": "balance_loss_weight",
    "layer_norm_eps": "norm_eps",
}


def upgrade_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored configuration with the present names of its keys, and with keys that earlier versions lacked.

    Versions without `position_rates` used the paper's rates for both layouts of the sinusoids.
    """
    rates = {"position_rates": "paper"} if values.get("positions") == "sinusoidal_halves" else {}
    present = {former: name for former, name in FORMER_NAMES.items() if name not in values}
    return {**rates, **{present.get(name, name): value for name, value in values.items()}}


TRANSFORMER_ARCHITECTURES = ("encoder_decoder", "decoder", "encoder")
ATTENTION_ARCHITECTURES = (*TRANSFORMER_ARCHITECTURES, "rnn", "convs2s")


@dataclass(frozen=True)
class TransformerConfig:
    """The configuration of a model: its architecture, sizes and options. The defaults are the paper's base model.

    Fields that a configuration file may set are described where they are declared, and in docs/configuration.md.

    Attributes:
        vocab_size: number V of token ids of the target, and of the source unless `src_vocab_size` is given.
        pad_id, bos_id, eos_id: ids of the special tokens, all different. An encoder-decoder model with decoder_start
            "pad" never reads bos_id, which may then equal pad_id.
        unk_id: id of the unknown token, for word dropout.
        src_vocab_size: number of source token ids, if the source has a separate vocabulary.
        n_outputs: number of output ids; the model predicts only ids below this number. Default: vocab_size.
        suppressed_ids: output ids that a search never chooses, in addition to pad_id and bos_id.

    Raises ValueError, naming the field, for a model that cannot be built.
    """

    vocab_size: int
    d_model: int = key(512, "Width D of the layers.", interval=WIDTH)
    d_ff: int = key(2048, "Inner width F of the feed-forward networks.", interval=LENGTH)
    n_heads: int = key(8, "Number H of attention heads.", interval="[1, 1024]")
    n_layers: int = key(6, "Number N of layers of the encoder and of the decoder.", interval="[1, 1000]")
    d_k: int | None = key(
        None, "Width of the queries and keys of a head.", interval=WIDTH, none_means="d_model / n_heads"
    )
    d_v: int | None = key(None, "Width of the values of a head.", interval=WIDTH, none_means="d_model / n_heads")
    dropout: float = key(
        0.1, "Dropout rate on sub-layer outputs and on the sum of embedding and positions.", interval=FRACTION
    )
    attention_dropout: float = key(0.0, "Dropout rate on attention weights (none in the paper).", interval=FRACTION)
    activation_dropout: float = key(
        0.0, "Dropout rate after the activation of the feed-forward networks (none in the paper).", interval=FRACTION
    )
    word_dropout: float = key(
        0.0,
        "Word dropout: probability that an input token of the encoder or the decoder is replaced by <unk> in training"
        " (none in the paper).",
        interval=FRACTION,
    )
    norm_placement: str = key(
        "post",
        "Placement of the norm: post (after the residual sum, as in the paper), pre (before each sub-layer and after"
        " the last layer), sandwich (before and after each sub-layer; Ding et al., 2021) or deepnorm (after a residual"
        " sum in which the input is scaled up; Wang et al., 2022).",
        choices=PLACEMENTS,
    )
    positions: str = key(
        "sinusoidal",
        "Positional encoding: sinusoidal (sines and cosines interleaved, as in the paper), sinusoidal_halves (all sines"
        " first, as in tensor2tensor and fairseq), learned, rotary (Su et al., 2021), alibi (a linear penalty on"
        " distances; Press et al., 2022), or learned relative positions: t5 (Raffel et al., 2020) or shaw (Shaw et al.,"
        " 2018).",
        choices=POSITIONS,
    )
    position_rates: str | None = key(
        None,
        "Rates of the sinusoids: 10000^(-i/(D/2)) (paper), or 10000^(-i/(D/2 - 1)) (tensor2tensor; also fairseq and"
        " Marian), for i = 0, 1, ...",
        choices=("paper", "tensor2tensor"),
        none_means="tensor2tensor for sinusoidal_halves, otherwise paper",
    )
    max_positions: int = key(1024, "For learned positions: maximum sequence length in tokens.", interval=LENGTH)
    relative_buckets: int = key(
        32,
        "For t5 positions: number of distance buckets; an encoder uses half of them for each direction.",
        interval="[4, 65536]",
    )
    max_relative_distance: int | None = key(
        None,
        "For t5 and shaw positions: distances of at least this many positions are treated alike.",
        interval=LENGTH,
        none_means="128 for t5, 16 for shaw",
    )
    n_kv_heads: int | None = key(
        None,
        "Number of key and value heads, each shared by a group of query heads (grouped-query attention, Ainslie et"
        " al., 2023). 1 is multi-query attention (Shazeer, 2019).",
        interval="[1, 1024]",
        none_means="n_heads",
        architectures=ATTENTION_ARCHITECTURES,
    )
    qk_norm: bool = key(
        False,
        "Normalize the queries and keys of each head, with a norm of the kind `norm_type` (Dehghani et al., 2023).",
        architectures=ATTENTION_ARCHITECTURES,
    )
    stochastic_depth: float = key(
        0.0,
        "Probability that a sub-layer of the last layer is skipped in training; the probability grows linearly with"
        " depth (Huang et al., 2016).",
        interval=FRACTION,
        architectures=TRANSFORMER_ARCHITECTURES,
    )
    n_experts: int | None = key(
        None,
        "Number of feed-forward networks in each layer, of which a router selects one or two for each token (mixture of"
        " experts; Fedus et al., 2022).",
        interval="[2, 1024]",
        none_means="one network without a router",
        architectures=TRANSFORMER_ARCHITECTURES,
    )
    experts_per_token: int = key(1, "Number of experts that each token uses.", interval="[1, 2]")
    balance_loss_weight: float = key(
        0.01,
        "Weight of the loss that spreads the tokens evenly over the experts of a layer. This loss is computed for each"
        " micro-batch, and the logged training loss includes it.",
        interval="[0, 100]",
    )
    attention_bias: bool = key(False, "Add biases to the attention projections (none in the paper).")
    attention_gain: float = key(
        1.0,
        "Gain of the Xavier initialization of W^Q, W^K and W^V. 0.7071 initializes them as one matrix, as in fairseq.",
        interval="(0, 10]",
    )
    norm_eps: float = key(1e-6, "Constant added to the variance in the norms.", interval=POSITIVE)
    embedding_init: str = key(
        "normal",
        "Initialization of the embedding: normal with standard deviation D^-0.5, or Xavier uniform.",
        choices=("normal", "xavier"),
    )
    matrix_init: str = key(
        "xavier",
        "Initialization of all matrices except the embedding: uniform on (-a, a), with a = sqrt(6 / (n_in + n_out))"
        " (xavier) or a = sqrt(3 / n_in) (uniform_unit_scaling, as in tensor2tensor).",
        choices=SCHEMES,
    )
    target_space: bool = key(
        False,
        "Add a learned vector, tensor2tensor's target space embedding, to every source embedding (none in the paper). A"
        " language model has no source and ignores this key.",
    )
    decoder_start: str = key(
        "bos",
        "First input of the decoder: bos (the embedding of the beginning-of-sentence token), zeros (a zero vector, as"
        " in tensor2tensor) or pad (the embedding of padding, as in Marian). A language model ignores this key.",
        choices=("bos", "zeros", "pad"),
    )
    tying: str = key(
        "auto",
        "Matrices that share one parameter. all: source embedding, target embedding and output projection, as in the"
        " paper (requires a shared vocabulary); output: target embedding and output projection; none: no sharing; auto:"
        " all if possible, otherwise output.",
        choices=("auto", "all", "output", "none"),
    )
    scale_embedding: bool = key(True, "Multiply embeddings by sqrt(d_model), as in the paper.")
    output_bias: bool = key(False, "Add a bias to the output projection (none in the paper), as in Marian.")
    norm_type: str = key("layer_norm", "Kind of normalization layer.", choices=NORMS)
    attention_window: int | None = key(
        None,
        "Restrict self-attention to a window of this many positions, for the architectures encoder_decoder and decoder"
        " (restricted self-attention, paper section 4).",
        interval=LENGTH,
        none_means="no limit",
        architectures=("encoder_decoder", "decoder"),
    )
    cell: str = key("lstm", "Recurrent layer of the architecture rnn.", choices=CELLS, architectures=("rnn",))
    kernel_width: int = key(
        3,
        "Width of the convolutions of convs2s and bytenet, in positions.",
        interval="[1, 1024]",
        architectures=("convs2s", "bytenet"),
    )
    activation: str = key("relu", "Activation of the feed-forward networks.", choices=ACTIVATIONS)
    architecture: str = key(
        "encoder_decoder",
        "Architecture of the model: encoder_decoder (the Transformer), decoder (a language model), encoder (a model"
        " that predicts labels), or an encoder-decoder with recurrent (rnn) or convolutional (convs2s, bytenet) layers."
        " rnn, convs2s and bytenet ignore d_ff, activation and norm_placement; rnn and bytenet also ignore positions.",
        choices=ARCHITECTURES,
    )
    token_types: int = key(
        0,
        "Encoder only: number of token types, such as first and second text (2 in BERT; 0: none). The learned vector of"
        " a type is added to the embeddings of its tokens.",
        interval="[0, 16]",
        architectures=("encoder",),
    )
    embedding_norm: bool = key(
        False,
        "Encoder only: normalize the sum of embedding, positions and token types, as in BERT.",
        architectures=("encoder",),
    )
    pooler: bool = key(
        False,
        "Encoder only: predict the label of a text from its first token through a tanh layer, as in BERT.",
        architectures=("encoder",),
    )
    output_transform: bool = key(
        False,
        "Encoder only: apply a linear layer, the activation and a norm before the output projection for masked tokens,"
        " as in BERT. A model that predicts labels omits this layer.",
        architectures=("encoder",),
    )
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    n_outputs: int | None = None
    unk_id: int = 3
    src_vocab_size: int | None = None
    suppressed_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "suppressed_ids", tuple(self.suppressed_ids))  # JSON has lists
        check_config(self)

    @property
    def shares_source(self) -> bool:
        """True if source and target share one embedding."""
        return self.tying == "all" or (self.tying == "auto" and self.src_vocab_size is None)

    @property
    def resolved_max_relative_distance(self) -> int:
        """`max_relative_distance` or, if it is not set, the default for the positions t5 or shaw."""
        return self.max_relative_distance or {"t5": 128, "shaw": 16}.get(self.positions, 0)

    @property
    def resolved_n_outputs(self) -> int:
        """`n_outputs` or, if it is not set, `vocab_size`."""
        return self.n_outputs or self.vocab_size

    @property
    def key_size(self) -> int:
        """Width d_k of the queries and keys of one head."""
        return self.d_k or self.d_model // self.n_heads

    @property
    def value_size(self) -> int:
        """Width d_v of the values of one head."""
        return self.d_v or self.d_model // self.n_heads

    def build(self, seed: int = 0, dtype: Any = "float32") -> Any:
        """Return a new model with random weights from `seed`, in the given dtype."""
        return ARCHITECTURES[self.architecture](self, seed, dtype)

    def build_abstract(self) -> Any:
        """Return the model with parameters that have shapes but no values, so that it takes no memory."""
        with use_shapes_only():
            return self.build()

    def n_parameters(self) -> int:
        """Return the exact number of trainable parameters."""
        return self.build_abstract().n_parameters()

    def training_flops(self, source_tokens: int, target_tokens: int, length: int = 30) -> float:
        """Return the number of floating-point operations of one update (see models/flops.py).

        Args:
            source_tokens, target_tokens: the numbers of tokens or, for an encoder, of text tokens and labels.
            length: number of tokens in a typical sentence.
        """
        return training_flops(self.build_abstract(), source_tokens, target_tokens, length)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TransformerConfig":
        """Build a configuration from the result of `to_dict`; unknown fields raise ValueError.

        Fields may have their former names. Missing fields get the values that versions without these fields used.
        """
        values = upgrade_config(values)
        names = {f.name for f in fields(cls)}
        for name in sorted(values.keys() - names):
            suggestion = FORMER_NAMES.get(name) or nearest(name, names)
            raise ValueError(f"TransformerConfig: unknown field {name!r}; try {suggestion}")
        return cls(**values)

    @classmethod
    def base(cls, vocab_size: int, **changes: Any) -> "TransformerConfig":
        """Return the configuration of the paper's base model, with changes."""
        return cls.preset("base", vocab_size, **changes)

    @classmethod
    def big(cls, vocab_size: int, **changes: Any) -> "TransformerConfig":
        """Return the configuration of the paper's big model, with changes."""
        return cls.preset("big", vocab_size, **changes)

    @classmethod
    def preset(cls, name: str, vocab_size: int, **changes: Any) -> "TransformerConfig":
        """Return the configuration in `PRESETS` with this name, with changes."""
        if name not in PRESETS:
            raise ValueError(f"preset: expected one of {', '.join(PRESETS)}; got {name!r}")
        return replace(cls(vocab_size=vocab_size, **PRESETS[name]), **changes)


TransformerConfig.__init__ = suggest_arguments(TransformerConfig.__init__)  # type: ignore[method-assign]
