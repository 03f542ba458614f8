"""A picture of memory: bytes alive over the operations of one update, forward then backward, and what fills them."""

from pathlib import Path
from typing import Any

import npx
from autograd import Memory, observing
from models import FlatParameters
from train.tasks import Task
from train.viewer.picture import new, plain, write

MIB = 2**20
NAMED = 5  # layers


def measured(task: Task, model: Any, batch: Any, settings: Any) -> Memory:
    """The memory of the gradient of one batch, by the [train] table of a run; weights and gradients not counted."""
    FlatParameters(model)  # as a training has it: gradients lie in one buffer, which stands before
    model.train()
    how = {"smoothing": settings.label_smoothing, "smoothing_over": settings.smoothing_over}
    with npx.keyed(settings.seed, 1), observing(Memory()) as memory:
        model.loss(*task.sequences(batch), **how, normalizer=batch.n_target_tokens).backward()
    model.eval()
    return memory


def draw_memory(memory: Memory, batch: str, path: Path, source: str) -> Path:
    """The curve, its peak, and the layers that memory grows by most; `batch` says of what it is, in words."""
    live = [moment.live / MIB for moment in memory.moments]
    turn = sum(moment.phase == "forward" for moment in memory.moments)
    peak = memory.peak
    at = memory.moments.index(peak)
    layers = list(memory.by_layer().items())[:NAMED]
    figure = new(9.5, 4.2)
    axis = figure.add_axes((0.065, 0.125, 0.545, 0.745))
    axis.fill_between(range(len(live)), live, step="mid", color="#4477aa", alpha=0.25, linewidth=0)
    axis.step(range(len(live)), live, where="mid", color="#4477aa", linewidth=1.2)
    axis.axvline(turn - 0.5, color="0.5", linewidth=0.8, linestyle="--")
    axis.annotate(
        f"peak {peak.live / MIB:,.1f} MiB: {peak.operation}, {peak.phase}", (at, live[at]), fontsize=8,
        xytext=(0.03, 0.96), textcoords="axes fraction", arrowprops={"arrowstyle": "-", "linewidth": 0.6}, va="top",
    )  # fmt: skip
    axis.set(xlim=(0, len(live) - 1), ylim=(0, 1.18 * max(live)))
    axis.set_xlabel("operation, in the order in which they ran: forward | backward", fontsize=8)
    axis.set_ylabel("MiB alive", fontsize=8)
    axis.tick_params(labelsize=7.5)
    axis.grid(linewidth=0.3)
    title = f"Memory of one update: {batch}"
    plain(figure.text(0.012, 0.95, title, fontsize=11, va="center"))
    sides = figure.add_axes((0.84, 0.125, 0.145, 0.745))
    bars = [bytes_ / MIB for _, bytes_ in layers][::-1]
    sides.barh(range(len(bars)), bars, color="#4477aa")
    sides.set_yticks(range(len(bars)), [name or "the rest" for name, _ in layers][::-1], fontsize=7)
    sides.set_title("grown by, forward (MiB)", fontsize=8, loc="left")
    sides.tick_params(labelsize=7)
    names = "; ".join(f"{name or 'the rest'} {bytes_ / MIB:,.1f} MiB" for name, bytes_ in layers)
    alt = (
        f"{title}. Weights, their gradients and Adam's moments are not counted, nor what a kernel needs while it runs. "
        f"Over {turn} operations forward and {len(live) - turn} backward; peak {peak.live / MIB:,.1f} MiB at "
        f"{peak.operation} ({peak.phase}{f', {peak.layer}' if peak.layer else ''}).\nOn the way forward it grows most "
        f"by: {names}."
    )
    return write(figure, path, title, alt, source)
