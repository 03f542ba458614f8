"""The page with vocabularies, names and sentences that contain markup; see conftest.py."""

import pytest

from tests.helpers.pages import HOSTILE, served, translate, turn_to, view
from train.viewer.server import Page

PAYLOADS = [
    HOSTILE,
    "<script>document.title=1</script>",
    '"><svg onload="document.title=1">',
    "'-(document.title=1)-'",
    "</title></style></svg><body onload=document.title=1>",
    "javascript:document.title=1",
    "${document.title=1}{{document.title=1}}",
    "&lt;img src=x onerror=document.title=1&gt;",
    "__proto__",
    "constructor",
    "\u2028\u202e]]><!--",
]


class Hostile:
    """A tokenizer of an untrusted run whose tokens are markup."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def decode_batch(self, sequences):
        return ["a", *(f"a {PAYLOADS[n % len(PAYLOADS)]}" for n in range(len(sequences) - 1))]

    def decode(self, ids):
        return HOSTILE


def test_an_untrusted_vocabulary_stays_text(tab, page):
    foreign = Page({}, page.model, Hostile(page.tokenizer), page.config)
    with served(foreign, tab=tab) as address:
        translate(tab, address)
        tab.click("[data-head='cross.0.0']")
        tab.wait_for_selector("#head .matrix")
        turn_to(tab, "beam")
        assert HOSTILE in tab.text_content("#beam svg[data-name]") and HOSTILE in tab.text_content("#translate .token")
        for box in ("#late", "#dropped"):
            if tab.is_visible(box):
                tab.check(box)
        shown = tab.text_content("#beam svg[data-name]")
        assert sum(text in shown for text in PAYLOADS) >= 4  # the tree has a few more hypotheses
        assert tab.locator("img, script:not([src]), svg[onload]").count() == 0
        assert tab.title() == "Search tree – npx-transformer"


def test_hostile_names_of_runs_stay_text(tab, run):
    """Folder names are untrusted; Chromium executes none of them."""
    with served(Page(dict.fromkeys(PAYLOADS, run)), tab=tab) as address:
        view(tab, address, "curves")
        tab.wait_for_selector("#curves .uplot")
        shown = tab.text_content("#curves")
        assert [name for name in PAYLOADS if name not in shown] == []
        assert tab.locator("img, script:not([src]), svg[onload]").count() == 0 and "Curves" in tab.title()


@pytest.mark.parametrize(
    "sentence", ["", "x " * 5000, "one 🙂 two", "שלום one", HOSTILE, "\u200f\u202e one", "𒀀𒀀"], ids=range(7)
)
def test_any_sentence_is_answered_and_stays_text(tab, address, sentence):
    view(tab, address, "translate")
    tab.fill("#text", sentence)
    tab.press("#text", "Enter")
    tab.wait_for_selector("#status.error" if not sentence.strip() or len(sentence) > 999 else ".grid")
    assert tab.locator("img").count() == 0 and "Translate" in tab.title()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 1100
    assert tab.locator("#text").bounding_box()["height"] < 200
