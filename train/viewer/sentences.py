"""Answers to the page's requests about sentences. A request has {"text": ...} or the id of a recent sentence.

translate     the output and its search, alternatives, all heads and each layer's prediction; a language model reads
              the text instead, and a classifier or tagger labels it; sends {"so_far"} during the search
overview      values and gradients of every block, small
block         one block in full precision, see blocks.py
head_weights  one head in full precision
next_token    a language model's distribution over the next token, and a continuation
"""

import base64
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import npx
from models.module import evaluation_mode
from models.search import sample
from models.search.beam import SearchStep
from models.search.protocol import excluded_ids
from models.search.sampling import check_sampling, sampling_probabilities, unsampled_ids
from models.search.tree import CUT, FINISHED, SearchTree
from train.errors import UserError, one_line
from train.run.config import RunConfig
from train.viewer.blocks import encode_array, encode_mask, has_head, show_block, show_overview
from train.viewer.inspection import (
    Head,
    SentenceInspection,
    ablate_heads,
    all_heads,
    constrained_model,
    inspect,
    inspect_text,
    is_parser,
    log_softmax,
    max_source_tokens,
    output_text,
    source_ids,
    summary,
    token_texts,
    translate,
)
from train.viewer.label_inspection import inspect_labels
from train.viewer.step import to_json
from train.viewer.trace import Trace

# Maximum beam size, number of alternatives shown per token, and number of recent sentences kept in memory so that their
# parts can be opened.
MAX_BEAM_SIZE, ALTERNATIVES, RECENT = 8, 5, 8
TRACED = 2  # number of traces kept in memory; they are large, but each of two open tabs needs one
# Number of tokens shown for a distribution, and maximum number of tokens in a continuation.
NEXT_TOKENS, MAX_CONTINUATION = 40, 400
Send = Callable[[Mapping[str, Any]], None]
EXPIRED = "this sentence is no longer in memory, or the part does not exist; try translating the sentence again"


class Sentences:
    """A model and the sentences of recent requests."""

    def __init__(self, model: Any, tokenizer: Any, config: RunConfig) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, config
        # Maps the id of a sentence to its inspection, its token ids and the heads that were ablated.
        self.recent: dict[str, tuple[SentenceInspection, list[list[int]], list[Head]]] = {}
        self.answers: dict[str, dict[str, Any]] = {}  # maps the text and options of a request to its answer
        self.traced: dict[str, Trace] = {}  # traces of the latest sentences

    def remember(self, inspection: SentenceInspection, ids: list[list[int]], ablated: list[Head]) -> str:
        """Store a sentence for later questions and return its id."""
        name = secrets.token_urlsafe(8)
        self.recent = dict([*self.recent.items(), (name, (inspection, ids, ablated))][-RECENT:])
        return name

    def trace(self, query: Mapping[str, Any]) -> Trace:
        """Return the forward and backward pass of a recent sentence."""
        name = query.get("translation")
        if not isinstance(name, str) or name not in self.recent:
            raise UserError(EXPIRED)
        _, ids, ablated = self.recent[name]
        trace = self.traced.pop(name, None) or Trace(self.model, ids, ablated)
        self.traced = dict([*self.traced.items(), (name, trace)][-TRACED:])
        return trace

    def overview(self, query: Mapping[str, Any], send: Send) -> dict[str, Any]:
        """Return the outputs and gradients of all blocks for a recent sentence, as thumbnails."""
        return show_overview(self.trace(query))

    def block(self, query: Mapping[str, Any], send: Send) -> dict[str, Any]:
        """Return the contents of one block for a recent sentence."""
        trace = self.trace(query)
        name = str(query.get("block"))
        head = query.get("head", 0)
        block = trace.blocks.get(name)
        if block is None or type(head) is not int or not has_head(self.model, block, head):
            raise UserError(EXPIRED)
        return show_block(trace, name, head, self.tokenizer)

    def head_weights(self, query: Mapping[str, Any], send: Send) -> dict[str, Any]:
        """Return the attention weights of one head for a recent sentence."""
        try:
            inspection, *_ = self.recent[query["translation"]]
            kind = query["kind"]
            layer, head = int(query["layer"]), int(query["head"])
            if min(layer, head) < 0:
                raise IndexError
            weights = inspection.maps[kind][layer, head]
        except (KeyError, IndexError, TypeError, ValueError, OverflowError):
            raise UserError(EXPIRED) from None
        rows, columns = inspection.axis_labels(kind)
        return {"rows": rows, "columns": columns, "weights": weights.tolist(), **summary(weights)}

    def translate(self, query: Mapping[str, Any], send: Send) -> dict[str, Any]:
        """Return the output for a text, with all heads and the search tree; a repeated request gets the same answer."""
        key = json.dumps(
            [query.get(name) for name in ("text", "beam_size", "length_penalty", "prefix", "ablated_heads")]
        )
        if self.answers.get(key, {}).get("translation") not in self.recent:
            answer = {"text": self.analyze_text, "labels": self.label}.get(self.model.data_kind, self.search_output)(
                query, send
            )
            self.answers = {k: v for k, v in self.answers.items() if v["translation"] in self.recent} | {key: answer}
        name = self.answers[key]["translation"]
        self.recent[name] = self.recent.pop(name)  # make it the latest
        return self.answers[key]

    def search_output(self, query: Mapping[str, Any], send: Send) -> dict[str, Any]:
        """Translate or parse a sentence and inspect the model on the result."""
        model, tokenizer = self.model, self.tokenizer
        sentence = " ".join(text_of(query).split())
        src = source_ids(model, tokenizer, sentence)
        search = self.search(query)
        prefix = self.prefix(query)
        search_model = constrained_model(model, tokenizer, sentence)
        if is_parser(tokenizer):
            search_model.check_prefix(prefix)
        ablated = self.ablated_heads(query)
        tree = SearchTree()

        def observe(step: SearchStep) -> None:
            tree(step)
            live = [i for i, c in enumerate(tree.candidates) if c.length == len(tree.bounds) and c.fate != "dropped"]
            send({"so_far": token_texts(tokenizer, tree.tokens(live[0]))} if live else {})

        with ablate_heads(model, ablated):
            hypotheses = translate(search_model, src, search, prefix, observe)
            best = hypotheses[0]
            inspection = inspect(model, tokenizer, src, best.tokens, best.finished)
        ids = [*best.tokens, model.config.eos_id][: len(inspection.target)]
        allowed = ~np.isin(np.arange(inspection.log_probabilities.shape[1]), excluded_ids(model.config))
        if is_parser(tokenizer):
            allowed = allowed & np.stack([*search_model.allowed_masks(ids)])
        return {
            "translation": self.remember(inspection, [src, [model.config.bos_id, *ids]], ablated),
            "sentence": sentence, "text": output_text(tokenizer, sentence, best.tokens), "finished": best.finished,
            "score": best.score, "log_probability": best.log_probability,
            "settings": {"beam_size": search["beam_size"], "length_penalty": search["length_penalty"]},
            "decoder_input": inspection.decoder_input, "forced": len(prefix),
            **self.predictions(inspection, ids, ablated, allowed), "beam": self.beam(tree, hypotheses),
        }  # fmt: skip

    def analyze_text(self, query: Mapping[str, Any], send: Send) -> dict[str, Any]:
        """Inspect a language model on a text, with the probability of each token given the tokens before it."""
        model, tokenizer = self.model, self.tokenizer
        text, ablated = text_of(query), self.ablated_heads(query)
        if len(ids := source_ids(model, tokenizer, text)[:-1]) < 2:
            raise UserError("text: expected at least 2 tokens; got 1; try a longer text")
        with ablate_heads(model, ablated):
            inspection = inspect_text(model, tokenizer, text)
        log_p = inspection.log_probabilities
        total = float(log_p[range(len(ids) - 1), ids[1:]].sum())
        return {
            "translation": self.remember(inspection, [ids], ablated), "sentence": text, "text": text, "finished": True,
            "score": total / (len(ids) - 1), "log_probability": total, "settings": {}, "forced": 0,
            "decoder_input": inspection.source, **self.predictions(inspection, ids[1:], ablated), "beam": None,
        }  # fmt: skip

    def label(self, query: Mapping[str, Any], send: Send) -> dict[str, Any]:
        """Predict the label of a text, or the tags of its words.

        `positions` holds the index of the token from which each label is predicted.
        """
        model, tokenizer = self.model, self.tokenizer
        text, ablated = text_of(query), self.ablated_heads(query)
        with ablate_heads(model, ablated):
            reading = inspect_labels(model, tokenizer, text, self.config.data.task)
        inspection, label_ids = reading.inspection, reading.label_ids
        total = float(inspection.log_probabilities[range(len(label_ids)), label_ids].sum())
        return {
            "translation": self.remember(inspection, [reading.ids, reading.targets(model.config.pad_id)], ablated),
            "sentence": text, "text": " ".join(inspection.target), "finished": True,
            "score": total / len(label_ids), "log_probability": total, "settings": {}, "forced": 0,
            "decoder_input": inspection.source, "positions": reading.positions,
            **self.predictions(inspection, label_ids, ablated), "beam": None,
        }  # fmt: skip

    def predictions(
        self, inspection: SentenceInspection, ids: list[int], ablated: list[Head], allowed: Any = True
    ) -> dict[str, Any]:
        """Return tokens, their probabilities and alternatives, all heads, and the predictions of each layer.

        `allowed` is a mask, broadcast to (T, V), of the tokens that may be alternatives.
        """
        log_p = inspection.log_probabilities
        tokenizer = self.tokenizer
        candidates = np.where(allowed, log_p, -np.inf)  # (T, V)
        order = np.argsort(-candidates, axis=1, kind="stable")[:, : ALTERNATIVES + 1]  # (T, 6)
        alternatives = [
            [{"id": int(i), "label": label, "p": float(np.exp(log_p[t, i]))}
             for i, label in zip(row, token_texts(tokenizer, row.tolist()), strict=True) if candidates[t, i] > -np.inf]
            for t, row in enumerate(order)
        ]  # fmt: skip
        lens = [
            [{"label": label, "p": float(p)} for label, p in zip(token_texts(tokenizer, row.tolist()), ps, strict=True)]
            for row, ps in zip(inspection.lens_tokens, inspection.lens_p, strict=True)
        ]
        return {
            "source": inspection.source, "target": inspection.target, "ids": ids,
            "ablated_heads": [str(head) for head in ablated],
            "p": [float(np.exp(log_p[t, i])) for t, i in enumerate(ids)],
            "alternatives": alternatives, "heads": self.grids(inspection), "lens": lens,
        }  # fmt: skip

    def next_token(self, query: Mapping[str, Any], send: Send) -> dict[str, Any]:
        """Return the distribution over the token after a text, before and after temperature, top-k and top-p.

        If "tokens" > 0, also return a continuation of the text, sampled with "seed".
        """
        if self.model.data_kind != "text":
            raise UserError(
                "next_token: expected a language model; got another kind of model; try the request `translate`"
            )
        text = text_of(query)
        options = sampling_options(query)
        if not (ids := self.tokenizer.encode(text)):
            raise UserError("text: expected at least one token; got an empty text; try at least one word")
        model = self.model
        window = self.config.data.max_length
        with evaluation_mode(model):
            last, state = model.start_decoding(np.array([ids[-window:]]))
            logits = npx.to_host(model.step(last, state)).astype(np.float64)  # (1, V)
        logits[:, unsampled_ids(model.config)] = -np.inf  # as in `sample`
        model_p = np.exp(log_softmax(logits)[0])
        order, p = sampling_probabilities(logits, options["temperature"], options["top_k"], options["top_p"])
        p = np.pad(p[0] / p[0].sum(), (0, NEXT_TOKENS))
        shown = order[0, : min(NEXT_TOKENS, len(model_p))].tolist()
        continuation = ""
        if n := number_in(query, "tokens", 0, MAX_CONTINUATION, int):
            seed = number_in(query, "seed", 0, 2**32 - 1, int)
            (new,) = sample(model, [ids], n, window=window, seed=seed, **options)
            continuation = self.tokenizer.decode([*ids, *new])[len(self.tokenizer.decode(ids)) :]
        return {
            "tokens": [
                {"label": label, "p": float(model_p[i]), "sampled": float(p[rank])}
                for rank, (i, label) in enumerate(zip(shown, token_texts(self.tokenizer, shown), strict=True))
            ],
            "n_candidates": int((p > 0).sum()), "vocabulary": len(model_p), "continuation": continuation,
        }  # fmt: skip

    # ---- parts of questions

    def search(self, query: Mapping[str, Any]) -> dict[str, Any]:
        defaults = self.config.search
        search = {
            "beam_size": number_in(query, "beam_size", 1, MAX_BEAM_SIZE, int, min(defaults.beam_size, MAX_BEAM_SIZE)),
            "length_penalty": number_in(query, "length_penalty", -10, 10, default=defaults.length_penalty),
        }
        names = ("length_penalty_type", "max_extra_tokens", "candidate_rule")
        return search | {name: getattr(defaults, name) for name in names}

    def prefix(self, query: Mapping[str, Any]) -> list[int]:
        ids = query.get("prefix", [])
        c = self.model.config
        limit = max_source_tokens(self.model)
        fits = isinstance(ids, list) and all(type(i) is int and 0 <= i < self.tokenizer.n_outputs for i in ids)
        if not fits or len(ids) > limit or {*excluded_ids(c)}.intersection(ids) or c.eos_id in ids[:-1]:
            raise UserError(
                f"prefix: expected a list of at most {limit} valid token ids; try translating the sentence again"
            )
        return ids

    def ablated_heads(self, query: Mapping[str, Any]) -> list[Head]:
        heads_by_name = {str(head): head for head in all_heads(self.model)}
        try:
            return [heads_by_name[name] for name in query.get("ablated_heads", [])]
        except (KeyError, TypeError):
            raise UserError(
                "ablated_heads: expected the names of heads, such as cross.0.1; got an unknown name; try translating "
                "the sentence again"
            ) from None

    # ---- parts of answers

    def grids(self, inspection: SentenceInspection) -> dict[str, Any]:
        """Return the weights of all heads, rounded to one byte each (for colors), and their exact mean."""
        out: dict[str, Any] = {}
        for kind, maps in inspection.maps.items():
            rows, columns = inspection.axis_labels(kind)
            summaries = [[summary(weights) for weights in layer] for layer in maps]
            levels = np.rint(maps * 255).astype(np.uint8)
            out[kind] = {"rows": rows, "columns": columns, "layers": len(maps), "heads": maps.shape[1],
                         "bytes": base64.b64encode(levels.tobytes()).decode(), "summary": summaries,
                         "mean": encode_array(maps[-1].mean(axis=0)),  # the mean over the heads of the last layer
                         "masked": encode_mask(inspection.masks[kind])}  # fmt: skip
        return out

    def beam(self, tree: SearchTree, hypotheses: Any) -> dict[str, Any]:
        """Return the search tree; `won` is the leaf of the best hypothesis."""
        texts = token_texts(self.tokenizer, [c.token for c in tree.candidates])
        nodes = [
            {"length": c.length, "parent": c.parent, "label": text, "log_probability": c.log_probability,
             "score": c.score, "fate": c.fate}
            for c, text in zip(tree.candidates, texts, strict=True)
        ]  # fmt: skip
        best = hypotheses[0]
        won = [
            i for i, c in enumerate(tree.candidates)
            if c.fate in (FINISHED, CUT) and (c.score, c.log_probability) == (best.score, best.log_probability)
        ]  # fmt: skip
        bounds = [to_json(np.array(b)) for b in tree.bounds]
        return {"nodes": nodes, "stop_reason": tree.stop_reason, "won": won[:1], "bounds": bounds}


QUESTIONS: dict[str, Callable[[Sentences, Mapping[str, Any], Send], dict[str, Any]]] = {
    "translate": Sentences.translate, "overview": Sentences.overview, "block": Sentences.block,
    "head_weights": Sentences.head_weights, "next_token": Sentences.next_token,
}  # fmt: skip


def text_of(query: Mapping[str, Any]) -> str:
    """Return the text of a query, with lone surrogates replaced."""
    text = query.get("text")
    if not isinstance(text, str):
        raise UserError(f"text: expected a sentence; got {type(text).__name__}; try typing a sentence")
    return text.encode("utf-8", "replace").decode()


def number_in(
    query: Mapping[str, Any],
    name: str,
    minimum: float,
    maximum: float,
    kind: type = float,
    default: float | None = None,
) -> Any:
    """Return a number from a query, by default `minimum`. Raises UserError if the number is not within the limits."""
    default = minimum if default is None else default
    value = query.get(name, default)
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not minimum <= value <= maximum
        or kind(value) != value
    ):
        kind_name = "whole number" if kind is int else "number"
        got = f"'{value[:20]}'" if isinstance(value, str) else str(value)[:20]
        raise UserError(f"{name}: expected a {kind_name} from {minimum:g} to {maximum:g}; got {got}; try {default:g}")
    return kind(value)


def sampling_options(query: Mapping[str, Any]) -> dict[str, Any]:
    """Return the temperature, top_k and top_p of a query."""
    options = {
        "temperature": number_in(query, "temperature", 0, 1e6, default=1.0),
        "top_k": number_in(query, "top_k", 0, 2**24, int),
        "top_p": number_in(query, "top_p", 0, 1, default=1.0),
    }
    try:
        check_sampling(**options)
    except ValueError as error:
        raise UserError(one_line(error)) from None
    return options
