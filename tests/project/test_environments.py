"""Programs without docstrings and assertions (`python -OO`), and in a locale whose encoding is ASCII."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

PROGRAM = """
import sys
import torch
import tridal
from tridal.cli import main

x = torch.randn(3, 37, requires_grad=True)
with tridal.use(device="interpreter"), tridal.record_calls() as calls:
    tridal.layer_norm(x, (37,)).square().sum().backward()
assert_close = torch.testing.assert_close
wide = x.detach().double().requires_grad_()
torch.nn.functional.layer_norm(wide, (37,)).square().sum().backward()
assert_close(x.grad.double(), wide.grad, atol=1e-4, rtol=1e-4)
if [call.backend for call in calls] != ["interpreter"] * 2:
    sys.exit(f"the calls were {calls}")
for command in (["doctor"], ["config"], ["plan", "64", "781", "--arch", "sm_90"], ["check", "--help"]):
    sys.argv[1:] = command
    try:
        code = main()
    except SystemExit as end:
        code = end.code
    if code:
        sys.exit(f"{command} ended with {code}")
"""
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}


@pytest.mark.nightly("the other tests, in a locale with UTF-8 and with assertions")
def test_optimized_python_and_an_ascii_locale() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRIDAL_")} | ASCII
    done = subprocess.run(
        [sys.executable, "-OO", "-c", PROGRAM], env=environment, capture_output=True, text=True, errors="replace"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.isascii()
