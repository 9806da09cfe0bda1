"""The hashes by which the kernels of two commits are compared: normalised code, and entries in the output."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from tridal.devices.setting_layers import environment_layer
from tridal.runtime import compiler

SCRIPTS = Path(__file__).parents[2] / "scripts"
DUMP: dict[str, Any] = runpy.run_path(str(SCRIPTS / "dump_kernels.py"))

PTX = """
.version 8.7
.visible .entry scale_rows(
	.param .u64 .ptr .global .align 1 scale_rows_param_0,
	.param .u32 scale_rows_param_1
)
{
	.reg .b32 	%r<5>;
$L__func_begin0:
	.loc	1 2 3
// %bb.0:
	ld.param.b64 	%rd1, [scale_rows_param_0];
	ld.param.b32 	%r1, [scale_rows_param_1];
	add.s32 	%r2, %r1, 1;
	@%p1 bra 	$L__BB0_2;
	st.global.b32 	[%rd1], %r2;
$L__BB0_2:
	ret;
}
"""
AMDGCN = """
	.globl	scale_rows                      ; -- Begin function scale_rows
scale_rows:                             ; @scale_rows
; %bb.0:
	s_load_dwordx2 s[2:3], s[0:1], 0x0
	s_load_dword s4, s[0:1], 0x8
	s_cbranch_scc1 .LBB0_2                  ; %.lr.ph
	v_add_u32_e32 v1, s4, v0
.LBB0_2:
	s_endpgm
	.set scale_rows.num_vgpr, 2
"""
LINALG = """module {
  func.func @scale_rows(%arg0: memref<?xi8>, %arg1: memref<?xf32> {tt.divisibility = 16 : i32}, %arg2: i32, \
%arg3: i32) attributes {WorkspaceArgIdx = 0 : i64, mix_mode = "aiv"} {
    %c1_i32 = arith.constant 1 : i32
    %0 = arith.addi %arg3, %c1_i32 : i32
    memref.store %0, %arg1[%0] : memref<?xf32>
    return
  }
}
"""
ANOTHER_PARAMETER = (
    PTX.replace("param_1", "param_2")
    .replace("param_0", "param_1")
    .replace("rows(", "rows(\n	.param .u64 rows_param_0,")
)
MOVED_LOAD = PTX.replace("	ld.param.b64 	%rd1, [scale_rows_param_0];\n", "").replace(
    "	st.", "	ld.param.b64 	%rd1, [scale_rows_param_0];\n	st."
)
OTHER_ORDER = LINALG.replace("%arg2: i32, %arg3: i32", "%arg3: i32").replace(
    "%arg0: memref<?xi8>, %arg1: memref<?xf32> {tt.divisibility = 16 : i32}",
    "%arg2: memref<?xf32> {tt.divisibility = 16 : i32}",
)


@pytest.mark.parametrize(
    ("name", "code", "same"),
    [
        ("ptx", PTX, PTX.replace("scale_rows", "whole_row").replace("L__BB0_2", "L__BB0_7").replace("%r2", "%r9")),
        ("ptx", PTX, ANOTHER_PARAMETER),
        ("ptx", PTX, PTX.replace("1 2 3", "1 4 5").replace("8.7", "8.8").replace("%r<5>", "%r<9>")),
        ("ptx", PTX, MOVED_LOAD),
        (
            "amdgcn",
            AMDGCN,
            AMDGCN.replace("scale_rows", "whole_row").replace("LBB0_2", "LBB0_5").replace("0x8", "0x10"),
        ),
        ("linalg", LINALG, LINALG.replace("scale_rows", "whole_row").replace("%c1_i32", "%cst").replace("%0", "%7")),
        ("linalg", LINALG, OTHER_ORDER.replace("%arg1[", "%arg2[")),
    ],
)
def test_names_labels_parameters_and_lines_do_not_change_normalised_code(name: str, code: str, same: str) -> None:
    normalised = DUMP[f"normalised_{name}"]
    assert same != code
    assert normalised(same) == normalised(code)


@pytest.mark.parametrize(
    ("name", "code", "other"),
    [
        ("ptx", PTX, PTX.replace("add.s32", "sub.s32")),
        ("ptx", PTX, PTX.replace("%r1, 1;", "%r1, 2;")),
        ("ptx", PTX, PTX.replace("%r2, %r1, 1", "%r2, %r2, 1")),
        ("ptx", PTX, PTX.replace("ld.param.b32", "ld.param.b64")),
        ("amdgcn", AMDGCN, AMDGCN.replace("v_add_u32", "v_sub_u32")),
        ("amdgcn", AMDGCN, AMDGCN.replace("v1, s4", "v1, s5")),
        ("amdgcn", AMDGCN, AMDGCN.replace("s_load_dword s4", "s_load_dwordx2 s4")),
        ("linalg", LINALG, LINALG.replace("addi", "subi")),
        ("linalg", LINALG, LINALG.replace("constant 1", "constant 2")),
        ("linalg", LINALG, LINALG.replace("divisibility = 16", "divisibility = 8")),
        ("linalg", LINALG, LINALG.replace("addi %arg3", "addi %c1_i32")),
    ],
)
def test_instructions_registers_and_types_change_normalised_code(name: str, code: str, other: str) -> None:
    normalised = DUMP[f"normalised_{name}"]
    assert other != code
    assert normalised(other) != normalised(code)


def test_entries_have_equal_hashes_for_equal_kernels_and_an_error_for_a_case_that_fails(
    fresh_registry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler.import_triton().runtime.driver, "_active", None)

    def entries(arch: str, **arguments: Any) -> list[dict[str, Any]]:
        case = {"arch": arch, "call": "softmax", **arguments}
        found: list[dict[str, Any]] = DUMP["dump"](json.dumps(case), False)
        return found

    (rows,), (more_rows,), (other,) = (
        entries("sm_90", input=f"float32[{shape}]") for shape in ("64,96", "65,96", "64,97")
    )
    assert set(rows) == {"case", "kernel", "plan", "code", "sass", "operations"}
    assert (rows["code"], rows["sass"]) == (more_rows["code"], more_rows["sass"])
    assert rows["plan"] != more_rows["plan"]  # other programs
    assert rows["sass"] != other["sass"]
    (amd,) = entries("gfx942", input="float32[64,96]")
    assert set(amd) == {"case", "kernel", "plan", "code", "operations"}
    (failed,) = entries("sm_90", input="float32[64,96]", dim=5)
    assert failed["error"].startswith("DimensionError: ")
    (empty,) = entries("sm_90", input="float32[0,96]")
    assert empty["error"] == "no kernel was launched"


def test_a_run_that_was_interrupted_adds_the_missing_cases_of_the_same_commit(tmp_path: Path) -> None:
    made, file = {"commit": "1a2b3c", "triton": "3.7.1"}, tmp_path / "kernels.jsonl"
    assert DUMP["recorded_cases"](file, made) == set()
    file.write_text(json.dumps(made) + '\n{"case": "a", "kernel": 0}\n{"case": "a", "kernel": 1}\n')
    assert DUMP["recorded_cases"](file, made) == {"a", None}
    assert DUMP["recorded_cases"](file, made | {"triton": "3.2.0"}) == {"a"}
    with pytest.raises(SystemExit, match="has kernels of the commit 1a2b3c, not of 4d5e6f: use another file"):
        DUMP["recorded_cases"](file, made | {"commit": "4d5e6f"})


def test_no_case_gets_the_plan_that_another_one_has_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of a stored plan would not be recorded."""
    for name in ("TRITON_DISABLE_LINE_INFO", "TRITON_CACHE_DIR", "TRIDAL_PLAN_STORE"):
        monkeypatch.setenv(name, "true")
    DUMP["prepare"]("a folder")
    assert environment_layer()["plan_store",][0] is False
