"""The pieces of a kernel that several schedules write: bounds, loads, statistics and stores.

Variables of a kernel: `tile`, some neighboring rows; `block` and `row`, the position of its first row; `rows` and
`columns`, the indices of the elements of a tile; `begin`, the first column of the program's part of the row; `column`,
that of each element; `in_row` and `out_row`, where the first row begins in memory. Variables of unaligned heads and
tails end in `_edge`, those of a chunk of a row in `_chunk`. Inputs, statistics and results have the names of the op.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tridal.kernels.kernel_names import taken_names
from tridal.kernels.op_functions import OpFunction
from tridal.kernels.row_kernel import Statistic
from tridal.kernels.scale_mask import scale_mask
from tridal.kernels.small_tiles import merge_rest, rest_bounds
from tridal.kernels.text import Text
from tridal.kernels.text_plan import Area, TextPlan, times
from tridal.kernels.top_tensors import choose


class Writer(Text):
    """Writes the pieces of a kernel."""

    def __init__(self, plan: TextPlan) -> None:
        super().__init__(plan.literals)
        self.plan, self.kernel = plan, plan.kernel

    # --- where a tile is

    def block_of_program(self, group: str) -> None:
        """The block of a program in this group, its first tile and the end, and the number of groups of each block."""
        self("""
            # Each program computes tiles of one block.
            groups = tl.num_programs(0) // PROGRAMS_PER_ROW // outer
            block = tl.cast(GROUP // groups, tl.int64)
            first_tile = GROUP // groups * TILES_OF_BLOCK
            tiles = first_tile + TILES_OF_BLOCK""", GROUP=group)  # fmt: skip

    def position(self) -> None:
        """The block of a tile, its first row, and where this row begins in memory."""
        p = self.plan
        self("# A tensor has `outer` blocks of `inner` rows.")
        if p.per_block and p.persistent:  # `tile` is in the block of the program
            self("row = tl.cast(tile - first_tile, tl.int64) * ROWS")
        else:
            self("block = tl.cast(tile // TILES_OF_BLOCK, tl.int64)")
            self("row = tl.cast(tile % TILES_OF_BLOCK, tl.int64) * ROWS")
        for group in p.used_stride_groups:
            jump = f" + block // minor_blocks * {group}_jump" if self.kernel.split else ""
            outer, inner = p.number(f"{group}_outer"), p.number(f"{group}_inner")
            self(f"{group}_row = block * OUTER + row * INNER{jump}", OUTER=outer, INNER=inner)
        if p.locates_rows:
            self("row_at = block * ROW_OUTER + row * ROW_INNER")
        if p.has_rows:
            self("row_index = tl.arange(0, ROWS)")
            if p.rows > 1:
                self("row_in_bounds = row_index < tl.cast(tl.minimum(inner - row, ROWS), tl.int32)")

    def indices(self, area: Area, cols: int = 0) -> None:
        """The indices of the columns and the rows of a tile."""
        p = self.plan
        for each in p.fixed_areas if area is p.body else (area,):
            self("COLUMNS = INDEX", **each.names, INDEX=each.along(p.arange(each, cols) + p.int64))
        for each in p.areas if p.rows > 1 and area is p.body else ():
            self("INDICES = INDEX", INDICES=each("rows"), INDEX=each.across(f"tl.arange(0, {p.rows}){p.int64}"))

    def bounds(
        self, offset: str, used: Collection[str], area: Area | None = None, cols: int = 0, head: bool = True
    ) -> None:
        """The elements of a tile that are in bounds. The tile begins at column `offset` of a row, after its head.

        Arguments:
            used: the names that are used in the tile.
            head: whether the length of the head is still to be computed.

        Indices are computed for each tile. If they were computed before the loop over tiles, they would stay in
        registers.
        """
        p, area = self.plan, area or self.plan.body
        self.indices(area, cols)
        if p.peel:
            if head:
                self.head()
            self("BODY = BODY_LENGTH - OFFSET", **area.names, OFFSET=offset or 0)
            if p.rows > 1:
                self("BODY = tl.where(rows < inner - row, BODY, 0)", **area.names)
            self("IN_BOUNDS = COLUMNS < tl.multiple_of(BODY, VECTORS)", **area.names)
            self.begin(f"head + {offset}" if offset else "head", used, area)
        elif p.rest_cols and area is p.body:
            rest_bounds(self)
        else:
            self.begin(offset, used, area)
            limit = f"{area('columns')} < cols" + (f" - {area('begin')}" if offset else "")
            if p.rows == 1:
                rows = ""
            elif p.masks_terms:  # in 32 bits, because some devices compare no 64-bit tiles
                rows = "(rows < tl.cast(tl.minimum(inner - row, ROWS), tl.int32)) & "
            else:
                rows = "(rows < inner - row) & "
            self(f"IN_BOUNDS = {rows}{f'({limit})' if rows else limit}", **area.names)

    def head(self) -> None:
        """The length of the head of each row."""
        self("# The head of a row is not aligned: the elements before the first vector boundary.")
        self(f"head = {self.plan.head('rows')}")

    def begin(self, offset: str, used: Collection[str], area: Area) -> None:
        """The first column of a program's part of a row, and the column of each element."""
        if offset:
            self("BEGIN = OFFSET", **area.names, OFFSET=offset)
            if self.plan.needs_column(used):
                self("COLUMN = BEGIN + COLUMNS", **area.names)

    # --- loads

    def load(self, area: Area, names: Collection[str], policy: str = "", aligned: bool = True) -> None:
        """Loads elements. The first tensor's are scaled and masked, if the call has a scale or a mask."""
        p, first = self.plan, self.kernel.reads[0]
        policy = f', eviction_policy="{policy}"' if policy else ""
        for name in [name for name in self.kernel.reads if name in names]:
            is_aligned = aligned and bool(p.peel if name == first else p.same_misalignment)
            at = p.at(f"{name}_ptr", area, is_aligned)
            self(f"X = tl.load(AT, mask=IN_BOUNDS, other=PADDING{policy}).to(ACC)", X=area(name), AT=at, **area.names)
        if self.kernel.scale_mask and first in names:
            scale_mask(self, area, area(first))

    def load_columns(self, names: Collection[str], areas: Collection[Area] = ()) -> None:
        """Loads numbers per column.

        In a tile of several rows, they are loaded with one axis and then expanded. With two axes, they would have the
        layout of one row, and Triton would compute elements in this layout and again in that of the tile. With `peel`,
        rows may begin at different columns.
        """
        p, flat = self.plan, self.plan.loads_flat
        names = [name for name in self.kernel.column_reads if name in names]
        if names and flat:
            self(f"flat = {'begin + ' * p.begins}tl.arange(0, COLS)INT64")
        for area in areas or p.areas:
            at = "flat" if flat else p.column(area)
            mask = "" if p.rest_cols and area is p.body else f", mask={at} < cols, other=0"
            for name in names:
                of_block = f"block * {p.number('block_stride')} + " if name in self.kernel.per_block else ""
                self(
                    f"X = {area.along('NUMBER') if flat else 'NUMBER'}", X=area(name),
                    NUMBER=f"tl.load({name}_ptr + {of_block}{at}{mask}).to({p.acc})",
                )  # fmt: skip

    def load_rows(self, names: Collection[str]) -> None:
        """Loads numbers per row. Functions get a number for all rows as one for each row in bounds."""
        p, k = self.plan, self.kernel
        for name in [name for name in k.row_reads if name in names]:
            if name not in k.for_all_rows:
                self(f"{name} = {self._row_load(p.row_at(f'{name}_ptr'))}.to(ACC)")
            elif p.rows > 1:
                self(f"{name} = tl.where(row_in_bounds, tl.load({name}_ptr).to(ACC), 0.0)")
            else:
                self(f"{name} = tl.full([1], tl.load({name}_ptr).to(ACC), ACC)")

    def pick(self) -> None:
        """Loads the column index of each row, and the element and the number of the column that it picks."""
        p, k = self.plan, self.kernel
        if not p.has_index:
            return
        self(f"{k.row_index} = narrow_index({self._row_load(p.row_at(f'{k.row_index}_ptr'))})")
        if p.picks or p.picks_column:
            self("""
                is_column = (INDEX >= 0) & (INDEX < cols)
                picked_column = tl.cast(tl.where(is_column, INDEX, 0), tl.int64)""", INDEX=k.row_index)  # fmt: skip
        if p.picks:
            inner = p.number("in_inner")
            inner = f"tl.cast({inner}, tl.int64)" if p.int64_offsets and inner != "1" else inner
            self(f"picked_at = {k.reads[0]}_ptr + in_row + {times('row_index', inner)} + picked_column * IN_COL")
            self(f"picked = {self._row_load('picked_at', 'is_column')}.to(ACC)")
            self('picked = tl.where(is_column, picked, float("nan"))')
        if p.picks_column:
            name = k.column_reads[0]
            self(f"picked_{name} = {self._row_load(f'{name}_ptr + picked_column', 'is_column')}.to(ACC)")

    def _row_load(self, at: str, also: str = "") -> str:
        """Writes the load of a number per row."""
        mask = self.plan.row_mask(also)
        return f"tl.load({at}{mask}{', other=0' if mask else ''})"

    # --- statistics

    def reduced(self, term: str, how: str, area: Area) -> str:
        """Returns the reduction of a tile. An accurate sum adds four neighbors first, so its chain of roundings is
        shorter.
        """
        p = self.plan
        if how == "max":
            return f"tl.max({term}, {area.axis})"
        cols = p.rest_cols if area is p.rest else p.cols
        if how == "accurate_sum" and p.exp2_bias and area.axis == 1 and cols >= 2048 and not p.loops:
            term = f"tl.sum(tl.reshape({term}, [{p.rows}, {cols // 4}, 4]), 2)"
        return f"tl.sum({term}, {area.axis})"

    def write_term(self, statistic: Statistic, area: Area, other: Mapping[str, str] | None = None) -> str:
        """Writes the term of a statistic and returns its variable. A term out of bounds is neutral."""
        name = self.write_call("term", statistic.term, area, self.kernel.statistics.index(statistic), other)
        if statistic.reduce == "top":  # `top_columns` masks it: a term of padding may be the largest one
            return name
        neutral = '-float("inf")' if statistic.reduce == "max" else "0.0"
        return name if self.plan.neutral_padding else f"tl.where({area('in_bounds')}, {name}, {neutral})"

    def statistics(self, statistics: Iterable[Statistic]) -> None:
        """Computes statistics of the body and of the edges of a tile, and merges them; or of the chosen elements."""
        statistics, areas = [*statistics], self.plan.areas
        for number, s in enumerate(statistics):
            if s.reduce == "top":
                choose(self, s, statistics[number + 1 :])
                areas = (self.plan.top_area,)
                continue
            for area in areas:
                value = self.reduced(self.write_term(s, area), s.reduce, area)
                self("STATISTIC = VALUE", STATISTIC=s.name if area is self.plan.top_area else area(s.name), VALUE=value)
            if self.plan.peel:
                self(merged(s.reduce, s.name, f"{s.name}_edge"))
            if self.plan.rest_cols:
                merge_rest(self, s)

    # --- results

    def write_call(
        self, role: str, name: str, area: Area | None = None, number: int = 0, other: Mapping[str, str] | None = None
    ) -> str:
        """Writes the call of an op's function and returns the variable of its result, which has the function's name.

        If another variable has this name, that of the result ends in `_value`. If a variable stands for the function,
        nothing is written.
        """
        call = self.plan.call(role, name, area, number, other)
        if self.plan.functions[OpFunction(role, name, number)] is None:
            return call
        variable = name
        while variable in taken_names(self.kernel):
            variable += "_value"
        variable = area(variable) if area else variable
        self("RESULT = CALL", RESULT=variable, CALL=call)
        return variable

    def row_value(self) -> None:
        """The number per row that outputs use."""
        if name := self.kernel.row_value:
            self("VALUE = CALL", VALUE=name, CALL=self.plan.call("row_value", name))

    def store_rows(self) -> None:
        """Stores numbers per row. The first program of a row stores them."""
        mask = self.plan.row_mask("rank == 0" if self.plan.rank else "")
        for name in self.kernel.row_writes:
            value = name if name == self.kernel.row_value else self.write_call("row_writes", name)
            self(f"tl.store({self.plan.row_at(f'{name}_per_row')}, VALUE{mask})", VALUE=value)

    def store(self, area: Area, stream: bool = False, aligned: bool = True) -> None:
        """Computes and stores elements. The addend is added to the first result.

        Pointers come before the first result, if there are several: the gradient of GEGLU needs 56 registers instead of
        72 on sm_90.
        """
        p, k = self.plan, self.kernel
        aligned = bool(aligned and p.same_misalignment)
        for name in k.writes:
            self("POINTERS = AT", POINTERS=area(f"{name}_at"), AT=p.at(f"{name}_result", area, aligned))
        for name in k.writes:
            is_first, value = name == k.writes[0], self.write_call("writes", name, area)
            if is_first and k.added:
                names = area.names | {"ADDEND": area(k.added), "AT": p.at(f"{k.added}_ptr", area, aligned)}
                self("ADDEND = tl.load(AT, mask=IN_BOUNDS, other=0).to(ACC)", **names)
                value += f" + {area(k.added)}"
            evict = ', eviction_policy="evict_first"' if stream and is_first and area is not p.edge else ""
            self(f"tl.store(AT, VALUE, mask=IN_BOUNDS{evict})", AT=area(f"{name}_at"), VALUE=value, **area.names)

    def write_sum_term(self, name: str, area: Area) -> str:
        """Writes the term of a sum over rows and returns its variable.

        Columns out of bounds are never stored, so only rows out of bounds need a mask. A number per column may be
        infinite, so it is not neutral.
        """
        p, k = self.plan, self.kernel
        term = self.write_call("column_writes", name, area)
        uses_columns = not {*k.column_reads}.isdisjoint(p.arguments_of(OpFunction("column_writes", name)))
        masks = p.rows > 1 and (uses_columns or not p.neutral_padding)
        return f"tl.where({area('in_bounds')}, {term}, 0.0)" if masks else term


def merged(how: str, statistic: str, other: str) -> str:
    """Writes the statement that combines a statistic with the result of another reduction."""
    return f"{statistic} = tl.maximum({statistic}, {other})" if how == "max" else f"{statistic} += {other}"
