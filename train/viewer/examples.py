"""Example sentences for the page, from a run's validation text."""

from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from train.errors import UserError
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.tasks import TASKS
from train.tasks.line_predictions import text_of
from train.tasks.parsing.task import read_clean_trees
from train.tasks.parsing.trees import escape_brackets
from train.text.corpus import PairCorpus
from train.text.plain import read_plain
from train.viewer.inspection import is_parser

N_EXAMPLES, MAX_SEARCHED = 3, 300  # number of examples; number of sentences from which they are chosen
EXAMPLE_WORDS = range(4, 16)  # number of words: enough for a syntactic structure, few enough to be read on a projector
FIRST_EXAMPLE_TOKENS = range(2, 7)  # number of tokens of the first example: the matrices of all blocks fit the window
EXAMPLE_CHARACTERS = range(20, 50)  # number of characters of an example for a language model


def validation_sentences(run: Path, tokenizer: Any, config: RunConfig) -> list[str]:
    """Return up to three short sentences of the validation text, or of the training text; [] if both are missing."""
    for part in ("valid", "train"):
        with suppress(UserError, OSError, KeyError):
            return short_sentences(run, part, tokenizer, config)
    return []


def short_sentences(run: Path, part: str, tokenizer: Any, config: RunConfig) -> list[str]:
    """Return the first short, distinct sentences. Pairs are read from the prepared text, other texts from the files."""
    if is_parser(tokenizer):
        trees = read_clean_trees(getattr(config.data, f"{part}_trees"))
        sentences = [" ".join(tree.words()) for tree in islice(trees, MAX_SEARCHED)]
        sizes = [len(tokenizer.encode(escape_brackets(sentence))) for sentence in sentences]
    elif TASKS[config.data.task].data_kind == "text":
        files = config.data.train_text if part == "train" else config.data.valid_text
        lines = islice(chain.from_iterable(read_plain(files)), MAX_SEARCHED)
        return list(dict.fromkeys(line.strip() for line in lines if len(line) in EXAMPLE_CHARACTERS))[:N_EXAMPLES]
    elif TASKS[config.data.task].data_kind == "labels":
        task: Any = TASKS[config.data.task]
        examples = islice(task.read(*task.text_files(config.data)[part]), MAX_SEARCHED)
        sentences = [text_of(example, config.data.task) for example in examples]
        sizes = [len(sentence.split()) for sentence in sentences]
    else:
        corpus = PairCorpus.open(RunFolder(run).data_path(part, config.data.prepared), tokenizer.special_ids)
        source = getattr(tokenizer, "source", tokenizer)
        pairs = [corpus.pair(i)[0] for i in range(min(MAX_SEARCHED, len(corpus)))]
        sentences = [source.decode(ids) for ids in pairs]
        sizes = [len(ids) for ids in pairs]
    first = [sentence for sentence, size in zip(sentences, sizes, strict=True) if size in FIRST_EXAMPLE_TOKENS][:1]
    short = [sentence for sentence in sentences if len(sentence.split()) in EXAMPLE_WORDS]
    return list(dict.fromkeys(first + (short or sentences)))[:N_EXAMPLES]
