"""The statistics of a row whose parts other launches have reduced, for example one on each rank."""

from __future__ import annotations

from tridal.kernels.pieces import Writer, merged


def merge_parts(w: Writer) -> None:
    """Merges the statistics of all parts of a row, which the kernel has loaded."""
    first = w.kernel.statistics[0].name
    for number, s in enumerate(w.kernel.statistics):
        for part in range(w.kernel.parts):
            names = {name: f"{name}_of_{part}" for name in (first, s.name)}
            value = names[s.name]
            if s.rebase:
                other = {s.name: value, f"part_{first}": names[first]}
                value = w.plan.call("rebase", s.rebase, statistic=number, other=other)
            w(merged(s.reduce, s.name, value) if part else f"{s.name} = {value}")
