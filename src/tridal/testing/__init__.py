"""The conformance suite: every op on every backend, bundled or from a third party, against float64::

    from tridal import registry, testing

    backend = registry.available("interpreter")
    for case in testing.cases(backend):
        result = testing.run_case(case, backend)
        assert result.passed, result.message

`tridal check --all` and `pytest --backend NAME` in this repository run the same cases.
"""

from tridal.testing.cases import Case, OpCases
from tridal.testing.checking import Result, check, run_case
from tridal.testing.declarations import check_declarations
from tridal.testing.implementation import Implementation, implementation
from tridal.testing.inputs import make_values
from tridal.testing.interpreted import interpreted
from tridal.testing.plan_overrides import PLAN_OVERRIDES, overrides
from tridal.testing.quick_cases import quick_cases
from tridal.testing.runtime_check import check_runtime
from tridal.testing.suite import cases
from tridal.testing.tolerance import Arithmetic

__all__ = [
    "PLAN_OVERRIDES",
    "Arithmetic",
    "Case",
    "Implementation",
    "OpCases",
    "Result",
    "cases",
    "check",
    "check_declarations",
    "check_runtime",
    "implementation",
    "interpreted",
    "make_values",
    "overrides",
    "quick_cases",
    "run_case",
]
__dir__ = __all__.copy
