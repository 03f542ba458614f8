"""What was found, for a person: a line for each part, tables, and the column of docs/gpu.md that waits for it."""

from collections.abc import Iterator
from typing import Any

from tests.gpu_check.parts import Outcome

CEILINGS = {"copy": 4.3e12, "largest product": 790e12}  # bytes and operations a second of an H200, until measured


def line(name: str, outcome: Outcome, seconds: float) -> str:
    """A part in the table: how it ended, seconds, a few words."""
    return f"{name:28} {outcome.status:9} {seconds:6.1f} s  {words(outcome.found) or last_line(outcome.said)}"


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1][:100] if text.strip() else ""


def words(found: dict[str, Any]) -> str:
    """Numbers of a suite, figures of the others."""
    if "tests" in found:
        return ", ".join(f"{number} {name}" for name, number in found.items() if number)
    rates = [value["rate"] / 1e12 for value in found.values() if isinstance(value, dict) and "flops" in value]
    if len(rates) == len(found) > 1:
        return f"{len(rates)} products, {min(rates):,.0f} to {max(rates):,.0f} TFLOP/s"
    return "; ".join(filter(None, (figure(name, value) for name, value in found.items())))[:200]


def figure(name: str, value: Any) -> str:
    """One figure in words; "" where it needs a table."""
    if not isinstance(value, dict):
        return f"{name} {value}"
    if "host_ms" in value:
        return f"{name}: {value['ms']:.2f} ms, host {value['host_ms']:.2f}, {value['tokens_per_second']:,.0f} tokens/s"
    if "host_us" in value:
        return f"{name} {value['host_us']:.1f} us"
    if "off" in value:
        return f"{name} off {value['off']:.1e}"
    return f"{name} {rate(value)}" if "rate" in value else ""


def rate(value: dict[str, Any]) -> str:
    """TFLOP/s of a product, GB/s of anything else."""
    if value["ms"] <= 0:
        return ""
    if value.get("flops"):
        return f"{value['flops'] / value['ms'] / 1e9:,.0f} TFLOP/s"
    return f"{value['bytes'] / value['ms'] / 1e6:,.0f} GB/s"


def ceilings(results: dict[str, Any]) -> dict[str, float]:
    """Bytes and operations a second: as measured, or else those of an H200."""
    found = results.get("memory and calls", {}).get("found", {})
    return {name: found.get(name, {}).get("rate", known) for name, known in CEILINGS.items()}


def floor_ms(value: dict[str, Any], top: dict[str, float]) -> float:
    """What the bytes and the operations take at the ceilings."""
    return 1e3 * max(value["bytes"] / top["copy"], value.get("flops", 0) / top["largest product"])


def tables(results: dict[str, Any]) -> str:
    """Everything that does not fit a line: memory and calls, products, each shape's kernels beside their floors."""
    lines = []
    if found := results.get("memory and calls", {}).get("found"):
        lines += ["\nmemory and calls", *(f"    {name:32} {detail(value)}" for name, value in found.items())]
    if found := results.get("products", {}).get("found"):
        lines += ["\nproducts in TFLOP/s; N: rows contiguous, T: columns", *product_lines(found)]
    for name, value in results.get("steps: ours", {}).get("found", {}).items():
        if "table" in value:
            whole, between = value["device_ms"], value["between_ms"]
            lines.append(f"\n{name}: {whole:.2f} ms of the device, {between:.2f} of them CuPy's own kernels and gaps")
            lines += kernel_lines(value["table"], ceilings(results))
    return "\n".join(lines)


def product_lines(found: dict[str, Any]) -> Iterator[str]:
    """A line for each size, its three kinds side by side."""
    sizes = dict.fromkeys(name.rpartition(" ")[0] for name in found)
    for size in sizes:
        kinds = {name[-2:]: value for name, value in found.items() if name.rpartition(" ")[0] == size}
        yield f"    {size:32} " + "  ".join(f"{kind} {value['rate'] / 1e12:6.1f}" for kind, value in kinds.items())


def kernel_lines(table: dict[str, Any], top: dict[str, float]) -> Iterator[str]:
    """A line for each kernel and product: calls, milliseconds, what they were at least, the ratio, the rate."""
    yield f"    {'':32} {'calls':>5} {'ms':>9} {'floor':>9} {'times':>6}"
    for name, value in table.items():
        floor = floor_ms(value, top)
        times = value["ms"] / floor if floor else 0.0
        yield f"    {name:32} {value['calls']:>5} {value['ms']:>9.3f} {floor:>9.3f} {times:>6.1f}  {rate(value)}"


def detail(value: dict[str, Any]) -> str:
    if "host_us" in value:
        return f"host {value['host_us']:8.2f} us, device {value['device_us']:8.2f} us"
    return f"{value['ms']:9.4f} ms  {rate(value)}"


def measured(results: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(first cell of a row, what belongs in its last)."""
    for part, result in results.items():
        found = result.get("found", {})
        if part in ("memory and calls", "products"):
            yield from ((name, detail(value).strip()) for name, value in found.items())
        if part.startswith("steps: "):
            for name, value in found.items():
                if "host_ms" in value:
                    yield f"{name}: {part.removeprefix('steps: ')}", figure("", value).removeprefix(": ")
        if part in ("training step, GPU = CPU", "training step, graph = none", "short training"):
            yield from ((f"{part}: {name}", f"{value['off']:.1e}") for name, value in found.items() if "off" in value)
    own = results.get("steps: ours", {}).get("found", {}).get("base, 25k + 25k, by kernel", {})
    yield from ((name, f"{value['ms']:.2f} ms, {rate(value)}") for name, value in own.get("table", {}).items())
    if own:
        yield "CuPy's own kernels, and gaps", f"{own['between_ms']:.2f} ms"
        yield "all of a step", f"{own['device_ms']:.2f} ms"


def filled(page: str, file: dict[str, Any]) -> str:
    """The page, the last cells of tables whose last head is "measured" as a run of the check found them."""
    if file["rehearsal"]:
        raise SystemExit("gpu-check: expected a file of a run on a GPU; got one of a rehearsal, which measures nothing")
    values, lines, inside = dict(measured(file["parts"])), [], False
    for text in page.splitlines():
        cells = text.split("|")
        if len(cells) < 4:
            inside = False
        elif cells[-2].strip() == "measured":
            inside = True
        elif inside and cells[1].strip() in values:
            text = "|".join([*cells[:-2], f" {values[cells[1].strip()]} ", ""])
        lines.append(text)
    return "\n".join(lines) + "\n"
