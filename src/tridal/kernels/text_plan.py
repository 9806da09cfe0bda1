"""What a schedule knows when it writes a kernel: the declaration, the constants of the plan, the names in the text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tridal.kernels.op_functions import OpFunction, constants_of, declared_by
from tridal.kernels.row_kernel import RowKernel, Statistic

OUTPUTS = "writes", "column_writes"
"""The roles of functions that compute outputs."""
AFTER_STATISTICS = "row_value", "row_writes", "top_writes", *OUTPUTS
"""The roles of functions that use the finished statistics."""
_ACCUMULATOR = {"fp32": "tl.float32", "fp64": "tl.float64"}


class Area(NamedTuple):
    """An area of a tile: its body, the unaligned heads and tails of its rows, a chunk of a row, or chosen elements.

    Heads and tails are a small tile [2 * VECTOR, ROWS]. Variables of an area have its suffix.
    """

    suffix: str
    axis: int
    """The axis along which a row runs."""

    def __call__(self, name: str) -> str:
        """Returns the variable of this area."""
        return name + self.suffix

    def along(self, index: str) -> str:
        """Writes an index of columns as an axis of the tile."""
        return f"{index}[None, :]" if self.axis else f"{index}[:, None]"

    def across(self, index: str) -> str:
        """Writes an index of rows as an axis of the tile."""
        return f"{index}[:, None]" if self.axis else f"{index}[None, :]"

    @property
    def names(self) -> dict[str, str]:
        """The CAPITALS of a block for this area."""
        return {name.upper(): self(name) for name in ("begin", "body", "column", "columns", "in_bounds")}


class TextPlan:
    """A kernel and the constants of its plan, which are attributes in lower case: `plan.rows`, `plan.peel`.

    Attributes:
        kernel: the declaration.
        arguments: the run-time arguments of the kernel. The other ones are constants.
        literals: what CAPITALS in a block stand for.
        flags: constants that the schedule sets for the functions of the op: UNNORMALIZED, GUARD, REFINE.
        flags_of: other values of constants for the functions of a role, such as "term".
        rank: the name of the variable with a program's index in its row, or "" if a row has one program.
        loops: whether programs loop over blocks of the columns of a row.
    """

    if TYPE_CHECKING:

        def __getattr__(self, constant: str) -> Any: ...

    def __init__(self, kernel: RowKernel, constants: dict[str, Any], arguments: frozenset[str], loops: bool) -> None:
        self.kernel, self.arguments = kernel, arguments
        self.constants = constants | constants_of(kernel) | {"LOOPS": loops}
        self.__dict__.update((name.lower(), value) for name, value in self.constants.items())
        self.acc = _ACCUMULATOR[self.acc_dtype]
        self.rank = "rank" if self.programs_per_row > 1 else ""
        self.int64 = ".to(tl.int64)" if self.int64_offsets else ""
        self.exchange = bool(self.rank and kernel.computed)
        self.body, self.edge, self.chunk = Area("", self.axis), Area("_edge", 0), Area("_chunk", self.axis)
        self.top_area, self.rest = Area("_top", self.axis), Area("_rest", self.axis)
        self.fixed_areas = (self.body, *(self.rest,) * bool(self.rest_cols))
        """The areas that have the same columns in all rows."""
        self.areas = (*self.fixed_areas, *(self.edge,) * self.peel)
        self.functions = declared_by(kernel)
        self.all_used = self.used(*{function.role for function in self.functions}) | {kernel.added or ""}
        self.all_used |= {*kernel.row_reads} if kernel.parts > 1 else set()
        """The names that functions of any role declare."""
        self.has_index = bool(kernel.row_index in self.all_used or self.picks or self.picks_column)
        self.has_top = bool(kernel.top_writes or kernel.top_index)
        read = self.all_used.intersection(kernel.row_reads)
        self.locates_rows = bool(
            self.has_index or self.has_top or kernel.row_writes or read.difference(kernel.for_all_rows)
        )
        """Whether there are numbers per row, and not only numbers for all rows."""
        self.has_rows = bool(self.locates_rows or (read and self.rows > 1))
        self.stride_groups = {f"{kernel.reads[0]}_ptr": "in", **dict(kernel.stride_groups)}
        self.body_length = f"(cols - head) // {self.vector} * {self.vector}" if self.peel else "cols"
        self.begins = bool(self.peel or self.rank or loops)
        """Whether an area of a tile begins at another column than the first one of its row."""
        self.per_block = bool(kernel.per_block)
        """Whether each program computes tiles of one block of rows."""
        self.hides_stride = bool(self.rank and not self.axis and not loops)
        """Whether Triton must not know the stride between columns, see `whole_row.hide_stride`."""
        self.flags: dict[str, Any] = {}
        self.flags_of: dict[str, dict[str, Any]] = {}
        self.literals: dict[str, Any] = {name.upper(): name for name in arguments}  # for example IN_INNER, if not 1
        self.literals |= {name.upper(): literal(value) for name, value in self.constants.items()}
        self.literals |= {
            "ACC": self.acc,
            "BODY_LENGTH": self.body_length,
            "INT64": self.int64,
            "PADDING": literal(float(self.padding)),
            "TOP": kernel.top,
            "TILES": "outer * inner" if self.rows == 1 else f"outer * tl.cdiv(inner, {self.rows})",
            "TILES_OF_BLOCK": "inner" if self.rows == 1 else f"tl.cdiv(inner, {self.rows})",
            "VECTORS": self.vector if self.rows == 1 else [self.vector] * 2,
        }

    @property
    def rebase_numbers(self) -> list[str]:
        """The parameters that the exchange passes to the function that rebases the second statistic."""
        k = self.kernel
        names = {
            name for s in k.statistics[1:2] if s.rebase for name in self.arguments_of(OpFunction("rebase", s.rebase, 1))
        }
        numbers = (f"{name}_number" for name in k.parameters if name in names)
        return [number for number in numbers if number in self.arguments]

    # --- calls of the op's functions

    def arguments_of(self, function: OpFunction) -> list[str]:
        """Returns the names that a function declares. If a variable stands for a function, returns its name."""
        found = self.functions[function]
        return [function.name] if found is None else found.arg_names

    def call(
        self, role: str, name: str, area: Area | None = None, statistic: int = 0, other: Mapping[str, str] | None = None
    ) -> str:
        """Writes the call of an op's function, or the variable that stands for it. Constants are keywords.

        Arguments:
            area: the area of the tile whose variables are passed; the body by default.
            other: other variables than those of the same name.
        """
        area, k = area or self.body, self.kernel
        values = {name: area(name) for name in (*k.reads, *k.column_reads, *k.top_reads, "in_bounds")} | {
            "column": self.column(area)
        }
        values |= {name: self.number(f"{name}_number") for name in k.parameters}
        for constant, value in k.constants:
            values |= {constant: f"tl.{value}" if constant.endswith("_DTYPE") else literal(value)}
            values.setdefault(f"picked_{constant}", "None")
        flags = dict(self.flags, AXIS=area.axis, EXP2_BIAS=self.exp2_bias, ZERO_MASKED_ROWS=self.zero_masked_rows)
        flags |= self.flags_of.get(role, {})
        if role != "rebase" and not self.exchange:
            values |= {"part_scale": "1.0", **{f"part_{s.name}": s.name for s in k.statistics[:1]}}
        values |= {name: literal(value) for name, value in flags.items()} | dict(other or {})
        function = self.functions[OpFunction(role, name, statistic)]
        if function is None:
            return values.get(name, name)
        passed = [(argument, values.get(argument, argument)) for argument in function.arg_names]
        return f"op_math.{name}({', '.join(f'{n}={v}' if n.isupper() else v for n, v in passed)})"

    def used(self, *roles: str, statistics: Iterable[Statistic] = ()) -> set[str]:
        """Returns the names that functions declare: those of these roles, and the terms of these statistics."""
        terms = {statistic.term for statistic in statistics}
        return {
            name
            for function in self.functions
            if function.role in roles or (function.role == "term" and function.name in terms)
            for name in self.arguments_of(function)
        }

    # --- strides and pointers

    def number(self, argument: str) -> str:
        """Writes an argument, or its value if it is a constant."""
        return argument if argument in self.arguments else str(self.constants[argument])

    def stride_group(self, pointer: str) -> str:
        """Returns the group of strides of a tensor with a number per element: "in", "out" or "third"."""
        return self.stride_groups.get(pointer, "out")

    @property
    def used_stride_groups(self) -> list[str]:
        """The groups of strides that the kernel uses."""
        k = self.kernel
        reads = [f"{name}_ptr" for name in (*k.reads, k.added) if name in self.all_used]
        pointers = [*reads, *(f"{name}_result" for name in k.writes)]
        heads = ["in"] * bool(self.peel or self.picks)
        return list(dict.fromkeys([*heads, *map(self.stride_group, pointers)]))

    def at(self, pointer: str, area: Area, aligned: bool = False) -> str:
        """Writes pointers to the elements of an area of a tile. If `aligned`, it begins at a vector boundary."""
        group = self.stride_group(pointer)
        inner, col = self.number(f"{group}_inner"), self.number(f"{group}_col")
        text = f"{pointer} + {group}_row"
        rows = [times("rows_edge" if area is self.edge else "rows", inner)] * (self.rows > 1)
        if area in (self.edge, self.top_area):
            return " + ".join([text, *rows, times(area("column"), col)])
        step = f"({col} + zero)" if self.hides_stride else col
        if self.begins or area is self.chunk:
            rows.append(times(area("begin"), "1" if col == "1" else f"{step}.to(tl.int64)"))
        text += f" + ({' + '.join(rows)})" if len(rows) > 1 else "".join(f" + {term}" for term in rows)
        if aligned:
            text = f"tl.multiple_of({text}, {'16' if self.rows == 1 else '[16, 16]'})"
        return f"{text} + {times(area('columns'), step)}"

    @property
    def loads_flat(self) -> bool:
        """Whether numbers per column are loaded with one axis, see `Writer.load_columns`."""
        return bool(self.rows > 1 and not self.peel)

    def needs_column(self, used: Collection[str]) -> bool:
        """Returns whether the column of each element is needed, to compute or to load what is used."""
        return "column" in used or (not self.loads_flat and not set(self.kernel.column_reads).isdisjoint(used))

    def row_at(self, pointer: str) -> str:
        """Writes pointers to the numbers of a tile's rows in a tensor with a number per row."""
        return f"{pointer} + {self.row_number}"

    def row_mask(self, also: str) -> str:
        """Writes the mask of an access to a number per row. The only row of a tile is always in bounds."""
        rows = ["row_in_bounds"] * (self.rows > 1)
        also = f"({also})" if rows and " " in also else also
        conditions = " & ".join([*rows, *filter(None, [also])])
        return f", mask={conditions}" if conditions else ""

    @property
    def row_number(self) -> str:
        """Writes the numbers of a tile's rows, in the order of tensors with a number per row."""
        return f"row_at + {times('row_index', self.number('row_inner'))}"

    @property
    def shape(self) -> list[Any]:
        """The shape of a tile."""
        return self.shape_of(self.body)

    def shape_of(self, area: Area) -> list[Any]:
        """Returns the shape of the body or the rest of a tile."""
        cols = self.rest_cols if area is self.rest else self.cols
        return [self.rows, cols] if self.axis else [cols, self.rows]

    def arange(self, area: Area, cols: int = 0) -> str:
        """Writes the columns of a tile of `cols` columns, by default those of the body or the rest."""
        end = self.cols + self.rest_cols
        return f"tl.arange({self.cols}, {end})" if area is self.rest else f"tl.arange(0, {cols or self.cols})"

    def column(self, area: Area) -> str:
        """The variable that holds the column of each element."""
        return area("column" if self.begins or area not in (self.body, self.rest) else "columns")

    def head(self, rows: str) -> str:
        """Writes the length of the head of each row: the number of elements before the first vector boundary."""
        row = f" + {times(rows, self.number('in_inner'))}" if self.rows > 1 else ""
        return f"tl.minimum(tl.cast(-(misalignment + in_row{row}) & {self.vector - 1}, tl.int32), cols)"


def literal(value: Any) -> str:
    """Writes a constant as source."""
    return f'float("{value}")' if isinstance(value, float) and value - value != 0 else repr(value)


def times(number: str, factor: str) -> str:
    """Writes a product, without a factor of one."""
    return number if factor == "1" else f"{number} * {factor}"
