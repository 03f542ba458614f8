"""Names of keys in other programs and misspelled names lead to the key; other names lead nowhere."""

import re

import pytest
import typer

from train.cli import main
from train.cli.app import COMMANDS, DEVICES, OTHER_OPTIONS, app, equivalent_option
from train.cli.export_model import FORMATS
from train.cli.main import load_commands
from train.cli.plan import LINK_NAMES
from train.errors import UserError
from train.run.config import RunConfig, fields_of, suggest_setting
from train.run.key_names import KEY_SYNONYMS, OTHER_UNITS, TRY_KEY_LIST, all_keys, suggest_key
from train.run.keys import SECTIONS
from train.run.value_names import OTHER_VALUES, suggest_value

# Options of fairseq-train, of the configurations of JoeyNMT, OpenNMT-py and Marian, and of Hugging Face's models and
# trainer: the key with the same meaning, and names that have no counterpart.
MEANINGS = {
    "model.preset": "arch",
    "model.n_layers": "encoder_layers num_layers dec_layers num_hidden_layers enc-depth encoder.num_layers n_layer",
    "model.n_heads": "encoder_attention_heads decoder.num_heads transformer-heads num_attention_heads nhead",
    "model.d_model": "encoder_embed_dim hidden_size tgt_word_vec_size enc_hid_size dim-emb n_embd",
    "model.d_ff": "decoder_ffn_embed_dim ff_size transformer_ff transformer-dim-ffn intermediate_size dim_feedforward",
    "model.tying": "share_all_embeddings share_decoder_input_output_embed tied_embeddings tied_softmax "
                   "share_embeddings tied-embeddings-all tie_word_embeddings",
    "model.norm_placement": "encoder_normalize_before decoder_normalize_before layer_norm norm_first",
    "model.positions": "encoder_learned_pos position_encoding",
    "model.max_positions": "max_source_positions max_position_embeddings n_positions",
    "model.activation": "activation_fn pos_ffn_activation_fn hidden_act",
    "model.attention_dropout": "attn_pdrop transformer-dropout-attention attention_probs_dropout_prob",
    "model.activation_dropout": "relu_dropout",
    "data.train_src": "src train_sets",
    "data.train_tgt": "trg",
    "data.tokenizer": "bpe tokenizer_type",
    "data.vocab_size": "nwordssrc tgt_vocab_size voc_limit",
    "data.max_length": "src_seq_length max_source_length max_sent_length",
    "train.peak_lr": "lr learning-rate learn_rate optimization.lr",
    "train.schedule": "lr_scheduler scheduling decay_method lr_scheduler_type",
    "train.warmup_steps": "warmup_updates learning_rate_warmup lr-warmup",
    "train.max_steps": "max_update train_steps updates after-batches",
    "train.batch_tokens": "max_tokens mini_batch_words per_device_train_batch_size",
    "train.gradient_accumulation_steps": "gradient_accumulation_steps update_freq batch_multiplier accum_count "
                                         "optimizer-delay",
    "train.beta1": "adam_betas adam_beta1",
    "train.ema_decay": "weight_avg average_decay exponential-smoothing",
    "train.checkpoint_every": "save_interval_updates save_checkpoint_steps save-freq save_steps",
    "train.validate_every": "validation_freq valid_steps validate_interval_updates eval_steps",
    "train.keep_last": "keep_last_epochs keep_checkpoint save_total_limit",
    "train.best_metric": "best_checkpoint_metric early_stopping_metric metric_for_best_model "
                         "eval_metric eval_metrics valid-metrics validation_metric",
    "train.patience": "early_stop early-stopping early_stopping_patience patince",
    "train.clip_norm": "max_grad_norm clip_grad_norm clip_grad",
    "train.rdrop_weight": "rdrop_alpha reg-alpha",
    "train.seed": "random_seed sed sead",
    "search.beam_size": "beam num_beams beams",
    "search.length_penalty": "alpha lenpen beam_alpha",
    "search.max_extra_tokens": "max_output_length max_new_tokens max_len_b",
}  # fmt: skip
UNKNOWN = "unknown option"
WITHOUT_COUNTERPART = """
    encoder_embed_path no_token_positional_embeddings adaptive_softmax_cutoff layernorm_embedding no_cross_attention
    encoder_layerdrop quant_noise_pq source_lang criterion sentence_avg warmup_init_lr min_lr stop_min_lr
    max_tokens_valid batch_size_valid required_batch_size_multiple num_workers dataset_impl valid_subset
    validate_after_updates disable_validation curriculum save_dir restore_file reset_lr_scheduler reset_optimizer
    no_save no_epoch_checkpoints maximize_best_checkpoint_metric log_format wandb_project fp16_init_scale ddp_backend
    user_dir eval_bleu_args left_pad_source nbest no_repeat_ngram_size model_dir use_cuda dataset_type voc_min_freq
    tokenizer_cfg num_merges normalize reset_best_ckpt learning_rate_min decrease_factor clip_grad_val batch_type
    overwrite shuffle min_output_length init_gain bias_initializer type bidirectional src_vocab model_type input_feed
    copy_attn save_data world_size valid_batch_size start_decay_steps bucket_size transforms coverage_penalty min_length
    quant_layers output_dir do_train eval_strategy per_device_eval_batch_size report_to group_by_length use_cache
    initializer_range rope_theta pad_token_id mini_batch_fit workspace devices guided_alignment amsgrad gamma test
"""


@pytest.mark.parametrize("key", MEANINGS)
@pytest.mark.parametrize("table", ["train", "model", ""])
def test_other_programs_names_of_a_key_lead_to_it(key, table):
    assert {name: suggest_key(name, table) for name in MEANINGS[key].split()} == dict.fromkeys(
        MEANINGS[key].split(), key
    )


@pytest.mark.parametrize("table", ["train", "model", "data", "search", ""])
def test_a_name_without_a_counterpart_leads_to_the_list_of_keys(table):
    assert {name: suggest_key(name, table) for name in WITHOUT_COUNTERPART.split()} == dict.fromkeys(
        WITHOUT_COUNTERPART.split()
    )
    with pytest.raises(UserError, match="; try `npx-transformer info base --config`, which prints every key$"):
        RunConfig.from_dict({}, [f"{table or 'train'}.criterion=1"])
    assert suggest_key("normalization", "train") is None  # in JoeyNMT and OpenNMT, the normalization of the loss


def test_synonyms_are_names_of_existing_keys_and_hide_none():
    assert set(KEY_SYNONYMS.values()) <= {*all_keys(), ""}
    assert not set(KEY_SYNONYMS) & {key.split(".")[1] for key in all_keys()}
    assert OTHER_UNITS <= {*KEY_SYNONYMS, "n_epochs", "num_epochs", "num_train_epochs"}


def test_a_suggestion_repeats_the_value_if_the_key_accepts_it():
    cases = {"lr": ("0.1", "train.peak_lr=0.1"), "fp16": ("true", "train.precision=VALUE")}
    cases |= {"epochs": ("5", "train.max_steps=VALUE (number of updates)")}
    cases |= {
        "batch_size": ("5", "train.batch_tokens=VALUE (maximum tokens per side of a micro-batch, padding included)")
    }
    for name, (text, setting) in cases.items():
        assert suggest_setting(name, text, suggest_key(name)) == f"--set {setting}"
        with pytest.raises(UserError, match=f"; try --set {re.escape(setting)}$"):
            RunConfig.from_dict({}, [f"{name}={text}"])
    assert suggest_setting("criterion", "x", suggest_key("criterion")) == TRY_KEY_LIST


@pytest.mark.parametrize(
    "tables, hint",
    [
        ({"training": {}}, r"the table \[training\]; try \[train\]"),
        ({"optimization": {}}, r"the table \[optimization\]"),
        ({"lr": 1}, r"lr outside of these tables; try peak_lr below a line \[train\]"),
        ({"criterion": 1}, "criterion outside of these tables; try `npx-transformer info base --config`, which .*"),
    ],
)
def test_an_unknown_table_gets_a_suggestion_only_if_it_resembles_one(tables, hint):
    with pytest.raises(UserError, match=f"; got {hint}$"):
        RunConfig.from_dict(tables)


def test_another_name_of_an_option_leads_to_the_option(capsys):
    assert main(["train", "tiny", "--out", "D", "--src", "x"]) == 2
    assert "--src: unknown option; try --train" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (
            "translate",
            {
                "lenpen": "length-penalty-type length --length-penalty",
                "path": "model",
                "checkpoint": "model RUN/checkpoints/step-N",
            },
        ),
        (
            "translate",
            {"print-alignment": "alignments", "replace-unk": "input F alone; subwords spell unknown words"},
        ),
        (
            "translate",
            {
                "src": "input",
                "out": "output",
                "sampling-topk": "top-k",
                "nbest": "n-best",
                "max-len": "max-extra-tokens",
            },
        ),
        (
            "score",
            {
                "hypothesis": "hyp",
                "tokenize": "metric bleu_intl, or a BLEU with another tokenization",
                "confidence": "bootstrap",
                "input": "hyp",
                "lowercase": "metric bleu_13a_lc",
            },
        ),
        ("generate --model lm", {"max-length": "tokens", "length": "tokens"}),
        ("export run", {"format": "to"}),
        ("translate", {"constrain": "prefixes", "tgt-prefix": "prefixes"}),
        ("train tiny", {"init-only": "init-parameters", "text": "train-text"}),
        ("data own", {"learn-from": "tokenizer-lines", "keep-scripts": "keep-non-latin"}),
        (
            "translate",
            {
                "beam": "beam-size",
                "alpha": "length-penalty",
                "penalty": "length-penalty-type",
                "max-extra": "max-extra-tokens",
            },
        ),
        ("train tiny", {"save-dir": "out", "restore-file": "resume, or --init RUN to copy only weights"}),
    ],
)
def test_other_programs_names_of_an_option_lead_to_it(command, options, capsys):
    for name, ours in options.items():
        assert main([*command.split(), f"--{name}", "x"]) == 2
        assert capsys.readouterr().err.endswith(f"--{name}: {UNKNOWN}; try --{ours}\n")
    assert main([*command.split(), "--zzz", "x"]) == 2 and "No such option: --zzz; try npx" in capsys.readouterr().err


def test_the_names_of_options_belong_to_existing_options():
    load_commands(*COMMANDS)
    commands = typer.main.get_command(app).commands.values()
    options = [{name for parameter in command.params for name in parameter.opts} for command in commands]
    for ours, names in OTHER_OPTIONS.items():
        for name in names.split():
            is_suggested = (name not in accepted and equivalent_option(name, accepted) == ours for accepted in options)
            assert any(is_suggested), (ours, name)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("train tiny --out D", "--train-src"), ("data own --out D", "--train-tgt"), ("score --ref x", "--hyp"),
        ("score", "--pairs"), ("translate --model x", "--input"), ("translate --model x", "--beam-size"),
        ("average x", "--last"), ("info x", "--data"), ("plan base", "--price"), ("demo", "--out"),
    ],
)  # fmt: skip
def test_a_repeated_option_is_an_error_unless_it_has_several_values(command, option, capsys):
    for twice in ([option, "1", option, "1"], [f"{option}=1", option, "2"], [option, "1", f"{option}=2"]):
        twice = [word for text in twice for word in ([text, "b"] if option == "--pairs" and text == "1" else [text])]
        assert main([*command.split(), *twice]) == 2
        assert f"{option}: given twice; try only one value" in capsys.readouterr().err
    assert main(["score", "--ref=a", "--hyp=b", "--metric=chrf", "--metric=x"]) == 2
    assert "--metric: expected one of" in capsys.readouterr().err


# For misspelled values and values of other programs: our value with that meaning. None: we have no such value.
VALUES = {
    "model.tying": {"true": "all", "false": "none", "shared": "all", "nonne": "none", "some": None},
    "data.vocabularies": {"joint": "shared", "separated": "separate", "true": "shared", "both": None},
    "model.norm_placement": {"prenorm": "pre", "pre-norm": "pre", "past": "post", "true": None},
    "model.activation": {"swish": "silu", "prelu": None, "selu": None, "mish": None, "GELU": "gelu"},
    "train.best_metric": {"perplexity": "loss", "ppl": "loss", "chrF": "chrf", "wer": None},
    "train.schedule": {"polynomial": "linear", "inverse-sqrt": "inverse_sqrt", "none": "constant", "step": None},
    "model.positions": {"relative": "shaw", "rope": "rotary", "absolute": None},
}


@pytest.mark.parametrize("key", VALUES)
def test_other_programs_names_of_a_value_lead_to_it_and_others_nowhere(key):
    name = key.partition(".")[2]
    for value, meant in VALUES[key].items():
        with pytest.raises(UserError) as error:
            RunConfig.from_dict({}, [f"{key}={value}"])
        assert str(error.value).endswith(f'; got "{value}"' + (f'; try {name} = "{meant}"' if meant else "")), value
    with pytest.raises(UserError, match='got true; try tying = "all"$'):
        RunConfig.from_dict({"model": {"tying": True}})


def test_the_names_of_values_belong_to_existing_values_and_hide_none():
    choices = {f.name: tuple(f.metadata["choices"]) for table in SECTIONS for f in fields_of(table).values()}
    choices |= {"bool": ("true", "false"), "link": LINK_NAMES, "to": FORMATS.choices}
    for key, values in OTHER_VALUES.items():
        expected = choices.get(key, DEVICES.choices)
        assert {*values} <= {*expected, ""} and not {*expected} & {*" ".join(values.values()).split()}
        assert suggest_value(key, "zzzz", expected) == ""
