"""The paper's configurations, checkpoints by time, and the differences of tensor2tensor, by version."""

import inspect
import signal

import numpy as np
import pytest

import npx
from autograd import Tensor
from models import Transformer, TransformerConfig
from models.init import SCHEMES, uniform, use_scheme
from models.search import beam_search
from models.search.protocol import check_search
from tests import ROOT
from tests.helpers.trainings import config, run, tables
from train import Adam, NoamSchedule, RunConfig, train
from train.learn import update
from train.learn.trainer import Trainer
from train.run.folder import RunFolder
from train.run.keys import VARIANTS

CONFIGS = ROOT / "configs"
V1, V2 = "tensor2tensor-v1", "tensor2tensor-v2"


def differences(variant):
    return [(table, name, value) for table, keys in VARIANTS[variant].items() for name, value in keys.items()]


DIFFERENCES = differences(V2)
OF_TRAINING = [difference for difference in DIFFERENCES if difference[0] != "search"]


@pytest.mark.parametrize(
    ("name", "preset", "language", "steps", "dropout", "last", "kind"),
    [
        ("base", "base", "de", 100_000, 0.1, 5, 37_000),
        ("big", "big", "de", 300_000, 0.3, 20, 37_000),
        ("base-enfr", "base", "fr", 100_000, 0.1, 5, 32_000),
        ("big-enfr", "big-enfr", "fr", 300_000, 0.1, 20, 32_000),
    ],
)
def test_configurations_match_the_paper(name, preset, language, steps, dropout, last, kind):
    c = RunConfig.load(CONFIGS / f"{name}.toml")
    t = c.train
    assert c.transformer_config(37_000) == TransformerConfig.preset(preset, 37_000)
    assert c.transformer_config(37_000).dropout == dropout
    assert (t.max_steps, t.warmup_steps, t.lr_scale, t.label_smoothing) == (steps, 4000, 1.0, 0.1)
    assert (t.beta1, t.beta2, t.adam_eps, t.adam_eps_before_correction) == (0.9, 0.98, 1e-9, False)
    assert (t.clip_norm, t.weight_decay) == (0, 0)
    assert t.batch_tokens * t.gradient_accumulation_steps == 25_000
    assert (t.checkpoint_minutes, t.keep_last) == (10.0, last)
    assert (c.search.beam_size, c.search.length_penalty, c.search.length_penalty_type, c.search.max_extra_tokens) == (
        4,
        0.6,
        "paper",
        50,
    )
    assert c.data.train_tgt == f"data/wmt14-en-{language}/train.{language}" and c.data.vocab_size == kind
    assert c.model.variant == "paper"


def test_defaults_match_the_paper():
    def defaults(function):
        parameters = inspect.signature(function).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}

    assert defaults(Adam) == {
        "beta1": 0.9,
        "beta2": 0.98,
        "eps": 1e-9,
        "weight_decay": 0.0,
        "eps_before_correction": False,
    }
    assert defaults(NoamSchedule) == {"warmup_steps": 4000, "lr_scale": 1.0}
    search = {
        "beam_size": 4,
        "length_penalty": 0.6,
        "length_penalty_type": "paper",
        "max_extra_tokens": 50,
        "n_best": 1,
        "candidate_rule": "plain",
    }
    assert defaults(check_search) == search and defaults(beam_search).items() >= search.items()
    assert (
        defaults(Transformer.loss)["label_smoothing"] == 0.1
        and defaults(Transformer.loss)["smoothing_classes"] == "all"
    )
    assert TransformerConfig(37_000) == TransformerConfig.preset("base", 37_000)


def config_of(*settings):
    return RunConfig.from_dict({"model": {"preset": "base"}}, settings)


def changed(config, reference):
    """Return the keys in which two configurations differ."""
    return {(t, f.name): value for (t, f, value), (_, _, default) in zip(config.items(), reference.items(), strict=True)
            if value != default and f.name != "variant"}  # fmt: skip


@pytest.mark.parametrize("variant", [V1, V2, "tensor2tensor"])
def test_a_variant_changes_only_its_keys(variant):
    paper, config = config_of(), config_of(f"model.variant={variant}")
    assert changed(config, paper) == {(table, name): value for table, name, value in differences(variant)}
    both = config_of(f"model.variant={variant}", "model.preset=big")
    assert changed(both, config_of("model.preset=big")) == changed(config, paper)


def test_version_1_is_post_norm_with_dropout_on_sublayer_outputs_only():
    """Version 1 is the first public commit; pre-norm, other dropout and a higher rate belong to version 2."""
    model = shaped(f"model.variant={V1}").config
    t = config_of(f"model.variant={V1}").train
    assert (model.norm_placement, model.attention_dropout, model.activation_dropout) == ("post", 0, 0)
    assert (t.warmup_steps, t.lr_scale, model.norm_eps) == (4000, 1.0, 1e-6)
    later = {name: value for _, name, value in DIFFERENCES if name not in {n for _, n, _ in differences(V1)}}
    assert later == {"norm_placement": "pre", "attention_dropout": 0.1, "activation_dropout": 0.1, "warmup_steps": 8000,
                     "lr_scale": 2.0}  # fmt: skip


def test_the_former_variant_keeps_its_six_details_and_rates():
    """Runs of earlier versions of this project use this variant."""
    model = shaped("model.variant=tensor2tensor").config
    t = config_of("model.variant=tensor2tensor").train
    assert (model.norm_placement, model.positions, model.position_rates) == ("pre", "sinusoidal_halves", "paper")
    assert (model.attention_dropout, model.activation_dropout) == (0.1, 0.1)
    assert (t.smoothing_classes, t.adam_eps_before_correction) == ("others", True)
    assert (t.warmup_steps, t.lr_scale) == (4000, 1.0)
    assert (model.attention_bias, model.matrix_init, model.target_space) == (False, "xavier", False)


@pytest.mark.parametrize(("table", "name", "value"), DIFFERENCES)
def test_each_difference_can_be_set_and_reset_individually(table, name, value):
    paper, variant = config_of(), config_of(f"model.variant={V2}")
    default = getattr(getattr(paper, table), name)
    assert default != value
    restored = f"{table}.{name}={str(default).lower()}"
    restored = restored if default is not None else f"{table}.{name}=paper"  # the default of the paper's layout
    expected = "paper" if default is None else default
    assert changed(config_of(f"model.variant={V2}", restored), variant) == {(table, name): expected}
    assert changed(config_of(f"{table}.{name}={str(value).lower()}"), paper) == {(table, name): value}


def test_a_setting_switches_the_variant_of_a_file(tmp_path):
    for variant, replacement in (("paper", V1), (V1, "paper"), (V1, V2), ("tensor2tensor", V2), (V2, "paper")):
        file = tmp_path / f"{variant}.toml"
        file.write_text(config_of(f"model.variant={variant}").dump(), encoding="utf-8")
        assert RunConfig.load(file) == config_of(f"model.variant={variant}")
        assert RunConfig.load(file, [f"model.variant={replacement}"]) == config_of(f"model.variant={replacement}")


SHAPE = {"d_model": 8, "d_ff": 16, "n_heads": 2, "n_layers": 1}


def shaped(*settings):
    c = RunConfig.from_dict({"model": SHAPE}, settings).transformer_config(20)
    return Transformer(c, seed=3)


def test_version_2_is_pre_norm_with_a_final_norm():
    """With all sub-layer outputs zero, pre-norm passes the embedding to the final norm unchanged."""
    for variant, names in (("paper", set()), (V1, set()), (V2, {"encoder_norm", "decoder_norm"})):
        model = shaped(f"model.variant={variant}")
        assert {name for name, _ in model.named_children()} >= names
        assert bool(names) == (model.encoder_norm is not None)


@pytest.mark.parametrize(("variant", "n"), [(V1, 3), (V2, 3), ("tensor2tensor", 4)])
def test_variants_have_sines_before_cosines(variant, n):
    """The rates run from 1 to exactly 1 / 10000, as in add_timing_signal_1d, except in the former variant."""
    model = shaped(f"model.variant={variant}")
    positions = model.source_positions(Tensor(np.zeros((1, 3, 8), "float32"))).data[0]
    angles = np.arange(3)[:, None] / 10000.0 ** (np.arange(4) / n)
    assert np.allclose(positions, np.concatenate([np.sin(angles), np.cos(angles)], axis=1), atol=1e-6)


@pytest.mark.parametrize("name", ["attention_dropout", "activation_dropout"])
def test_version_2_drops_attention_weights_and_activations(name):
    """Dropout at either place alone makes the output random in training mode; without dropout it is deterministic."""
    quiet = ["model.dropout=0.0", "model.attention_dropout=0.0", "model.activation_dropout=0.0"]
    for settings, random in ((quiet, False), ([s for s in quiet if name not in s], True)):
        model = shaped(f"model.variant={V2}", *settings)
        model.train()
        outputs = []
        for step in (1, 2):
            with npx.keyed(0, step):
                outputs.append(model(np.array([[5, 6, 2]]), np.array([[1, 7]])).data)
        assert np.array_equal(*outputs) != random


def test_tensor2tensor_smooths_over_incorrect_types():
    """The loss is -sum q log p with q = 0.9 at the target and 0.1 / (V - 1) at every other type."""
    c = config_of(f"model.variant={V1}")
    model = shaped()
    model.eval()
    src, tgt = np.array([[5, 6, 2]]), np.array([[1, 7, 2]])
    logits = model(src, tgt[:, :-1]).data[0].astype("float64")
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    q = np.full((2, 20), 0.1 / 19)
    q[[0, 1], tgt[0, 1:]] = 0.9
    loss = model.loss(src, tgt, label_smoothing=c.train.label_smoothing, smoothing_classes=c.train.smoothing_classes)
    assert loss.item() == pytest.approx(-(q * log_p).sum() / 2, rel=1e-5)


def test_tensor2tensor_adds_epsilon_before_the_bias_correction(monkeypatch):
    """The update is TensorFlow's: p - lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps)."""
    calls = []
    monkeypatch.setattr(update, "Adam", lambda flat, *options: calls.append(options) or Adam(flat, *options))
    c = config_of(f"model.variant={V1}")
    update.Updater(None, shaped(), c.train, None)
    assert calls[0][4] is True
    eps, g, lr = 0.1, 0.5, 0.01
    model = shaped()
    adam = Adam(model, 0.9, 0.98, eps, eps_before_correction=calls[0][4])
    before = adam.flat.data.copy()
    adam.flat.flatten_grad()[...] = g
    adam.step(lr)
    m, v = 0.1 * g, 0.02 * g * g
    expected = lr * (1 - 0.98) ** 0.5 / (1 - 0.9) * m / (v**0.5 + eps)
    assert np.allclose(before - adam.flat.data, expected, rtol=1e-4)


def loss_of_three_updates(text, out, *settings):
    tables_ = tables(text, max_steps=3, adam_eps=1e-3)
    del tables_["data"]["valid_src"], tables_["data"]["valid_tgt"]
    c = RunConfig.from_dict(tables_, [f"model.variant={V2}", *settings, "train.log_every=3", "train.patience=0"])
    train(c, out, progress=False)
    return next(e["loss"] for e in RunFolder(out).metrics() if e["kind"] == "train")


@pytest.fixture(scope="module")
def loss_of_version_2(text, tmp_path_factory):
    return loss_of_three_updates(text, tmp_path_factory.mktemp("v2") / "run")


@pytest.mark.parametrize(("table", "name", "value"), OF_TRAINING)
def test_each_difference_affects_training(table, name, value, text, tmp_path, loss_of_version_2):
    """Resetting a single key changes the loss of three updates."""
    default = getattr(getattr(config_of(), table), name)
    restored = f"{table}.{name}={'paper' if default is None else str(default).lower()}"
    assert loss_of_three_updates(text, tmp_path / "run", restored) != loss_of_version_2


@pytest.mark.parametrize("shape", [(7, 5), (7, 5, 3)])
def test_uniform_unit_scaling_depends_on_the_inputs_only(shape):
    """The bound is a = sqrt(3 / n_in), as in TensorFlow; merged matrices have the bound of one matrix."""
    samples = {}
    for name in SCHEMES:
        with npx.keyed(1, 0), use_scheme(name):
            samples[name] = uniform(*shape)
    assert abs(samples["uniform_unit_scaling"]).max() <= (3 / 7) ** 0.5
    edges = np.cumsum(shape[1:-1])
    pairs = zip(*(np.split(samples[name], edges, axis=1) for name in SCHEMES), strict=True)
    for (xavier, scaled), n_out in zip(pairs, shape[1:], strict=True):
        assert np.allclose(scaled, xavier * ((7 + n_out) / 14) ** 0.5, rtol=1e-6)  # the same samples
    with npx.keyed(1, 0), use_scheme("uniform_unit_scaling"):
        assert abs(uniform(32, 4096)).max() == pytest.approx((3 / 32) ** 0.5, rel=1e-3)


def test_the_variants_initialize_all_but_the_embedding_by_unit_scaling():
    paper = shaped()
    variant = shaped(f"model.variant={V1}", "model.attention_bias=false", "model.target_space=false")
    for (name, a), (_, b) in zip(paper.named_parameters(), variant.named_parameters(), strict=True):
        same = a.data.ndim == 1 or name == "embedding.weight" or a.data.shape == (8, 8)  # xavier: 6 / (8 + 8)
        assert np.array_equal(a.data, b.data) == same or "query" in name or "key" in name
    assert abs(variant.encoder[0].feed_forward.inner.weight.data).max() > (6 / (8 + 16)) ** 0.5


def entered(model, side, src, tgt):
    """Return the input of the first layer."""
    inputs = []
    getattr(model, side)[0].hook = lambda x, *rest: inputs.append(x.data)
    model(src, tgt)
    return inputs[0]


def test_the_target_space_is_one_learned_vector_added_to_each_source_embedding():
    model = shaped("model.target_space=true").eval()
    src = np.array([[5, 6, 2]])
    tgt = np.array([[1, 7]])
    inputs = []
    for values in (model.target_space.weight.data, np.zeros(8)):
        model.target_space.weight.assign(values)
        inputs.append([entered(model, side, src, tgt) for side in ("encoder", "decoder")])
    (source, _), (without, _) = inputs
    vector = shaped("model.target_space=true").target_space.weight.data
    assert np.allclose(source - without, vector, atol=1e-6) and abs(vector).min() > 0
    assert np.array_equal(without, entered(shaped().eval(), "encoder", src, tgt))
    model.loss(src, np.array([[1, 7, 2]])).backward()
    assert abs(model.target_space.weight.grad).max() > 0


def test_the_decoder_starts_with_a_zero_vector():
    """The first input is only the encoding of position 0, in training, in search and in a packed batch."""
    model = shaped("model.decoder_start=zeros").eval()
    src = np.array([[5, 6, 2], [5, 2, 0]])
    tgt = np.array([[1, 7], [1, 8]])
    x = entered(model, "decoder", src, tgt)
    expected = entered(shaped().eval(), "decoder", src, tgt)
    first = model.target_positions.table_rows(0, x, x.dtype)[0]
    assert np.allclose(x[:, 0], first, atol=1e-7) and np.array_equal(x[:, 1:], expected[:, 1:])
    start, state = model.start_decoding(src)
    assert np.allclose(model.step(start, state), model(src, tgt[:, :1]).data[:, -1], atol=1e-5)
    before = model.loss(src, np.array([[1, 7, 2], [1, 8, 2]])).item()
    embedding = model.embedding.weight.data.copy()
    embedding[1] += 100  # changes the logit of BOS only
    model.embedding.weight.assign(embedding)
    assert np.array_equal(entered(model, "decoder", src, tgt), x)
    assert model.loss(src, np.array([[1, 7, 2], [1, 8, 2]])).item() != before


def test_checkpoint_minutes_count_across_interruptions(text, tmp_path, monkeypatch):
    """With 20 seconds per update, every 3rd update is due, even if the run was stopped in between."""
    update = Trainer._run_update

    def slow(self):
        before = self.state.seconds
        result = update(self)
        self.state.seconds = before + 20
        if self.state.step == interrupted:
            signal.raise_signal(signal.SIGINT)
        return result

    interrupted = 0
    monkeypatch.setattr(Trainer, "_run_update", slow)
    changes = {"checkpoint_minutes": 1.0, "checkpoint_every": 1, "keep_last": 50}
    run(text, tmp_path / "a", **changes)
    steps = [path.name for path in RunFolder(tmp_path / "a").step_paths()]
    assert steps == ["step-3", "step-6", "step-9", "step-12"]
    interrupted = 5
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path / "b", **changes)
    run(text, tmp_path / "b", resume=True, **changes)
    steps = [path.name for path in RunFolder(tmp_path / "b").step_paths()]
    assert steps == [f"step-{n}" for n in (3, 8, 11, 12)]  # step 5 was an extra checkpoint
    assert config(text, checkpoint_minutes=10).train.checkpoint_minutes == 10.0
