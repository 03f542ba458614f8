"""Format the results: one line per part, tables, and the measured columns of docs/gpu.md."""

from collections.abc import Iterator
from typing import Any

from tests.gpu_check.parts import Outcome

CEILINGS = {"copy": 3.01e12, "largest matmul": 776e12}  # bytes and operations per second of an H100, if not measured


def line(name: str, outcome: Outcome, seconds: float) -> str:
    """Return one line about a part: status, seconds, summary."""
    return f"{name:28} {outcome.status:9} {seconds:6.1f} s  {words(outcome.values) or last_line(outcome.output)}"


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1][:100] if text.strip() else ""


def words(values: dict[str, Any]) -> str:
    """Summarize the results of a part: the counts of a test suite, or measurements."""
    if "tests" in values:
        return ", ".join(f"{number} {name}" for name, number in values.items() if number)
    rates = [value["rate"] / 1e12 for value in values.values() if isinstance(value, dict) and "flops" in value]
    if len(rates) == len(values) > 1:
        return f"{len(rates)} matmuls, {min(rates):,.0f} to {max(rates):,.0f} TFLOP/s"
    return "; ".join(filter(None, (figure(name, value) for name, value in values.items())))[:200]


def figure(name: str, value: Any) -> str:
    """Format one measurement; "" if it needs a table."""
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
    """Format the rate: TFLOP/s of a matmul, GB/s of any other kernel."""
    if value["ms"] <= 0:
        return ""
    if value.get("flops"):
        return f"{value['flops'] / value['ms'] / 1e9:,.0f} TFLOP/s"
    return f"{value['bytes'] / value['ms'] / 1e6:,.0f} GB/s"


def ceilings(results: dict[str, Any]) -> dict[str, float]:
    """Return the peak bytes and operations per second: the measured ones, or those of an H100."""
    values = results.get("memory and calls", {}).get("values", {})
    return {name: values.get(name, {}).get("rate", known) for name, known in CEILINGS.items()}


def floor_ms(value: dict[str, Any], top: dict[str, float]) -> float:
    """Return the milliseconds that the bytes and operations take at the peak rates."""
    return 1e3 * max(value["bytes"] / top["copy"], value.get("flops", 0) / top["largest matmul"])


def tables(results: dict[str, Any]) -> str:
    """Return the tables: memory and launches, matmuls, and the kernels of each shape with their lower bounds."""
    lines = []
    if values := results.get("memory and calls", {}).get("values"):
        lines += ["\nmemory and calls", *(f"    {name:32} {detail(value)}" for name, value in values.items())]
    if values := results.get("matmuls", {}).get("values"):
        lines += ["\nmatmuls in TFLOP/s; N: contiguous rows, T: contiguous columns", *product_lines(values)]
    for name, value in results.get("steps: ours", {}).get("values", {}).items():
        if "table" in value:
            total, between = value["device_ms"], value["between_ms"]
            lines.append(f"\n{name}: {total:.2f} ms on the device, {between:.2f} of them CuPy's own kernels and gaps")
            lines += kernel_lines(value["table"], ceilings(results))
    return "\n".join(lines)


def product_lines(values: dict[str, Any]) -> Iterator[str]:
    """Yield one line per size, with its three layouts."""
    sizes = dict.fromkeys(name.rpartition(" ")[0] for name in values)
    for size in sizes:
        layouts = {name[-2:]: value for name, value in values.items() if name.rpartition(" ")[0] == size}
        yield f"    {size:32} " + "  ".join(
            f"{layout} {value['rate'] / 1e12:6.1f}" for layout, value in layouts.items()
        )


def kernel_lines(table: dict[str, Any], top: dict[str, float]) -> Iterator[str]:
    """Yield one line per kernel and matmul: calls, milliseconds, lower bound, ratio, rate."""
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
    """Yield (name of a row, text for its measured column)."""
    for part, result in results.items():
        values = result.get("values", {})
        if part in ("memory and calls", "matmuls"):
            yield from ((name, detail(value).strip()) for name, value in values.items())
        if part.startswith("steps: "):
            for name, value in values.items():
                if "host_ms" in value:
                    yield f"{name}: {part.removeprefix('steps: ')}", figure("", value).removeprefix(": ")
        if part.startswith(("training step", "short training")):
            yield from ((f"{part}: {name}", f"{value['off']:.1e}") for name, value in values.items() if "off" in value)
    profile = results.get("steps: ours", {}).get("values", {}).get("base, 25k + 25k, by kernel", {})
    yield from ((name, f"{value['ms']:.2f} ms, {rate(value)}") for name, value in profile.get("table", {}).items())
    if profile:
        yield "CuPy's own kernels, and gaps", f"{profile['between_ms']:.2f} ms"
        yield "all of a step", f"{profile['device_ms']:.2f} ms"


def filled(page: str, file: dict[str, Any]) -> str:
    """Return the page with the last column of its tables, "measured", filled from a results file."""
    if file["rehearsal"]:
        raise SystemExit("gpu-check: expected results from a GPU; got those of a rehearsal")
    values, lines, in_table = dict(measured(file["parts"])), [], False
    for text in page.splitlines():
        cells = text.split("|")
        if len(cells) < 4:
            in_table = False
        elif cells[-2].strip() == "measured":
            in_table = True
        elif in_table and cells[1].strip() in values:
            text = "|".join([*cells[:-2], f" {values[cells[1].strip()]} ", ""])
        lines.append(text)
    return "\n".join(lines) + "\n"
