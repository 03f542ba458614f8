"""Translate text with log-probabilities and alignments, and compute the log-probabilities of given pairs.

`decode_stream` translates text of any size as it arrives, by search or sampling, and `score_pairs` scores the pairs of
two texts. `format_fields` and `to_json` format the results of these functions.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import npx
from models.search import (
    Hypothesis,
    PrefixConstrainedModel,
    SearchModel,
    align,
    beam_search,
    check_alignable,
    check_sampling,
    check_search,
    forced_log_probabilities,
    sample_outputs,
)
from models.search.protocol import excluded_ids
from npx.messages import check_arguments
from train.errors import UserError
from train.tasks.pairs import Line, encode_lines, length_batches, pad_sources, search_lines
from train.tasks.protocols import SourceModel
from train.text.pair_tokenizer import TranslationTokenizer
from train.text.tokenizer import SPACE, Tokenizer


@dataclass
class ScoredTranslation:
    """A translation of a line.

    Attributes:
        source_ids: tokens of the line, without EOS.
        links: the index of the aligned source token for each token of the hypothesis; None if no alignment was
            requested.
    """

    text: str
    hypothesis: Hypothesis
    source_ids: list[int]
    links: list[int] | None = None


def decode_stream(
    model: SourceModel,
    tokenizer: TranslationTokenizer,
    lines: Iterable[str | None],
    *,
    sampling: Mapping[str, Any] | None = None,
    prefixes: Sequence[str] | None = None,
    alignments: bool = False,
    max_extra_tokens: int = 50,
    **options: Any,
) -> Iterator[list[ScoredTranslation]]:
    """Yield the translations of each line, best first. A line without tokens has one empty translation.

    Args:
        model: a translation model, or an Ensemble, in eval mode.
        tokenizer: the model's tokenizer.
        lines: sentences; None marks a pause in the input.
        sampling: options of `sample_outputs` (samples, temperature, top_k, top_p, seed), to sample instead of
            searching.
        prefixes: the beginning of each line's translation; "" for no constraint. The translation may continue the last
            word of a prefix.
        alignments: whether to align the translations to their sources.
        max_extra_tokens: as for `beam_search`.
        options: keyword arguments of `search_lines`.

    The options and prefixes are checked immediately, before the first line is read. Raises ValueError for an invalid
    option. Raises UserError for unequal numbers of lines and prefixes, for a prefix that is too long for the model or
    that contains tokens that a search never chooses, and if alignments are requested from a model without attention to
    the source.
    """
    check_arguments(options, decode_stream, search_lines, check_search)
    if sampling is not None:
        check_arguments(sampling, check_sampling)
        check_sampling(**sampling)
        options["width"] = sampling.get("samples", 1)
    if alignments:
        try:
            check_alignable(model)
        except ValueError as error:
            raise UserError(str(error)) from None
    if prefixes is not None:
        prefix_ids = _encode_prefixes(tokenizer.target, prefixes, model)
        lines = _checked_lines(lines, len(prefixes))

    def decode(src: npx.Array, batch: list[Line], **search: Any) -> list[list[Any]]:
        search_model: SearchModel = model
        if prefixes is not None:
            search_model = PrefixConstrainedModel(model, [prefix_ids[line.number - 1] for line in batch])
        if sampling is None:
            results = beam_search(search_model, src, **search)
        else:
            numbers = [line.number for line in batch]
            results = sample_outputs(
                search_model, src, **sampling, source_numbers=numbers, max_extra_tokens=max_extra_tokens
            )
        links: list[list[Any]] = [[None] * len(hypotheses) for hypotheses in results]
        for rank in range(max(map(len, results)) if alignments else 0):
            rows = [i for i, hypotheses in enumerate(results) if len(hypotheses) > rank]
            aligned = align(model, src[rows], [results[i][rank].tokens for i in rows])
            for i, sources in zip(rows, aligned, strict=True):
                links[i][rank] = sources
        return [list(zip(*pair, strict=True)) for pair in zip(results, links, strict=True)]

    def translations(line: Line, results: list[Any]) -> list[ScoredTranslation]:
        texts = tokenizer.decode_batch([hypothesis.tokens for hypothesis, _ in results])
        return [
            ScoredTranslation(_replace_line_ends(text), hypothesis, line.ids, links)
            for text, (hypothesis, links) in zip(texts, results, strict=True)
        ] or [empty_translation()]

    results = search_lines(model, tokenizer, lines, decode=decode, max_extra_tokens=max_extra_tokens, **options)
    return (translations(line, hypotheses) for line, hypotheses in results)


def empty_translation() -> ScoredTranslation:
    """Return the translation of a line without tokens."""
    return ScoredTranslation("", Hypothesis([], 0.0, 0.0, True, []), [], [])


def _replace_line_ends(text: str) -> str:
    """Replace line breaks with spaces, so that line i of the output is the translation of line i of the input."""
    return text.replace("\r", " ").replace("\n", " ")


def _checked_lines(lines: Iterable[str | None], n_prefixes: int) -> Iterator[str | None]:
    """Yield the lines; raise UserError unless there is exactly one prefix per line."""
    n_lines = 0
    for line in lines:
        n_lines += line is not None
        if n_lines <= n_prefixes:
            yield line
    if n_lines != n_prefixes:
        raise UserError(
            f"prefixes: expected one prefix for each line of the input; got {n_prefixes:,} for {n_lines:,} lines; "
            "try an empty line for each line without a prefix"
        )


def _encode_prefixes(tokenizer: Tokenizer, prefixes: Sequence[str], model: SourceModel) -> list[list[int]]:
    """Return the token ids of each prefix; `tokenizer` is the tokenizer of the target."""
    max_length = model.max_length
    excluded = {*excluded_ids(model.config)}
    encoded: list[list[int]] = tokenizer.encode_batch(prefixes)
    for number, ids in enumerate(encoded, 1):
        if max_length and len(ids) >= max_length:
            raise UserError(
                f"prefix {number}: expected at most {max_length - 1} tokens; got {len(ids)}; try a shorter prefix"
            )
        if found := excluded.intersection(ids):
            (token,) = tokenizer.subwords([min(found)])
            raise UserError(
                f"prefix {number}: expected tokens that the model may generate; got '{token}'; try other words"
            )
    return encoded


def score_pairs(
    model: SourceModel,
    tokenizer: TranslationTokenizer,
    pairs: Iterable[Sequence[Sequence[str]]],
    *,
    batch_tokens: int = 4096,
    max_length: int = 1024,
    on_warning: Callable[[str], object] = warnings.warn,
) -> Iterator[ScoredTranslation]:
    """Yield each target line with its log-probability given the source line.

    A pair of two empty lines has log-probability 0, as in `decode_stream`; the model scores every other pair.

    Args:
        model: a translation model, or an Ensemble, in eval mode.
        tokenizer: the model's tokenizer.
        pairs: chunks of (source lines, target lines), as from `read_parallel`.
        batch_tokens: maximum tokens per batch and side, padding included; a single pair may exceed it.
        max_length: maximum tokens per source line, EOS included; longer lines are truncated and reported to
            `on_warning`, as in translation.

    Raises UserError for a target that is longer than the model's limit.
    """
    limit = model.max_length
    first_number = 1
    max_length = min(filter(None, (limit, max_length)))
    for source_lines, target_lines in pairs:
        sources = encode_lines(tokenizer, source_lines, first_number, max_length, on_warning)
        targets = tokenizer.target.encode_batch(target_lines)
        for number, tgt in enumerate(targets, first_number):
            if limit and len(tgt) >= limit:
                raise UserError(
                    f"line {number}: expected at most {limit - 1} target tokens; got {len(tgt)}; try splitting the pair"
                )
        lengths = [max(len(src), len(tgt)) + 1 for src, tgt in zip(sources, targets, strict=True)]
        log_probs: list[list[float]] = [[]] * len(targets)
        scored = [i for i, pair in enumerate(zip(sources, targets, strict=True)) if any(pair)]
        for batch in length_batches([lengths[i] for i in scored], batch_tokens):
            rows = [scored[j] for j in batch]
            src = pad_sources([sources[i] for i in rows], model.config)
            for i, terms in zip(rows, forced_log_probabilities(model, src, [targets[i] for i in rows]), strict=True):
                log_probs[i] = terms
        for i, (text, terms) in enumerate(zip(tokenizer.decode_batch(targets), log_probs, strict=True)):
            total = float(sum(terms))
            hypothesis = Hypothesis(list(targets[i]), total, total, True, terms)
            yield ScoredTranslation(_replace_line_ends(text), hypothesis, sources[i])
        first_number += len(source_lines)


# ---- output


def format_fields(t: ScoredTranslation, tokenizer: TranslationTokenizer, scores: bool, alignments: bool) -> list[str]:
    """Return the requested fields: log-probabilities of the translation and its tokens, and the word alignment."""
    fields = []
    if scores:
        terms = " ".join(f"{value:.4f}" for value in t.hypothesis.token_log_probabilities)
        fields += [f"{t.hypothesis.log_probability:.4f}", terms]
    if alignments:
        fields.append(format_links(word_links(tokenizer, t)))
    return fields


def to_json(t: ScoredTranslation, tokenizer: TranslationTokenizer, scores: bool, alignments: bool) -> dict[str, Any]:
    """Return a translation and the requested fields as a JSON object."""
    h = t.hypothesis
    fields: dict[str, Any] = {"text": t.text, "score": round(h.score, 6)}
    eos = [tokenizer.eos_id] if len(h.token_log_probabilities) > len(h.tokens) else []
    if scores or alignments:
        fields["tokens"] = tokenizer.target.subwords([*h.tokens, *eos])
    if scores:
        fields["log_probability"] = round(h.log_probability, 6)
        fields["token_log_probabilities"] = [round(value, 6) for value in h.token_log_probabilities]
    if alignments:
        fields["source_tokens"] = tokenizer.source.subwords(t.source_ids)
        fields["token_alignment"] = format_links([(i, j) for j, i in enumerate(t.links or ())])
        fields["alignment"] = format_links(word_links(tokenizer, t))
    return fields


def format_links(links: Iterable[tuple[int, int]]) -> str:
    """Return alignment links in the Pharaoh format: "0-0 1-2", source index first, both counted from 0."""
    return " ".join(f"{i}-{j}" for i, j in sorted(links))


def word_links(tokenizer: TranslationTokenizer, t: ScoredTranslation) -> set[tuple[int, int]]:
    """Return the links between words separated by whitespace: two words are aligned if any of their tokens are."""
    source = word_indices(tokenizer.source, t.source_ids)
    target = word_indices(tokenizer.target, t.hypothesis.tokens)
    return {(source[i], target[j]) for j, i in enumerate(t.links or ())}


def word_indices(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Return the index of the word that each token belongs to; a token with only a space belongs to the next word."""
    indices = [text.count(" ") for text in tokenizer.decode_batch([ids[: end + 1] for end in range(len(ids))])]
    subwords = tokenizer.subwords(ids)
    for i in reversed(range(len(ids) - 1)):
        if subwords[i] == SPACE:
            indices[i] = indices[i + 1]
    return indices
