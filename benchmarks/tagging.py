"""Compare the tagging accuracy of runs with two baselines: the most frequent tag and an averaged perceptron.

    python -m benchmarks.tagging --train train.tags --test test.tags --run runs/tagging --run runs/pretrained-tagging

The files have lines word<TAB>tag. The perceptron (Collins, 2002) uses the standard features of words, affixes and
previous tags, and averages its weights over all training steps.
"""

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from train.errors import UserError
from train.run.checkpoint import load_model
from train.tasks.line_predictions import label_lines, score_labels
from train.text.affixes import word_shape
from train.text.labeled_text import LabeledExample, read_tagged

ITERATIONS = 10
START = "<s>"


class FrequentTag:
    """Gives a known word its most frequent tag, and an unknown word the most frequent tag of words that occur once."""

    def __init__(self, sentences: Sequence[LabeledExample]) -> None:
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for sentence in sentences:
            for word, tag in zip(sentence.texts, sentence.labels, strict=True):
                counts[word][tag] += 1
        rare = sum((tags for tags in counts.values() if tags.total() == 1), Counter[str]())
        self.unknown = rare.most_common(1)[0][0]
        self.tag_of = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}

    def tag(self, words: Sequence[str]) -> list[str]:
        """Return the tags of a sentence."""
        return [self.tag_of.get(word, self.unknown) for word in words]


class Perceptron:
    """An averaged perceptron that tags from left to right."""

    def __init__(self, sentences: Sequence[LabeledExample], seed: int = 1) -> None:
        self.tags = sorted({tag for sentence in sentences for tag in sentence.labels})
        index = {tag: i for i, tag in enumerate(self.tags)}
        self.ids: dict[str, int] = {}
        for sentence in sentences:  # all features of the training text, computed with its tags
            for i in range(len(sentence.texts)):
                for feature in features(sentence.texts, i, sentence.labels[:i]):
                    self.ids.setdefault(feature, len(self.ids))
        self.weights = np.zeros((len(self.ids), len(self.tags)))
        totals = np.zeros_like(self.weights)
        step = 0
        rng = np.random.default_rng(seed)
        for _ in range(ITERATIONS):
            for n in rng.permutation(len(sentences)):
                words = sentences[n].texts
                tags = sentences[n].labels
                predicted = list[str]()
                for i, tag in enumerate(tags):
                    step += 1
                    rows = self.rows(words, i, predicted)
                    best = int(self.weights[rows].sum(axis=0).argmax())
                    gold = index[tag]
                    if best != gold:  # averaged weights: w - total / steps, where total sums each update times its step
                        for column, sign in ((gold, 1), (best, -1)):
                            self.weights[rows, column] += sign
                            totals[rows, column] += sign * step
                    predicted.append(self.tags[best])
        self.weights -= totals / step

    def rows(self, words: Sequence[str], i: int, tags: Sequence[str]) -> list[int]:
        """Return the rows of the weights for the features of word i, after the tags of the words before it."""
        return [self.ids[feature] for feature in features(words, i, tags) if feature in self.ids]

    def tag(self, words: Sequence[str]) -> list[str]:
        """Return the tags of a sentence."""
        tags: list[str] = []
        for i in range(len(words)):
            tags.append(self.tags[int(self.weights[self.rows(words, i, tags)].sum(axis=0).argmax())])
        return tags


def features(words: Sequence[str], i: int, tags: Sequence[str]) -> Iterator[str]:
    """Yield the features of word i: words and endings around it, affixes, shape, and the two tags before it."""
    padded = [START, START, *words, START, START]
    word = words[i]
    tag2, tag1 = [START, START, *tags][-2:]
    yield "bias"
    yield from (f"word{k} {padded[i + 2 + k].lower()}" for k in range(-2, 3))
    yield from (f"ending{k} {padded[i + 2 + k][-3:].lower()}" for k in (-1, 1))
    yield from (f"suffix {word[-n:]}" for n in range(1, 5))
    yield from (f"prefix {word[:n]}" for n in range(1, 4))
    yield f"cased {word}"
    yield f"shape {word_shape(word)} {i == 0}"
    yield f"tag {tag1}"
    yield f"tags {tag2} {tag1}"
    yield f"tag and word {tag1} {word.lower()}"


def main() -> None:
    """Train the baselines and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", required=True, metavar="F", help="training text, word<TAB>tag")
    parser.add_argument("--test", required=True, metavar="F", help="test text")
    parser.add_argument(
        "--run", action="append", default=[], type=Path, metavar="RUN", help="a run of the task tagging"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    arguments = parser.parse_args()
    training, test = (list(read_tagged(path)) for path in (arguments.train, arguments.test))
    training_words = {word for sentence in training for word in sentence.texts}
    unknown = [[word not in training_words for word in sentence.texts] for sentence in test]
    rows: list[dict[str, Any]] = []

    def add(name: str, seconds: float, predicted: Sequence[Sequence[str]]) -> None:
        correct = [
            (tag == gold, new)
            for sentence, tags, news in zip(test, predicted, unknown, strict=True)
            for gold, tag, new in zip(sentence.labels, tags, news, strict=True)
        ]
        on_new = [hit for hit, new in correct if new]
        scores = score_labels(test, predicted)
        rows.append({
            "name": name, "accuracy": scores.accuracy, "macro_f1": scores.macro_f1,
            "unknown_words": 100 * sum(on_new) / max(1, len(on_new)), "seconds": seconds,
        })  # fmt: skip
        print("{name:<32} {accuracy:8.2f} {macro_f1:9.2f} {unknown_words:14.2f}".format(**rows[-1]), flush=True)

    sizes = f"{sum(map(sum, unknown)):,} of {sum(map(len, unknown)):,} words"
    print(f"{'':32} accuracy  macro F1  unknown words ({sizes})")
    for name, tagger in (("most frequent tag", FrequentTag), ("averaged perceptron", Perceptron)):
        start = time.process_time()
        trained: Any = tagger(training)
        add(name, time.process_time() - start, [trained.tag(sentence.texts) for sentence in test])
    for run in arguments.run:
        model, tokenizer, _ = load_model(run, "tagging")
        lines = [" ".join(sentence.texts) for sentence in test]
        add(str(run), 0.0, [labeled.labels for labeled in label_lines(model, tokenizer, lines, "tagging")])
    if arguments.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(str(error)) from None
