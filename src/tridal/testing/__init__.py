"""The conformance suite that every backend is held to, ours or a stranger's: cases as data, checked against float64.

    from tridal import testing
    from tridal.devices import registry

    backend = registry.available("interpreter")
    for case in testing.cases(backend):
        result = testing.run_case(case, backend)
        assert result.passed, result.message

`tridal check --all` and this project's `pytest --backend NAME` run the same cases.
"""

from tridal.testing.cases import Case, cases
from tridal.testing.checking import Result, Subject, check, run_case
from tridal.testing.example import Worked, worked_example
from tridal.testing.forcing import PLANS, plans, subject

__all__ = [
    "PLANS",
    "Case",
    "Result",
    "Subject",
    "Worked",
    "cases",
    "check",
    "plans",
    "run_case",
    "subject",
    "worked_example",
]
