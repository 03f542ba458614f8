"""Names that are not keys: misspelled keys, former keys, and names in other programs.

The other programs are fairseq, JoeyNMT, OpenNMT, Marian, Hugging Face and PyTorch. A name without a counterpart gets no
suggestion, because a wrong suggestion is worse than none.
"""

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from models.config import FORMER_NAMES
from train.errors import UserError
from train.run.keys import SECTIONS

# Keys of earlier versions, and their names now.
FORMER_KEYS = {f"model.{former}": f"model.{name}" for former, name in FORMER_NAMES.items()} | {
    "train.smoothing_over": "train.smoothing_classes",
    "train.adam_eps_inside": "train.adam_eps_before_correction",
    "train.recompute": "train.gradient_checkpointing",
    "train.graphs": "train.cuda_graphs",
    "train.validate_bleu": "train.validate_score",
    "train.rdrop": "train.rdrop_weight",
    "train.shard": "train.shard_optimizer",
    "train.max_skipped": "train.max_skipped_updates",
    "train.accumulate": "train.gradient_accumulation_steps",
    "train.init_only": "train.init_parameters",
    "search.beam": "search.beam_size",
    "search.alpha": "search.length_penalty",
    "search.penalty": "search.length_penalty_type",
    "search.rule": "search.candidate_rule",
    "search.max_extra": "search.max_extra_tokens",
    "data.text": "data.train_text",
    "data.leaves": "data.tree_leaves",
}

# For each key, its names in other programs, without the prefixes in PREFIXES. A name may begin with a table and an
# underscore.
OTHER_NAMES = {
    "model.preset": "arch",
    "model.architecture": "encoder_type decoder_type",
    "model.n_layers": "layers layer hidden_layers depth",
    "model.n_heads": "heads head attention_heads nhead",
    "model.n_kv_heads": "kv kv_heads key_value_heads",
    "model.n_experts": "experts local_experts",
    "model.d_model": "hidden_size hid_size hidden_dim d_hidden embed_dim embedding_dim embedding_size embd emb_dim "
                     "dim_emb word_vec_size model_dim dim_model",
    "model.d_ff": "ff ffn_dim ff_dim ff_size ffn_size ffn_embed_dim dim_ffn dim_feedforward feedforward_dim "
                  "intermediate_size inner d_inner",
    "model.dropout": "drop hidden_dropout hidden_dropout_prob emb_dropout resid_pdrop embd_pdrop",
    "model.attention_dropout": "attn_dropout attn_pdrop attention_probs_dropout_prob dropout_attention",
    "model.activation_dropout": "relu_dropout ffn_dropout dropout_ffn",
    "model.stochastic_depth": "drop_path drop_path_rate",
    "model.activation": "activation_fn activation_function hidden_act pos_ffn_activation_fn ffn_activation",
    "model.norm_placement": "normalize_before norm_first layer_norm pre_norm prenorm norm_position "
                            "transformer_preprocess transformer_postprocess",
    "model.norm_type": "layer_normalization normalisation",
    "model.norm_eps": "layer_norm_epsilon rms_norm_eps layernorm_eps",
    "model.positions": "learned_pos position_encoding position_encoding_type positional_encoding "
                       "position_embedding_type",
    "model.max_positions": "max_source_positions max_target_positions max_position_embeddings n_positions ctx",
    "model.max_relative_distance": "max_relative_positions",
    "model.relative_buckets": "relative_positions_buckets",
    "model.tying": "share_all_embeddings share_decoder_input_output_embed share_embeddings share_decoder_embeddings "
                   "share_encoder_decoder_embeddings tied_embeddings tied_embeddings_all tied_embeddings_src "
                   "tied_softmax tie_embeddings tie_word_embeddings weight_tying",
    "model.scale_embedding": "scale no_scale_embedding",
    "model.attention_bias": "add_qkvbias qkv_bias",
    "model.attention_window": "sliding_window",
    "model.matrix_init": "initializer param_init param_init_method param_init_glorot",
    "model.embedding_init": "embed_initializer",
    "model.decoder_start": "decoder_start_token decoder_start_token_id",
    "model.cell": "rnn_type",
    "model.kernel_width": "cnn_kernel_width kernel_size",
    "model.token_types": "type_vocab_size",
    "data.train_src": "src source train train_sets trainpref",
    "data.train_tgt": "tgt trg target",
    "data.valid_src": "dev valid valid_sets validpref",
    "data.vocabularies": "share_vocab shared_vocab joined_dictionary",
    "data.vocab_size": "bpe_size nwordssrc nwordstgt voc_limit dim_vocabs vocabulary_size",
    "data.tokenizer": "bpe tokenizer_type subword_type subword_model",
    "data.max_length": "max_source_length max_target_length seq_length seq_len max_seq_length max_seq_len "
                       "context_length block_size max_sent_length",
    "train.seed": "random_seed",
    "train.init": "finetune_from_model load_model train_from",
    "train.freeze": "freeze_encoder freeze_decoder",
    "train.batch_tokens": "batch batch_size bsz max_tokens mini_batch mini_batch_words per_device_train_batch_size",
    "train.gradient_accumulation_steps": "update_freq grad_accum accum_grad accum_count gradient_accumulation "
                                         "accumulate_grad_batches batch_multiplier optimizer_delay",
    "train.max_steps": "steps train_steps updates max_update max_updates total_num_update after_batches epoch epochs "
                       "max_epoch max_epochs train_epochs after_epochs",
    "train.schedule": "scheduler scheduling lr_scheduler lr_scheduler_type lr_schedule lr_decay lr_decay_inv_sqrt "
                      "decay decay_method learning_rate_decay",
    "train.peak_lr": "lr lr0 max_lr base_lr learning_rate learn_rate learning_rate_peak",
    "train.warmup_steps": "warmup warmup_updates warmup_ratio lr_warmup learning_rate_warmup",
    "train.lr_scale": "learning_rate_factor",
    "train.beta1": "betas adam_betas adam_beta1",
    "train.beta2": "adam_beta2",
    "train.adam_eps": "eps epsilon adam_epsilon",
    "train.weight_decay": "l2 wd",
    "train.ema_decay": "ema ema_rate moving_average exponential_smoothing average_decay weight_avg weight_averaging",
    "train.clip_norm": "clip clip_grad grad_clip clip_grad_norm gradient_clip_val gradient_clipping max_grad_norm",
    "train.label_smoothing": "label_smoothing_factor",
    "train.rdrop_weight": "rdrop_alpha reg_alpha",
    "train.precision": "fp16 bf16 tf32 amp dtype model_dtype torch_dtype mixed_precision",
    "train.gradient_checkpointing": "checkpoint_activations",
    "train.validate_every": "eval_every eval_steps eval_interval valid_freq valid_steps validation_freq "
                            "validation_steps validate_interval validate_interval_updates",
    "train.validate_score": "eval_bleu predict_with_generate",
    "train.checkpoint_every": "save_every save_freq save_steps save_checkpoint_steps save_interval "
                              "save_interval_updates",
    "train.keep_last": "keep_checkpoint keep_checkpoints keep_last_checkpoints keep_last_ckpts keep_last_epochs "
                       "keep_interval_updates save_total_limit",
    "train.keep_best": "keep_best_ckpts keep_best_checkpoints",
    "train.best_metric": "early_stopping_metric early_stopping_criteria best_checkpoint_metric metric_for_best_model "
                         "eval_metric eval_metrics valid_metrics validation_metric validation_metrics",
    "train.patience": "early_stop early_stopping early_stopping_patience",
    "train.log_every": "log_interval logging_freq logging_steps report_every disp_freq",
    "train.tensorboard": "tensorboard_logdir tensorboard_log_dir",
    "": "train_normalization",  # without this entry, it would match model.norm_type
    "search.beam_size": "beams beam_width generation_num_beams",
    "search.length_penalty": "beam_alpha lenpen",
    "search.candidate_rule": "full_beam finish_in_beam stop_at_beam stop_early",
    "search.max_extra_tokens": "search_max_length max_output_length max_new_tokens generation_max_length max_len_a "
                               "max_len_b",
}  # fmt: skip
KEY_SYNONYMS = {name: key for key, names in OTHER_NAMES.items() for name in names.split()}
KEY_SYNONYMS |= {former.partition(".")[2]: key for former, key in FORMER_KEYS.items()}
PREFIXES = re.compile("^((encoder|decoder|enc|dec|src|tgt|num|n|transformer)_)+")  # ignored in names
# The values of these names have a different unit or meaning than those of the key, so a suggestion omits the value.
OTHER_UNITS = frozenset(
    "epoch epochs max_epoch max_epochs n_epochs num_epochs num_train_epochs after_epochs warmup_ratio batch batch_size "
    "bsz mini_batch per_device_train_batch_size no_scale_embedding l2 search_max_length max_output_length "
    "max_new_tokens generation_max_length max_len_a validate_interval save_interval lenpen".split()
)
CUTOFF = 0.85  # minimum similarity of a misspelling; the different keys min_length and max_length have 0.8
TRY_KEY_LIST = "`npx-transformer info base --config`, which prints every key"


def all_keys() -> list[str]:
    """Return every `table.key`."""
    return [f"{table}.{f.name}" for table, section in SECTIONS.items() for f in fields(section)]


def plain_name(name: str) -> str:
    """Return a name in lower case, its parts joined by underscores."""
    return re.sub("[-.]", "_", name.lower())


def resolve_name(name: str) -> str | None:
    """Return the `table.key` with this name or synonym, "" for a name without a counterpart, None for an unknown one.

    Raises UserError for "optimizer" and "optim", because there is no choice of optimizers.
    """
    name = plain_name(name)
    if name in ("optimizer", "optim"):
        keys = "train.peak_lr, train.beta1, train.beta2, train.adam_eps or train.weight_decay"
        raise UserError(f"{name}: unknown key; the optimizer is always Adam; try {keys}")
    names = KEY_SYNONYMS | {key.partition(".")[2]: key for key in reversed(all_keys())}
    return names.get(name, names.get(PREFIXES.sub("", name)))


def suggest_key(name: str, table: str = "") -> str | None:
    """Return the `table.key` that an unknown name in a table probably means (a synonym or a misspelling), or None."""
    last = name.rpartition(".")[2]
    for form in (f"{table}.{name}", name, last):
        if (key := resolve_name(form)) is not None:
            return key or None
    for keys in ([key for key in all_keys() if key.startswith(f"{table}.")], all_keys()):
        names = {key.partition(".")[2]: key for key in reversed(keys)}
        word = plain_name(last)
        if close := similar_names(word, names):
            return names[close[0]]
    return None


def similar_names(word: str, names: Collection[str]) -> list[str]:
    """Return the names of which `word` may be a misspelling, the most similar one first."""
    close = difflib.get_close_matches(word, names, cutoff=CUTOFF)
    return close or [name for name in names if deletions(name) & deletions(word)]


def deletions(word: str) -> set[str]:
    """Return a word and its variants without one letter. The sets of two words that differ by one letter overlap."""
    return {word, *(word[:i] + word[i + 1 :] for i in range(len(word)))}


def upgrade_table(table: str, entries: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Return a table of a configuration with the present names of keys that earlier versions named differently.

    Raises UserError, which begins with `source`, if the table contains both names of a key.
    """
    upgraded: dict[str, Any] = {}
    for name, value in entries.items():
        present = FORMER_KEYS.get(f"{table}.{name}", name).rpartition(".")[2]
        if present != name and present in entries:
            raise UserError(f"{source}: {table}.{name}: former name of {present}, which is also set; try removing it")
        upgraded[present] = value
    return with_candidate_rule(upgraded) if table == "search" else upgraded


def upgrade_setting(setting: str) -> str:
    """Return `table.key=value`, with the present name if the key has a former one."""
    key, equals, value = setting.partition("=")
    return FORMER_KEYS.get(key.strip(), key) + equals + value


def with_candidate_rule(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a table [search] with `candidate_rule` instead of the three keys that earlier versions had for it.

    If the table also has `candidate_rule`, lacks `full_beam`, or one of the three is not a boolean, it is returned
    unchanged, so these keys are reported as unknown. `stop_at_beam` without `finish_in_beam` has no rule and becomes
    "fairseq".
    """
    names = ("full_beam", "finish_in_beam", "stop_at_beam")
    full_beam, finish_in_beam, stop_at_beam = (entries.get(name, False) for name in names)
    former = (full_beam, finish_in_beam, stop_at_beam)
    if (
        "candidate_rule" in entries
        or "full_beam" not in entries
        or not all(isinstance(value, bool) for value in former)
    ):
        return entries
    rule = "plain"
    if full_beam:
        rule = "fairseq" if stop_at_beam else "transformers" if finish_in_beam else "tensor2tensor"
    return {name: value for name, value in entries.items() if name not in names} | {"candidate_rule": rule}
