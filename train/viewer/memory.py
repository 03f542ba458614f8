"""Plot the memory of one update: live bytes after each operation, forward then backward, and the largest layers."""

from pathlib import Path
from typing import Any

import npx
from autograd import MemoryProfiler, observing
from models import FlatParameters
from train.run.keys import TrainSection
from train.tasks import Task
from train.viewer.picture import disable_math, new_figure, write_picture

MIB = 2**20
MAX_NAMED_LAYERS = 5  # number of layers listed by name


def measure_memory(task: Task, model: Any, batch: Any, settings: TrainSection) -> MemoryProfiler:
    """Measure the memory that a forward and a backward pass need in addition to weights and gradients."""
    FlatParameters(model)  # training also allocates the flat buffers before the pass
    model.train()
    loss_options = {"label_smoothing": settings.label_smoothing, "smoothing_classes": settings.smoothing_classes}
    with npx.keyed(settings.seed, 1), observing(MemoryProfiler()) as memory:
        model.loss(*task.loss_inputs(batch), **loss_options, loss_normalizer=batch.n_targets).backward()
    model.eval()
    return memory


def draw_memory(memory: MemoryProfiler, batch: str, path: Path, caption: str) -> Path:
    """Plot live memory, its peak and the layers that add the most; `batch` describes the batch in words."""
    live = [sample.live / MIB for sample in memory.samples]
    n_forward = sum(sample.phase == "forward" for sample in memory.samples)
    peak = memory.peak
    peak_index = memory.samples.index(peak)
    layers = list(memory.by_layer().items())[:MAX_NAMED_LAYERS]
    figure = new_figure(9.5, 4.2)
    axis = figure.add_axes((0.065, 0.125, 0.545, 0.745))
    axis.fill_between(range(len(live)), live, step="mid", color="#4477aa", alpha=0.25, linewidth=0)
    axis.step(range(len(live)), live, where="mid", color="#4477aa", linewidth=1.2)
    axis.axvline(n_forward - 0.5, color="0.5", linewidth=0.8, linestyle="--")
    axis.annotate(
        f"peak {peak.live / MIB:,.1f} MiB: {peak.operation}, {peak.phase}", (peak_index, live[peak_index]), fontsize=8,
        xytext=(0.03, 0.96), textcoords="axes fraction", arrowprops={"arrowstyle": "-", "linewidth": 0.6}, va="top",
    )  # fmt: skip
    axis.set(xlim=(0, len(live) - 1), ylim=(0, 1.18 * max(live)))
    axis.set_xlabel("operation, in execution order: forward | backward", fontsize=8)
    axis.set_ylabel("live memory (MiB)", fontsize=8)
    axis.tick_params(labelsize=7.5)
    axis.grid(linewidth=0.3)
    title = f"Memory of one update: {batch}"
    disable_math(figure.text(0.012, 0.95, title, fontsize=11, va="center"))
    sides = figure.add_axes((0.84, 0.125, 0.145, 0.745))
    bars = [bytes_ / MIB for _, bytes_ in layers][::-1]
    sides.barh(range(len(bars)), bars, color="#4477aa")
    sides.set_yticks(range(len(bars)), [name or "other" for name, _ in layers][::-1], fontsize=7)
    sides.set_title("growth in forward pass (MiB)", fontsize=8, loc="right")
    sides.tick_params(labelsize=7)
    names = "; ".join(f"{name or 'other'} {bytes_ / MIB:,.1f} MiB" for name, bytes_ in layers)
    alt = (
        f"{title}. Excludes weights, their gradients, Adam's moments and temporary memory inside kernels. "
        f"Over {n_forward} operations forward and {len(live) - n_forward} backward; peak {peak.live / MIB:,.1f} MiB at "
        f"{peak.operation} ({peak.phase}{f', {peak.layer}' if peak.layer else ''}).\nLayers that add the most "
        f"in the forward pass: {names}."
    )
    return write_picture(figure, path, title, alt, caption)
