"""Model configurations (models/config.py, presets.py): parameter counts, and one-line errors."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given

from models import PRESETS, FlatParameters, Transformer, TransformerConfig
from models.flops import training_flops
from tests.helpers.small_models import EOS, PAD, SMALL, V, configs

# Sizes


T5 = {"positions": "t5"}
MAXIMUM = dict.fromkeys(("d_model", "d_k", "d_v"), 65536)
MAXIMUM |= {"vocab_size": 2**24, "d_ff": 2**20, "n_heads": 1024, "n_layers": 1000}
AT_37000 = {  # numbers of parameters for V = 37,000; only the feed-forward networks have biases
    "base": 63_045_632,
    "big": 214_171_648,
    "big-enfr": 214_171_648,
    "A-h1": 63_045_632,
    "A-h4": 63_045_632,
    "A-h16": 63_045_632,
    "A-h32": 63_045_632,
    "B-dk16": 55_967_744,
    "B-dk32": 58_327_040,
    "C-N2": 33_644_544,
    "C-N4": 48_345_088,
    "C-N8": 77_746_176,
    "C-d256": 26_816_512,
    "C-d1024": 163_815_424,
    "C-ff1024": 50_450_432,
    "C-ff4096": 88_236_032,
    "D-drop0.0": 63_045_632,
    "D-drop0.2": 63_045_632,
    "D-ls0.0": 63_045_632,
    "D-ls0.2": 63_045_632,
    "E-learned": 64_094_208,
    "parsing-wsj": 121_839_616,
    "parsing-semi": 155_410_432,
    "parsing-small": 11_248_896,
    "tiny": 6_054_912,
}


@pytest.mark.parametrize("name", [*PRESETS, *AT_37000.keys() - PRESETS.keys()])
def test_parameters_of_every_preset(name):
    assert TransformerConfig.preset(name, 37_000).n_parameters() == AT_37000[name]


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_of_every_preset_as_built(name):
    """Models are built without allocating memory, so even the big one is quick."""
    config = TransformerConfig.preset(name, 17)
    parameters = config.build_abstract().parameters()
    allocated_sizes = {(p.data if p.data.base is None else p.data.base).size for p in parameters}
    assert config.n_parameters() == AT_37000[name] - (37_000 - 17) * config.d_model and allocated_sizes == {1}


def formula(c):
    """Return the number of parameters, computed from the sizes."""
    d, bias = c.d_model, int(c.attention_bias)
    kv_heads = c.n_kv_heads or c.n_heads
    widths = c.n_heads * c.key_size + kv_heads * (c.key_size + c.value_size)
    attention = d * widths + c.n_heads * c.value_size * d + bias * (widths + d) + c.qk_norm * 4 * c.key_size
    feed_forward = 2 * d * c.d_ff + c.d_ff + d
    norms = 10 if c.norm_placement == "sandwich" else 5
    layers = c.n_layers * (3 * attention + 2 * feed_forward + norms * 2 * d)
    if c.positions == "t5":
        layers += 2 * c.relative_buckets * c.n_heads  # one table for all layers of a stack
    if c.positions == "shaw":
        layers += 2 * c.n_layers * (2 * c.max_relative_distance + 1) * c.key_size
    learned = 2 * c.max_positions * d if c.positions == "learned" else 0
    return (
        c.vocab_size * d
        + learned
        + layers
        + (2 * 2 * d if c.norm_placement in ("pre", "sandwich") else 0)
        + d * c.target_space
    )


@given(config=configs())
def test_parameters_as_built(config):
    model = Transformer(config)
    assert model.n_parameters() == config.n_parameters() == formula(config) == FlatParameters(model).data.size
    assert model.embedding.weight is next(model.parameters()) and model.embedding.weight.shape == (V, 8)


def test_base_is_the_papers_44_million_and_512_for_each_word():
    for vocab in (1000, 37_000):
        assert TransformerConfig.base(vocab).n_parameters() == 44_101_632 + 512 * vocab


def test_configurations_round_trip_and_presets_take_changes():
    for name in PRESETS:
        config = TransformerConfig.preset(name, 100)
        assert TransformerConfig.from_dict(config.to_dict()) == config
    assert TransformerConfig.base(100) == TransformerConfig(100)
    old = {k: v for k, v in config.to_dict().items() if k not in ("architecture", "norm_type", "activation")}
    assert TransformerConfig.from_dict(old) == config, "configurations from before these keys existed must load"
    assert TransformerConfig.big(100, dropout=0.1) == TransformerConfig.preset("big-enfr", 100)
    assert TransformerConfig.base(100, n_layers=2) == TransformerConfig.preset("C-N2", 100)


# Errors


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"d_model": 10, "n_heads": 4},
            "d_model: expected a multiple of n_heads = 4; got 10; try n_heads = 5, d_model = 8, or setting d_k and d_v",
        ),
        *(
            ({name: 0}, f"{name}: expected a whole number from 1 to {MAXIMUM[name]}; got 0")
            for name in ("vocab_size", "d_model", "n_layers")
        ),
        *(
            ({name: -1}, f"{name}: expected a whole number from 1 to {MAXIMUM[name]}; got -1")
            for name in ("d_ff", "n_heads", "d_k", "d_v")
        ),
        *(
            ({name: 2.0}, f"{name}: expected a whole number from 1 to {MAXIMUM[name]}; got 2.0")
            for name in ("d_ff", "n_layers", "d_k")
        ),
        ({"vocab_size": "many"}, "vocab_size: expected a whole number from 1 to 16777216; got 'many'"),
        ({"n_heads": True}, "n_heads: expected a whole number from 1 to 1024; got True"),
        ({"dropout": 1.0}, "dropout: expected a number of at least 0 and below 1; got 1.0"),
        ({"attention_dropout": -0.1}, "attention_dropout: expected a number of at least 0 and below 1"),
        ({"activation_dropout": "0.1"}, "activation_dropout: expected a number of at least 0 and below 1"),
        ({"dropout": float("nan")}, "dropout: expected a number of at least 0 and below 1"),
        (
            {"norm_placement": "layer"},
            'norm_placement: expected one of "post", "pre", "sandwich", "deepnorm"; got \'layer\'',
        ),
        ({"positions": None}, 'positions: expected one of "sinusoidal", "sinusoidal_halves", "learned", "rotary", '),
        ({"n_heads": 8, "n_kv_heads": 5}, "n_kv_heads: expected a divisor of n_heads = 8; got 5; try 4"),
        ({"n_kv_heads": 3}, "n_kv_heads: expected a divisor of n_heads = 2; got 3; try 2"),
        ({"n_kv_heads": 0}, "n_kv_heads: expected a whole number from 1 to 1024; got 0"),
        ({"qk_norm": "yes"}, "qk_norm: expected true or false; got 'yes'"),
        ({"relative_buckets": 0}, "relative_buckets: expected a whole number from 4 to 65536; got 0"),
        (T5 | {"relative_buckets": 5}, "relative_buckets: expected an even number; got 5; try 6"),
        (
            T5 | {"relative_buckets": 8, "max_relative_distance": 4},
            "max_relative_distance: expected more than relative_buckets / 2 = 4; got 4; try 32",
        ),
        ({"n_experts": 1}, "n_experts: expected a whole number from 2 to 1024; got 1"),
        ({"n_experts": 4, "experts_per_token": 3}, "experts_per_token: expected a whole number from 1 to 2; got 3"),
        ({"balance_loss_weight": -1.0}, "balance_loss_weight: expected a number from 0 to 100; got -1.0"),
        ({"stochastic_depth": 1.0}, "stochastic_depth: expected a number of at least 0 and below 1; got 1.0"),
        ({"embedding_init": "zeros"}, 'embedding_init: expected one of "normal", "xavier"; got \'zeros\''),
        ({"attention_gain": 0.0}, "attention_gain: expected a number above 0 and at most 10; got 0.0"),
        ({"norm_eps": 0}, "norm_eps: expected a number above 0 and at most 1e9; got 0"),
        ({"d_k": 3, "positions": "rotary"}, "d_k: expected an even number with rotary positions; got 3; try 4"),
        ({"pad_id": V}, f"pad_id: expected a whole number below vocab_size = {V}; got {V}"),
        ({"eos_id": -1}, "eos_id: expected a whole number"),
        *(
            (same, f"pad_id, bos_id, eos_id: expected different ids; got {got}")
            for same, got in (
                ({"eos_id": 0}, "0, 1, 0"),
                ({"eos_id": 1}, "0, 1, 1"),
                ({"bos_id": 0}, "0, 0, 2"),
                ({"eos_id": 0, "decoder_start": "pad"}, "0, 1, 0"),
                ({"eos_id": 1, "decoder_start": "pad"}, "0, 1, 1"),
                ({"bos_id": 0, "decoder_start": "pad", "architecture": "decoder"}, "0, 0, 2"),
                ({"bos_id": 0, "decoder_start": "pad", "architecture": "encoder"}, "0, 0, 2"),
            )
        ),
        *(
            (change, f"suppressed_ids: expected output ids, from 0 to {last}, other than eos_id; got {got}")
            for change, last, got in (
                ({"suppressed_ids": [V]}, V - 1, V),
                ({"suppressed_ids": [4, 5], "n_outputs": 5}, 4, 5),
                ({"suppressed_ids": [2]}, V - 1, 2),
            )
        ),
        *(
            (
                change,
                f"n_outputs: expected a whole number from {lowest} (above pad_id, bos_id, eos_id) to {V}; got {n}",
            )
            for change, lowest, n in (
                ({"n_outputs": 5.0}, 3, 5.0),
                ({"n_outputs": V + 1}, 3, V + 1),
                ({"n_outputs": 5, "pad_id": 5}, 6, 5),
                ({"n_outputs": 5, "bos_id": 5}, 6, 5),
            )
        ),
    ],
)
def test_invalid_configurations_raise(change, message):
    with pytest.raises(ValueError) as caught:
        TransformerConfig(**(SMALL | change))
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_a_decoder_that_starts_with_padding_needs_no_bos():
    for architecture in ("encoder_decoder", "rnn", "convs2s", "bytenet"):
        TransformerConfig(**SMALL, decoder_start="pad", bos_id=0, architecture=architecture)


def test_unknown_names_raise():
    with pytest.raises(ValueError, match="preset: expected one of base, big.*; got 'huge'"):
        TransformerConfig.preset("huge", 10)
    with pytest.raises(ValueError, match="^TransformerConfig: unknown field 'heads'; try n_heads$"):
        TransformerConfig.from_dict(SMALL | {"heads": 2})


VALID_IDS = np.array([[3, 4, EOS]])


@pytest.mark.parametrize(
    "src, tgt, message",
    [
        (np.array([[3, V]]), VALID_IDS, f"source ids: expected ids from 0 to {V - 1}; got 3 to {V}; try the tokenizer"),
        (VALID_IDS, np.array([[-1, 3]]), f"target ids: expected ids from 0 to {V - 1}; got -1 to 3"),
        (
            VALID_IDS[0],
            VALID_IDS,
            "source ids: expected a 2-D array of integer ids; got 1-D int64; try shape (B, T), such as ids[None, :]",
        ),
        ([[3, 4, EOS], [4, EOS]], VALID_IDS, "source ids: expected rows of equal length; got rows of different"),
        (VALID_IDS, VALID_IDS.astype(float), "target ids: expected a 2-D array of integer ids; got 2-D float64"),
        (np.array([[3, PAD, EOS]]), VALID_IDS, "source ids: expected padding (0) at the end of a row only; got row 0"),
        (VALID_IDS, np.repeat(VALID_IDS, 2, axis=0), "target ids: expected 1 rows, one per source; got 2"),
        (np.repeat(VALID_IDS, 3, axis=0), VALID_IDS, "target ids: expected 3 rows, one per source; got 1"),
    ],
)
def test_invalid_ids_raise(src, tgt, message):
    model = Transformer(TransformerConfig(**SMALL))
    for call in (model, model.loss, model.attention_maps):
        with pytest.raises(ValueError) as caught:
            call(src, tgt)
        assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    assert not any(module.hook for module in model.modules())


def test_more_tokens_than_learned_positions_raise():
    model = Transformer(TransformerConfig(**SMALL | {"positions": "learned", "max_positions": 3})).eval()
    assert model(VALID_IDS, VALID_IDS).shape == (1, 3, V)
    with pytest.raises(ValueError, match="at most max_positions = 3 tokens; got 4; try"):
        model(np.array([[3, 4, 5, EOS]]), VALID_IDS)
    _, state = model.start_decoding(VALID_IDS)
    for _ in range(3):
        model.step(np.array([3]), state)
    with pytest.raises(ValueError, match="at most max_positions = 3"):
        model.step(np.array([3]), state)


def test_invalid_label_smoothing_raises():
    model = Transformer(TransformerConfig(**SMALL))
    with pytest.raises(ValueError, match="smoothing_classes: expected one of"):
        model.loss(VALID_IDS, VALID_IDS, smoothing_classes="some")
    with pytest.raises(ValueError, match="label_smoothing: expected a number of at least 0 and below 1; got 1"):
        model.loss(VALID_IDS, VALID_IDS, label_smoothing=1)


def test_lists_and_all_integer_dtypes_are_accepted_as_ids():
    model = Transformer(TransformerConfig(**SMALL)).eval()
    expected = model(VALID_IDS, VALID_IDS).data
    for ids in (VALID_IDS.tolist(), VALID_IDS.astype("int32"), VALID_IDS.astype("uint8"), VALID_IDS.astype("uint16")):
        assert np.array_equal(model(ids, ids).data, expected)
        assert model.loss(ids, ids).item() == model.loss(VALID_IDS, VALID_IDS).item()


def test_flops_of_an_architecture_without_a_formula_raise():
    model = SimpleNamespace(config=SimpleNamespace(architecture="recurrent"))
    with pytest.raises(ValueError, match="training_flops: expected architecture encoder_decoder, .*; got 'recur"):
        training_flops(model, 1, 1, 1)
