"""The paper's configurations, checkpoints by time, and the differences of tensor2tensor."""

import inspect

import numpy as np
import pytest

import npx
from models import Transformer, TransformerConfig
from models.search import beam_search
from models.search.protocol import check_search
from tests import ROOT
from tests.helpers import trainings
from tests.helpers.trainings import config, run, tables
from train import Adam, NoamSchedule, RunConfig
from train.learn import update
from train.learn.trainer import Trainer
from train.run.folder import RunFolder
from train.run.keys import VARIANTS

text = trainings.text
CONFIGS = ROOT / "configs"
RAN = VARIANTS["tensor2tensor"]
DIFFERENCES = [(table, name, value) for table, keys in RAN.items() for name, value in keys.items()]


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
    assert (t.beta1, t.beta2, t.adam_eps, t.adam_eps_inside) == (0.9, 0.98, 1e-9, False)
    assert (t.clip_norm, t.weight_decay) == (0, 0)
    assert t.batch_tokens * t.accumulate == 25_000 and (t.checkpoint_minutes, t.keep_last) == (10.0, last)
    assert (c.search.beam, c.search.alpha, c.search.penalty, c.search.max_extra) == (4, 0.6, "paper", 50)
    assert c.data.train_tgt == f"data/wmt14-en-{language}/train.{language}" and c.data.vocab_size == kind
    assert c.model.variant == "paper"


def test_defaults_match_the_paper():
    def defaults(function):
        parameters = inspect.signature(function).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}

    assert defaults(Adam) == {"beta1": 0.9, "beta2": 0.98, "eps": 1e-9, "weight_decay": 0.0, "eps_inside": False}
    assert defaults(NoamSchedule) == {"warmup_steps": 4000, "lr_scale": 1.0}
    search = {"beam": 4, "alpha": 0.6, "penalty": "paper", "max_extra": 50, "n_best": 1}
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
    return {(t, f.name): value for (t, f, value), (_, _, default) in zip(config.keys(), reference.keys(), strict=True)
            if value != default and f.name != "variant"}  # fmt: skip


def test_the_variant_changes_only_its_keys():
    paper, variant = config_of(), config_of("model.variant=tensor2tensor")
    assert changed(variant, paper) == {(table, name): value for table, name, value in DIFFERENCES}
    assert len(DIFFERENCES) == 6
    both = config_of("model.variant=tensor2tensor", "model.preset=big")
    assert changed(both, config_of("model.preset=big")) == changed(variant, paper)


@pytest.mark.parametrize(("table", "name", "value"), DIFFERENCES)
def test_each_difference_can_be_set_and_reset_individually(table, name, value):
    paper, variant = config_of(), config_of("model.variant=tensor2tensor")
    default = getattr(getattr(paper, table), name)
    assert default != value
    back = f"{table}.{name}={str(default).lower()}"
    assert changed(config_of("model.variant=tensor2tensor", back), variant) == {(table, name): default}
    assert changed(config_of(f"{table}.{name}={str(value).lower()}"), paper) == {(table, name): value}


def test_a_setting_switches_the_variant_of_a_file(tmp_path):
    for variant, replacement in (("paper", "tensor2tensor"), ("tensor2tensor", "paper")):
        file = tmp_path / f"{variant}.toml"
        file.write_text(config_of(f"model.variant={variant}").dump(), encoding="utf-8")
        assert RunConfig.load(file) == config_of(f"model.variant={variant}")
        assert RunConfig.load(file, [f"model.variant={replacement}"]) == config_of(f"model.variant={replacement}")


SHAPE = {"d_model": 8, "d_ff": 16, "n_heads": 2, "n_layers": 1}


def shaped(*settings):
    c = RunConfig.from_dict({"model": SHAPE}, settings).transformer_config(20)
    return Transformer(c, seed=3)


def test_tensor2tensor_is_pre_norm_with_a_final_norm():
    """With all sub-layer outputs zero, pre-norm passes the embedding to the final norm unchanged."""
    for variant, names in (("paper", set()), ("tensor2tensor", {"encoder_norm", "decoder_norm"})):
        model = shaped(f"model.variant={variant}")
        assert {name for name, _ in model.named_children()} >= names
        assert bool(names) == (model.encoder_norm is not None)


def test_tensor2tensor_has_sines_before_cosines():
    model = shaped("model.variant=tensor2tensor")
    from autograd import Tensor

    positions = model.source_positions(Tensor(np.zeros((1, 3, 8), "float32"))).data[0]
    angles = np.arange(3)[:, None] / 10000.0 ** (2 * np.arange(4) / 8)
    assert np.allclose(positions, np.concatenate([np.sin(angles), np.cos(angles)], axis=1), atol=1e-6)


@pytest.mark.parametrize("name", ["attention_dropout", "activation_dropout"])
def test_tensor2tensor_drops_attention_weights_and_activations(name):
    """Each of them alone makes the output random in training mode; without any dropout it is not."""
    quiet = ["model.dropout=0.0", "model.attention_dropout=0.0", "model.activation_dropout=0.0"]
    for settings, random in ((quiet, False), ([s for s in quiet if name not in s], True)):
        model = shaped("model.variant=tensor2tensor", *settings)
        model.train()
        outputs = []
        for step in (1, 2):
            with npx.keyed(0, step):
                outputs.append(model(np.array([[5, 6, 2]]), np.array([[1, 7]])).data)
        assert np.array_equal(*outputs) != random


def test_tensor2tensor_smooths_over_incorrect_types():
    """-sum q log p with q = 0.9 on the target and 0.1 / (V - 1) on every other type, as in tensor2tensor."""
    c = config_of("model.variant=tensor2tensor")
    model = shaped()
    model.eval()
    src, tgt = np.array([[5, 6, 2]]), np.array([[1, 7, 2]])
    logits = model(src, tgt[:, :-1]).data[0].astype("float64")
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    q = np.full((2, 20), 0.1 / 19)
    q[[0, 1], tgt[0, 1:]] = 0.9
    loss = model.loss(src, tgt, label_smoothing=c.train.label_smoothing, smoothing_classes=c.train.smoothing_over)
    assert loss.item() == pytest.approx(-(q * log_p).sum() / 2, rel=1e-5)


def test_tensor2tensor_adds_epsilon_before_the_bias_correction(monkeypatch):
    """TensorFlow: p - lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps)."""
    calls = []
    monkeypatch.setattr(update, "Adam", lambda flat, *options: calls.append(options) or Adam(flat, *options))
    c = config_of("model.variant=tensor2tensor")
    update.Update(None, shaped(), c.train, None)
    assert calls[0][4] is True
    eps, g, lr = 0.1, 0.5, 0.01
    model = shaped()
    adam = Adam(model, 0.9, 0.98, eps, eps_inside=calls[0][4])
    before = adam.flat.data.copy()
    adam.flat.grad[...] = g
    adam.step(lr)
    m, v = 0.1 * g, 0.02 * g * g
    expected = lr * (1 - 0.98) ** 0.5 / (1 - 0.9) * m / (v**0.5 + eps)
    assert np.allclose(before - adam.flat.data, expected, rtol=1e-4)


@pytest.mark.parametrize(("table", "name", "value"), DIFFERENCES)
def test_each_difference_affects_training(table, name, value, text, tmp_path):
    """Resetting it alone changes the loss of three updates."""
    default = getattr(getattr(config_of(), table), name)
    losses = []
    for settings in (["model.variant=tensor2tensor"], [f"{table}.{name}={str(default).lower()}"]):
        tables_ = tables(text, max_steps=3, adam_eps=1e-3)
        del tables_["data"]["valid_src"], tables_["data"]["valid_tgt"]
        c = RunConfig.from_dict(tables_, ["model.variant=tensor2tensor", *settings, "train.log_every=3"])
        out = tmp_path / str(len(losses))
        from train import train

        train(c, out, progress=False)
        losses.append(next(e["loss"] for e in RunFolder(out).metrics() if e["kind"] == "train"))
    assert losses[0] != losses[1]


def test_checkpoint_minutes_count_across_interruptions(text, tmp_path, monkeypatch):
    """With 20 seconds per update every 3rd update is due, also if the run was stopped in between."""
    update = Trainer._update

    def slow(self):
        before = self.state.seconds
        result = update(self)
        self.state.seconds = before + 20
        return result

    monkeypatch.setattr(Trainer, "_update", slow)
    changes = {"checkpoint_minutes": 1.0, "checkpoint_every": 1, "keep_last": 50}
    run(text, tmp_path / "a", **changes)
    steps = [path.name for path in RunFolder(tmp_path / "a").steps()]
    assert steps == ["step-3", "step-6", "step-9", "step-12"]
    run(text, tmp_path / "b", **changes, max_steps=5)
    run(text, tmp_path / "b", resume=True, **changes)
    steps = [path.name for path in RunFolder(tmp_path / "b").steps()]
    assert steps == [f"step-{n}" for n in (3, 8, 11, 12)]  # step 5 was an extra checkpoint
    assert config(text, checkpoint_minutes=10).train.checkpoint_minutes == 10.0
