"""The digits, colors and legends of the page's matrices; see conftest.py."""

import numpy as np
import pytest

from tests.helpers.pages import RECORD_CANVAS, until, view

# Draws a matrix with one row of values, 700 pixels wide; `drawn` records the texts on its canvas.
SHOW = """async ([values, most]) => {
    const { matrix } = await import("/matrix.js"), place = document.createElement("div");
    place.id = "shown";
    place.style.width = "700px";
    const of = { rows: ["r"], columns: values.map((_, i) => `c${i}`) };
    drawn.length = 0;
    place.append(matrix({ title: "shown", ...of, values: Float32Array.from(values), most }));
    document.getElementById("shown")?.remove();
    document.getElementById("step").prepend(place);
}"""


@pytest.mark.parametrize(
    ("values", "most", "shown"),
    [
        ([137.7, 0.5, -63.57, 9.994, 0], None, ["138", "0.50", "−63.6", "9.99", "0"]),
        ([0.95, 0.94, 1, 0.9996, 0.004], 1, [".95", ".94", "1", "1.0", "0"]),
        ([0.99996, 0.5] * 9, 1, ["1.0", ".50"] * 9),
        ([-0.9996, -1, 0.5], 1, ["−1.0", "−1", ".50"]),
        ([float("inf"), 0, float("-inf")], None, ["∞", "0", "−∞"]),
        ([-0.1189, 3e-3, 2e-5, 0.02], None, ["−.12", "0", "0", ".02"]),
    ],
)
def test_the_numbers_in_the_cells(tab, address, values, most, shown):
    """Large values have three significant digits, only 1 is shown as "1" (0.9996 as "1.0"), infinite values as ∞."""
    tab.add_init_script(RECORD_CANVAS)
    view(tab, address, "step")
    tab.evaluate(SHOW, [values, most])
    until(tab, f"drawn.length >= {2 * len(values) + 1}")
    texts = [text for text, _ in tab.evaluate("drawn")]
    assert texts[1 + len(values) :] == shown
    legend = tab.inner_text("#shown figcaption")
    if any(abs(value) == float("inf") for value in values):
        assert "0 0" not in " ".join(legend.split()) and "masked" not in legend


def test_the_digits_have_the_contrast_of_text_on_every_color(tab, address):
    """The contrast is at least 4.5, as WCAG 2 requires; black or white always reaches 4.58."""
    tab.add_init_script("""
        window.inks = [];
        const { fillText } = CanvasRenderingContext2D.prototype;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
            inks.push(this.fillStyle);
            fillText.call(this, text, ...rest);
        };
        window.drawn = [];""")
    view(tab, address, "step")
    values = np.linspace(-1, 1, 255).tolist()

    def luminance(color):
        c = np.array(color) / 255
        return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]

    for theme in ("light", "dark"):
        tab.evaluate(f"async () => (await import('/parts.js')).setTheme('{theme}')")
        tab.evaluate(SHOW.replace("700px", "9000px").replace("drawn.length", "inks.length"), [values, 1])
        until(tab, "inks.length >= 511")  # 1 row, 255 columns and 255 cells
        inks = [[int(ink[i : i + 2], 16) for i in (1, 3, 5)] for ink in tab.evaluate("inks.slice(256, 511)")]
        for ink, color in zip(inks, tab.evaluate("async () => (await import('/parts.js')).scale()"), strict=True):
            low, high = sorted([luminance(ink), luminance(color)])
            assert (high + 0.05) / (low + 0.05) >= 4.5, (theme, ink, color)


def test_a_probability_in_one_digit_is_not_rounded_to_1(tab, address):
    tab.add_init_script(RECORD_CANVAS)
    view(tab, address, "step")
    tab.evaluate(SHOW, [[0.95, 0.94, 0.97, 1] * 11, 1])  # narrow cells
    until(tab, "drawn.length >= 89")
    texts = [text for text, _ in tab.evaluate("drawn")][45:]
    assert texts == [".9", ".9", "1.", "1"] * 11


def test_masked_weights_of_the_grid_are_hatched(tab, address):
    """The hatching has the resolution of the screen, because one pixel per weight would look like data."""
    view(tab, address, "step")
    tab.evaluate("""async () => {
        const { grids } = await import("/heads.js"), rows = ["a", "b", "c", "d"], columns = rows;
        const masked = btoa(String.fromCharCode(...rows.flatMap((_, i) => columns.map((_, j) => (j > i ? 1 : 0)))));
        const bytes = btoa(String.fromCharCode(...Array(32).fill(99)));
        const summary = [Array(2).fill({ confidence: 1, entropy: 1, distance: 1 })];
        const decoder = { layers: 1, heads: 2, rows, columns, bytes, masked, summary };
        const heads = { decoder, cross: { ...decoder, masked: null } }, axes = ["", ""];
        const { blocks } = grids(heads, { decoder: axes, cross: axes }, []);
        document.getElementById("step").prepend(...blocks);
    }""")
    until(tab, "document.querySelector('[data-kind=decoder] canvas.hatched').width > 100")
    covered, n_colors = tab.locator("[data-kind=decoder] canvas.hatched").evaluate("""canvas => {
        const { width, height } = canvas, { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
        const solid = Array.from({ length: width * height }, (_, i) => 4 * i).filter((i) => data[i + 3] === 255);
        return [solid.length / (width * height), new Set(solid.map((i) => data.slice(i, i + 3).join())).size];
    }""")
    assert covered == pytest.approx(6 / 25, rel=0.1) and n_colors > 1  # 6 of 5 x 5 cells and gaps
    pixel = "canvas => [...canvas.getContext('2d').getImageData(1, 0, 1, 1).data]"
    assert tab.locator("[data-kind=decoder] canvas:not(.hatched)").evaluate(pixel)[3] == 0
    assert tab.locator("[data-kind=cross] canvas").count() == 1
