"""The blocks of figures of docs/benchmarks.md and of the pages of ops in docs/benchmarks/."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from figures.stored import Document, Ops
from tridal.benchmarks.providers import COPY, OURS
from tridal.benchmarks.report import (
    EQUAL,
    UNRELIABLE,
    Table,
    as_lines,
    class_table,
    comparisons,
    geometric_mean,
    host_table,
    is_slower,
    number,
    providers,
    shortfalls,
    values,
)
from tridal.benchmarks.results import Row, distinct, select
from tridal.benchmarks.workloads import DIRECTIONS, SHAPE_CLASSES

NAMES = {
    "softmax": "Softmax", "rms_norm": "RMSNorm", "layer_norm": "LayerNorm", "cross_entropy": "Cross-entropy",
    "swiglu": "SwiGLU", "geglu": "GeGLU", "log_probs": "Log-probabilities", "rotary_embedding": "Rotary embedding",
}  # fmt: skip


def share(row: Row | None) -> str:
    """Formats a share of copy, with a mark if it is unreliable."""
    if row is None:
        return "-"
    return (UNRELIABLE if row["share_noisy"] else "") + number(row["share_of_copy"], "share_of_copy")


def overview(results: Ops) -> list[str]:
    """A line per op and dtype: the typical share of tridal, its range, and the typical share of the best other one."""
    lines = []
    for op, document in results.ops.items():
        for dtype in distinct(document["measurements"], "dtype"):
            cells = [link(results, op), dtype]
            for direction in DIRECTIONS:
                rows = select(document["measurements"], dtype=dtype, direction=direction)
                found = values(rows, provider=OURS)
                others = [peer["share_of_copy"] for _, peer in comparisons(rows) if peer]
                ours, best = (number(geometric_mean(shares), "share_of_copy") for shares in (found, others))
                ours = f"**{ours}**" if ours > best else ours  # both have two decimals
                cells += [f"{ours} ({min(found):.2f} to {max(found):.2f})", best]
            lines.append(cells)
    return as_lines((["op", "dtype", "forward", "best other", "backward", "best other"], lines))


def faster_elsewhere(results: Ops) -> list[str]:
    """A line per op: how often tridal is the fastest, and where another library is faster."""
    return [f"- {link(results, op)}: {result(document)[0]}" for op, document in results.ops.items()]


def link(results: Ops, op: str) -> str:
    """Returns the name of an op as a link from docs/benchmarks.md."""
    anchor = NAMES[op].lower().replace(" ", "-")
    return f"[{NAMES[op]}](benchmarks/{f'{results.page}#{anchor}' if results.page else f'{op}.md'})"


def result(document: Document) -> list[str]:
    """A sentence: how often tridal is the fastest, and how much faster another library is elsewhere."""
    measured = list(comparisons(document["measurements"]))
    slower = [(row, peer) for row, peer in measured if peer and is_slower(row, peer)]
    text = f"tridal is the fastest, or within {EQUAL:.0%} of the fastest,"
    text += f" for {len(measured) - len(slower)} of {len(measured)} workloads."
    if slower:
        row, peer = max(slower, key=slowdown)
        text += f" For the others, another implementation is up to {slowdown((row, peer)):.2f}x as fast:"
        text += f" {peer['provider']} for {workload(row)}."
    return [text]


def slowdown(pair: tuple[Row, Row]) -> float:
    """Returns the time of a measurement divided by that of another one."""
    return float(pair[0]["ms"] / pair[1]["ms"])


def percent(row: Row, peer: Row) -> str:
    """Returns how much longer a measurement takes than another one, in percent."""
    return f"{slowdown((row, peer)) - 1:.0%}"


def workload(row: Row) -> str:
    """Names the workload of a measurement."""
    return f"{row['shape']}, {row['dtype']} {row['direction']}"


def slower(document: Document) -> list[str]:
    """A line per workload for which another library is faster, beginning with the largest difference."""
    return as_lines((["workload", OURS, "the fastest", "faster by"], slower_lines(document)))


def slower_ops(results: Ops) -> list[str]:
    """The same for all ops, one after another."""
    lines = [
        [f"{NAMES[op]} {first}", *rest] for op, found in results.ops.items() for first, *rest in slower_lines(found)
    ]
    return as_lines((["workload", OURS, "the fastest", "faster by"], lines))


def slower_lines(document: Document) -> list[list[str]]:
    """Returns the lines of the table of `slower`."""
    pairs = [(row, peer) for row, peer in comparisons(document["measurements"]) if peer and is_slower(row, peer)]
    return [
        [workload(row), share(row), f"{peer['provider']} {share(peer)}", percent(row, peer)]
        for row, peer in sorted(pairs, key=slowdown, reverse=True)
    ]


def aims(document: Document) -> list[str]:
    """A sentence: how many workloads reach the aim of their class of shapes."""
    measured = [row for row in select(document["measurements"], provider=OURS) if row["share_of_copy"]]
    missed = sum("the aim is" in line for line in shortfalls(document["measurements"], document["aims"]))
    return [f"{len(measured) - missed} of {len(measured)} workloads reach the aim of their class of shapes."]


def forward(document: Document) -> list[str]:
    """A line per class of shapes and dtype with the typical share of each implementation, for the forward."""
    return classes(document, "forward")


def backward(document: Document) -> list[str]:
    """The same as `forward` for the backward."""
    return classes(document, "backward")


def classes(document: Document, direction: str) -> list[str]:
    """Returns the table of `forward` or `backward`."""
    rows = select(document["measurements"], direction=direction)
    (_, dtype, _, *names), lines = class_table(rows, providers(rows, skipped=False))
    lines = [[SHAPE_CLASSES[group].title, dtype, *cells] for group, dtype, _, *cells in lines]
    return as_lines((["class of shapes", dtype, *names], lines))


def shapes(document: Document) -> list[str]:
    """A line per shape with the share of tridal and of the fastest other library, for each dtype and direction."""
    lines: list[str] = []
    rows = document["measurements"]
    for group in distinct(rows, "group"):
        title = SHAPE_CLASSES[group].title
        lines += [f"### {title[0].upper()}{title[1:]}", "", *as_lines(shape_lines(select(rows, group=group))), ""]
    return lines[:-1]


def shape_lines(rows: Sequence[Row]) -> Table:
    """Returns the table of `shapes` for a class of shapes."""
    columns = sorted({(row["direction"], row["dtype"]): None for row in rows}, key=lambda key: DIRECTIONS.index(key[0]))
    found = {(row["shape"], row["direction"], row["dtype"]): (row, peer) for row, peer in comparisons(rows)}
    lines = []
    for shape in distinct(rows, "shape"):
        pairs = [found.get((shape, *column), (None, None)) for column in columns]
        lines.append([shape, *[f"{share(row)} ({share(peer)})" for row, peer in pairs]])
    return ["shape", *[f"{direction} {dtype}" for direction, dtype in columns]], lines


def machine(document: Document) -> list[str]:
    """A sentence: the device, the versions and the date."""
    found = document["machine"]
    versions = {
        "torch": found["torch"],
        "Triton": found["triton"],
        "Python": found["python"],
        "tridal": found["tridal"],
    }
    for name in providers(document["measurements"], skipped=False):
        if name not in (OURS, COPY) and not name.startswith("torch"):
            versions[name] = document["providers"][name]
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    measured = [f"Measured on one {found['name']} with {text}, on {document['date'].partition('T')[0]}."]
    for name, date in document.get("measured_again", {}).items():
        measured.append(f"{name} was measured again on {date}, beside copies of the same run on the same model of GPU.")
    return measured


def host(document: Document) -> list[str]:
    """A line per provider: microseconds of a call on the host, without and with gradient."""
    return as_lines(host_table(document["host"]))


BLOCKS: Mapping[str, Callable[[Any], list[str]]] = {
    function.__name__: function
    for function in (
        overview,
        faster_elsewhere,
        result,
        slower,
        slower_ops,
        aims,
        forward,
        backward,
        shapes,
        machine,
        host,
    )
}
"""The functions that write blocks. They get the results of the block's op, or all results if it names none."""
