"""Trees as sequences of tokens that a decoder can write, and back from any tokens (Vinyals and Kaiser et al., 2015).

    (TOP (S (NP (PRP It)) (VP (VBD rained)) (. .)))    (S (NP XX )NP (VP XX )VP XX )S

Depth first, a bracket and its label one token, a word the token XX, whatever its tag (section 6.3 of the paper takes
this over); or its tag, where there are too few trees to learn words without. `TOP` is not written.
"""

from collections.abc import Sequence

from train.tasks.parsing.trees import PUNCTUATION, TOP, UNTAGGED, Leaf, Tree, punctuation, walk


def linearize(tree: Tree, tags: bool = False) -> list[str]:
    """The tokens of a cleaned tree; `tags`: a word is its tag, not XX."""
    tokens = []
    for part in walk(tree):
        if isinstance(part, Leaf):
            tokens.append(part.tag if tags else UNTAGGED)
        else:
            tokens.append(f"({part.label}" if isinstance(part, Tree) else f"){part}")
    return tokens[1:-1]


def tree_of(tokens: Sequence[str], words: Sequence[str]) -> tuple[Tree, bool]:
    """The tree over exactly `words` that `tokens` say, and whether they had to be repaired. Never fails.

    Of what does not fit, a closing bracket closes what is open above its like, or is dropped where there is none;
    leaves beyond the words are dropped, as is a constituent without any; missing words are added to the outermost
    constituent that is open, or was last; what is open at the end is closed. Punctuation has the tag that
    `punctuation` says; another word has the tag written, if that is none of punctuation.
    """
    known, stack, used, repaired = punctuation(words), [Tree(TOP)], 0, False

    def close() -> None:
        done = stack.pop()
        if done.children:
            stack[-1].children.append(done)

    def add(tag: str) -> None:
        nonlocal used
        tag = known[used] or (UNTAGGED if tag in TAGS_OF_PUNCTUATION else tag)
        stack[-1].children.append(Leaf(tag, words[used]))
        used += 1

    for token in tokens:
        kind, label = token[:1], token[1:]
        if kind == "(" and label:
            stack.append(Tree(label))
        elif kind == ")" and label:
            height = next((i for i in reversed(range(1, len(stack))) if stack[i].label == label), 0)
            repaired |= height != len(stack) - 1 or not height or not stack[-1].children
            while 0 < height < len(stack):
                close()
        elif used < len(words) and token:
            add(token)
        else:
            repaired = True
    repaired |= len(stack) > 1 or used < len(words)
    while len(stack) > 2:
        close()
    if len(stack) == 1 and used < len(words) and stack[0].children and isinstance(stack[0].children[-1], Tree):
        stack.append(stack[0].children.pop())  # type: ignore[arg-type]
    while used < len(words):
        add(UNTAGGED)
    while len(stack) > 1:
        close()
    return stack[0], repaired


TAGS_OF_PUNCTUATION = frozenset(PUNCTUATION.values())
