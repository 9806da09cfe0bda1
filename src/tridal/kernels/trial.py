"""The trial of an op's functions: calls each of them with the shapes that the schedules pass, and stores nothing."""

from __future__ import annotations

from tridal.kernels.pieces import Writer


def trial(w: Writer) -> None:
    """Writes calls of report(role, function, result, expected), where `expected` has the expected shape.

    With the constant PARTS, each row is a part of a row: a part has its own number of elements and its own scale.
    """
    p, k = w.plan, w.kernel
    whole = p.axis == 1 and not p.constants["PARTS"]
    p.flags = {"UNNORMALIZED": whole, "REFINE": whole, "GUARD": not whole}
    p.exchange, p.arguments = True, frozenset(f"{name}_number" for name in k.parameters)
    statistics, first = [s.name for s in k.statistics if s.reduce != "top"], [s.name for s in k.statistics[:1]]
    part_first = [f"part_{name}" for name in first]
    own = "row" if p.constants["PARTS"] else "number"  # of each part

    def assign(value: str, *names: str) -> None:
        for name in names:
            w(f"{name} = {value}")

    def report(role: str, expected: str, name: str = "", later: bool | None = None) -> None:
        """Reports the functions of a role: `later` selects the terms of later statistics, or of the first one."""
        for function in p.functions:
            chosen = later is None or (function.statistic > 0) == later
            if function.role == role and chosen and p.functions[function] is not None:
                call = p.call(role, function.name, statistic=function.statistic, other={"column": "column"})
                w(f'report("{name or role}", "{function.name}", CALL, {expected})', CALL=call)

    w("""
        row = tl.full([ROWS], 1.0, ACC)
        column = COLUMN
        tile = ROW + column.to(ACC)
        number = tl.sum(row, 0)
        in_bounds = tile > 0""", COLUMN=p.body.along(f"tl.arange(0, {p.cols})"), ROW=p.body.across("row"))  # fmt: skip
    assign("tile", *k.reads, *k.top_reads)
    assign(f"tl.zeros({p.shape}, tl.int32)", *k.named("top_index"))
    assign("row", "picked", *k.row_reads, *(f"picked_{name}" for name in k.column_reads[:1]))
    assign("column.to(ACC)", *k.column_reads)
    assign("number", *p.arguments)
    assign(f"tl.arange(0, {p.rows})", *k.named("row_index"))
    report("term", "tile", later=False)
    assign("row", *first, *part_first)
    assign("row", *statistics[1:] * k.whole_rows)
    assign(own, "count")
    report("term", "tile", later=True)
    assign("row", *statistics[1:])
    assign(own, "part_count")
    assign("number", "count")
    report("rebase", "row")
    assign(f"tl.zeros([{p.cols}, {p.rows}], ACC)", "parts")
    assign("parts", *statistics[1:], *part_first)
    assign(f"tl.zeros([{p.cols}, 1], ACC)", "part_count")
    report("rebase", "parts")
    assign("parts" + (' + float("-inf")' if p.first == "max" else ""), *part_first)
    report("rebase", "parts", "empty")
    assign("".join(part_first), *first)
    report("rebase", "parts", "empty")
    assign("number", *statistics, *part_first, "part_count")
    report("rebase", "number")
    assign("row", *statistics, *part_first)
    assign(own, "part_scale")
    report("row_value", "row")
    w.row_value()
    report("row_writes", "row")
    report("writes", "tile")
    report("top_writes", "tile")
    report("column_writes", "tile")
