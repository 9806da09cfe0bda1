"""The trial of an op's functions: calls each of them with the shapes that the schedules pass, and stores nothing."""

from __future__ import annotations

from tridal.kernels.op_functions import OpFunction
from tridal.kernels.pieces import Writer


def trial(w: Writer) -> None:
    """Writes calls of report(role, function, result, expected), where `expected` has the expected shape.

    With the constant PARTS, each row is a part of a row: a part has its own number of elements and its own scale.
    """
    p, k = w.plan, w.kernel
    whole = p.axis == 1 and not p.constants["PARTS"]
    p.flags = {"UNNORMALISED": whole, "REFINE": whole, "GUARD": not whole}
    p.exchange, p.arguments = True, frozenset(f"{name}_number" for name in k.parameters)
    statistics = [statistic.name for statistic in k.statistics]
    first, laters = statistics[:1], statistics[1:]
    rebased = [function for function in p.functions if function.role == "rebase"]

    def assign(value: str, *names: str) -> None:
        for name in names:
            w(f"{name} = {value}")

    def report(role: str, function: OpFunction, expected: str) -> None:
        if p.functions[function] is not None:
            call = p.call(function.role, function.name, statistic=function.statistic, other={"column": "column"})
            w(f'report("{role}", "{function.name}", CALL, {expected})', CALL=call)

    def report_rebased(role: str, expected: str) -> None:
        for function in rebased:
            report(role, function, expected)

    w("""
        row = tl.full([ROWS], 1.0, ACC)
        column = COLUMN
        tile = ROW + column.to(ACC)
        number = tl.sum(row, 0)
        in_bounds = tile > 0""", COLUMN=p.body.along(f"tl.arange(0, {p.cols})"), ROW=p.body.across("row"))  # fmt: skip
    assign("row" if p.constants["PARTS"] else "number", "part_number")
    assign("tile", *k.reads)
    assign("row", "picked", *k.row_reads, *(f"picked_{name}" for name in k.column_reads[:1]))
    assign("column.to(ACC)", *k.column_reads)
    assign("number", *p.arguments)
    assign(f"tl.arange(0, {p.rows})", *filter(None, [k.row_index]))
    for function in [function for function in p.functions if function.role == "term" and function.statistic == 0]:
        report("term", function, "tile")
    assign("row", *first, *(f"part_{name}" for name in first))
    assign("part_number", "count")
    for function in [function for function in p.functions if function.role == "term" and function.statistic > 0]:
        report("term", function, "tile")
    assign("row", *laters)
    assign("part_number", "part_count")
    assign("number", "count")
    report_rebased("rebase", "row")
    assign(f"tl.zeros([{p.cols}, {p.rows}], ACC)", "parts")
    assign("parts", *laters, *(f"part_{name}" for name in first))
    assign(f"tl.zeros([{p.cols}, 1], ACC)", "part_count")
    report_rebased("rebase", "parts")
    assign("parts" + (' + float("-inf")' if p.first == "max" else ""), *(f"part_{name}" for name in first))
    report_rebased("empty", "parts")
    assign("".join(f"part_{name}" for name in first), *first)
    report_rebased("empty", "parts")
    assign("number", *statistics, *(f"part_{name}" for name in first), "part_count")
    report_rebased("rebase", "number")
    assign("row", *statistics, *(f"part_{name}" for name in first))
    assign("part_number", "part_scale")
    for role, expected in (("row_value", "row"), ("row_writes", "row"), ("writes", "tile"), ("column_writes", "tile")):
        for function in [function for function in p.functions if function.role == role]:
            report(role, function, expected)
        if role == "row_value" and k.row_value is not None:
            w.row_value()
    w('report("end", "", None, None)')
