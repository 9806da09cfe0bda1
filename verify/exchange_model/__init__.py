"""Checks the exchange between cooperative programs on a CPU: `python -m exchange_model`.

`source` turns the source of the kernel `whole_row` and of all functions that it calls into generators. Each access of
the workspace and each barrier is a step. `language` is a small `triton.language` that yields the steps, `warp` runs one
warp of a program, and `machine` performs the steps and checks the properties of the exchange:

- no word is lost: no program overwrites a word that is not cleared;
- no word is stale or torn: each program computes the exact statistics of each of its rows;
- each row is computed, and once;
- no deadlock: from each state, the launch can end;
- the workspace is zero at the end, so the next launch starts as this one did.

`explore` visits all interleavings of a few programs, or runs many programs in random order. `launches` has the launches
that are checked, and `faults` has faults of the kernels that must be found. `machine` says what the model assumes of a
device, and `language` what it assumes of Triton. It needs NumPy, but neither torch nor Triton.
"""
