"""Declares an op, and follows one call of it to the launch: layout, problem, plan, kernel, results. Read it downwards.

    python examples/from_declaration_to_launch.py

Needs no GPU: the plan for an H100 only compiles the kernel, and Triton's interpreter runs the kernel on the CPU.
"""

from __future__ import annotations

import inspect

import torch
import triton
import triton.language as tl

import tridal
from tridal import ops

# 1. The math. Triton functions compute a term of each element, a number per row, and the results. They know neither
#    pointers nor tiles nor programs. A package has them in a module of their own, which the kernels name.


@triton.jit
def square(x):
    """The term of the statistic: the square of each element."""
    return x * x


@triton.jit
def rms(squares, count, eps):
    """The number per row: sqrt(mean(x * x) + eps)."""
    return tl.sqrt(squares / count + eps)


@triton.jit
def scaled(x, weight, rms, AXIS: tl.constexpr):
    """The result: x / rms * weight."""
    return x / tl.expand_dims(rms, AXIS) * weight


# 2. The declaration. It says what the op reads and writes, and which function computes which part. A role tells what a
#    tensor contains: a number per element, per row or per column. The reference is the same math in torch's ops.


def reference(
    x: torch.Tensor, weight: torch.Tensor, reduce: ops.RowReduce, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x / rms * weight, and rms."""
    rms = (reduce.mean(x * x) + eps).sqrt()
    return x / rms * weight, rms


UNIT_RMS = ops.Op(
    name="unit_rms",
    arguments=(ops.per_element("input"), ops.per_column("weight"), ops.number("eps", 1e-6, range=(1e-12, 1e-2))),
    results=(ops.Result("output", "element", gradient="dy"), ops.Result("rms", "row", gradient="drms")),
    kernels=(
        ops.RowKernel(
            name="unit_rms",
            module=__name__,
            reads=("x",),
            column_reads=("weight",),
            parameters=("eps",),
            statistics=(ops.Statistic("squares", "sum", term="square"),),
            row_value="rms",
            writes=("scaled",),
            row_writes=("rms",),
            neutral_padding=True,  # a padding of zeros adds nothing to the sum of squares
            live_tiles=2,  # x and the result
        ),
    ),
    reference=reference,
    saves=("input", "weight"),  # autograd computes the gradient through the reference
)

# 3. The function. Its signature follows from the declaration.

unit_rms = tridal.row_function(UNIT_RMS)


def main() -> None:
    """Follows a call for a matrix of 1000 x 781 elements. No name of a device occurs above this line."""
    rows, cols = 1000, 781
    print(f"3. The function: unit_rms{inspect.signature(unit_rms)}")

    # 4. The layout and the problem. A backend sees the problem, which has neither the name of the op nor the address of
    #    a tensor. Its number of rows is rounded up, so that one plan serves many numbers of rows.
    plan = tridal.plan(rows, cols, op="unit_rms", arch="h100")
    layout, problem = plan.call.layout, plan.call.problem
    print(f"\n4. The layout: {layout.outer} block of {layout.inner} rows of {layout.cols} elements, {layout.layout!r}")
    print(f"   The problem: {problem}")

    # 5. The plans: numbers, and the reason for them. Each backend makes its own from the same problem.
    with tridal.use(device="interpreter"):
        plans = {"NVIDIA H100": plan, "CPU, by Triton's interpreter": tridal.plan(rows, cols, op="unit_rms")}
    for number, (device, found) in enumerate(plans.items()):
        tile = f"{found.config.rows} x {found.config.cols}"
        print(f"\n5{'ab'[number]}. The plan for {device}: {found.config.schedule}, tiles of {tile} elements,")
        print(f"    programs: {found.launched_programs}; {found.reason}")

    # 6. The kernel. The schedule writes its text for the plan, and calls the functions of step 1 as op_math.NAME.
    kernels = {
        device: found.source.partition("\n\n\n")[2].partition("\n\n\n# Functions")[0] for device, found in plans.items()
    }
    for number, (device, kernel) in enumerate(kernels.items()):
        print(f"\n6{'ab'[number]}. The kernel for {device}:\n\n{kernel}")

    # 7. The launch. The interpreter runs the second kernel. The declaration has no kernel of the gradient, so torch
    #    computes a call that needs one, by the reference. docs/add-an-op.md adds such a kernel.
    x, weight = torch.randn(rows, cols), torch.randn(cols)
    with tridal.use(device="interpreter"), tridal.record_calls() as calls:
        y, root = unit_rms(x, weight)
        with_gradient, _ = unit_rms(x, weight.requires_grad_())
    print(f"\n7. The launch: {calls[0]}")
    print(f"   A call with a gradient: {calls[1]}")

    expected = torch.nn.functional.rms_norm(x, (cols,), weight, eps=1e-6)
    expected_root = (x.square().mean(-1) + 1e-6).sqrt()
    for name, ours, theirs in (
        ("output", y, expected),
        ("rms", root, expected_root),
        ("output of the reference", with_gradient, expected),
    ):
        torch.testing.assert_close(ours, theirs)
        print(f"   {name}: differs from torch by at most {(ours - theirs).abs().max().item():.1e}")


if __name__ == "__main__":
    main()
