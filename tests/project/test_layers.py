"""Tests the rules of the layers: where the code may name devices and ops, and that imports have no cycle.

`lint-imports` checks the order of the folders, with the contracts in pyproject.toml.
"""

from __future__ import annotations

import ast
import graphlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tridal
from tridal import library, ops, pytorch

CORE = Path(tridal.__file__).parent
BACKENDS = Path(__file__).parents[2] / "backends"
DEVICE = re.compile(r"(?<![a-z])(cuda|npu|ascend|hip|rocm|xpu|mps|sm_)(?![a-z])|ascend[0-9]", re.IGNORECASE)
"""A device name, also as a part of a name in snake case. "input" and "chip" contain no device name."""
OPS = library.OPS
OP = re.compile(rf"(?<![a-z])({'|'.join(op.name for op in OPS)})(?![a-z])", re.IGNORECASE)
"""The name of an op, also as a part of a name in snake case."""

WITHOUT_OPS = sorted(
    path
    for folder in (CORE, BACKENDS)
    for path in folder.rglob("*.py")
    if path.relative_to(folder).parts[0] not in ("library", "models", "__init__.py", "nn.py")
)
"""All files except the ops, `kernelize`, and the modules that publish the ops."""
TESTS = Path(__file__).parents[1]
OP_FILES = sorted(
    [*(CORE / "library").rglob("*.py"), TESTS / "helpers" / "third_party_op.py"]
    + [path for name in ("row_op_package", "tensor_op_package") for path in (TESTS / name).rglob("*.py")]
)
"""The bundled ops, and those of the third parties of the tests."""
PAGE = TESTS.parent / "docs" / "add-an-op.md"
DOCUMENTED = {
    name
    for row in re.findall(
        r"^\| (`tridal\.[^|]*) \|", (TESTS.parent / "docs" / "add-an-op.md").read_text(), re.MULTILINE
    )
    for name in re.findall(r"`([\w.]+)`", row)
}
"""The names of tridal that an op may use: those in the table of the page."""
TRITON_FILES = ("exchange", "lanes", "numerics", "row_index", "tile_counter")
KERNELS = sorted(
    [*(CORE / "kernels" / f"{name}.py" for name in TRITON_FILES), *(CORE / "library").glob("*/kernels/*.py")]
)


def strings(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of every string in the code, except docstrings."""
    tree = ast.parse(source)
    docstrings = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def names(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of every name in the code, including module names in imports."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Constant):
            for _, value in ast.iter_fields(node):
                for text in value if isinstance(value, list) else [value]:
                    if isinstance(text, str):
                        yield getattr(node, "lineno", 0), text


def device_names(source: str) -> list[tuple[int, str]]:
    """Returns the strings that contain a device name."""
    return [(line, text) for line, text in strings(source) if DEVICE.search(text)]


def op_names(source: str) -> list[tuple[int, str]]:
    """Returns the strings and names that contain the name of an op."""
    return [(line, text) for line, text in (*strings(source), *names(source)) if OP.search(text)]


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE)))
def test_core_has_no_device_names(path: Path) -> None:
    assert device_names(path.read_text()) == []


@pytest.mark.parametrize("path", WITHOUT_OPS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_core_and_backends_have_no_op_names(path: Path) -> None:
    assert op_names(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        'x = "cuda"',
        'x = f"cuda:{i}"',
        'import_module("torch_npu")',
        'if t == "NPU": pass',
        'x = {"arch": "ascend910b"}',
    ],
)
def test_device_name_in_a_string_is_found(source: str) -> None:
    assert device_names(source)


@pytest.mark.parametrize(
    "source",
    [
        '"""For cuda."""',
        'def f():\n    """As cuda does."""',
        'x = 1\n"""An npu."""',
        'x = "input"',
        'x = "a chip"',
        "cuda = 1",
    ],
)
def test_device_name_in_a_docstring_or_a_longer_word_is_allowed(source: str) -> None:
    assert not device_names(source)


@pytest.mark.parametrize(
    "source",
    [
        'if op == "softmax": pass',
        'x = f"{a}_log_softmax"',
        "from tridal.library.softmax.kernels.softmax import exp_term",
        "import tridal.library.softmax.kernels.softmax",
        "def plan_softmax(): pass",
        "x = table.SOFTMAX",
        "f(log_softmax=True)",
        "def f():\n    global softmax",
    ],
)
def test_op_name_in_a_string_or_a_name_is_found(source: str) -> None:
    assert op_names(source)


@pytest.mark.parametrize("source", ['"""For softmax."""', "x = 1  # softmax", "softmaxes = 1", 'x = "max"'])
def test_op_name_in_a_docstring_comment_or_longer_word_is_allowed(source: str) -> None:
    assert not op_names(source)


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_kernels_have_no_none_in_a_tuple(path: Path) -> None:
    """Triton 3.3 cannot compile it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    indices = [node.slice for node in nodes if isinstance(node, ast.Subscript)]
    tuples = [node for node in nodes if isinstance(node, ast.Tuple) and node not in indices]
    found = [node.lineno for node in tuples if any(ast.unparse(item) == "None" for item in node.elts)]
    assert not found, f"{path.name}, lines {found}"


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_kernels_import_only_triton_and_kernels(path: Path) -> None:
    imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = [
        node.module or "" if isinstance(node, ast.ImportFrom) else alias.name
        for node in imports
        for alias in node.names
    ]
    allowed = re.compile(r"(triton|tridal\.kernels|tridal\.library\.\w+\.kernels)(\.|$)")
    assert [name for name in modules if not allowed.match(name)] == []


def long_functions(source: str) -> list[str]:
    """Returns the names of the functions with more than 12 parameters."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    return [f.name for f in functions if sum(isinstance(node, ast.arg) for node in ast.walk(f.args)) > 12]


def test_functions_have_at_most_12_parameters() -> None:
    """Functions of Triton get their tensors and numbers one by one. The maths of an op gets them by name."""
    found = {
        (str(path.relative_to(CORE)), name)
        for path in CORE.rglob("*.py")
        if "kernels" not in path.parts
        for name in long_functions(path.read_text())
    }
    assert found == {
        ("library/losses/functions.py", "linear_cross_entropy"),  # public, with torch's arguments
        ("library/losses/modules.py", "__init__"),
    }
    assert not [name for path in BACKENDS.rglob("*.py") for name in long_functions(path.read_text())]


def tridal_names(source: str, package: str) -> set[str]:
    """Returns the names of tridal that the code imports, or reads from a module that it imports, with their modules.

    Names of the file's own package are left out. A module of which the code only reads attributes is no name.
    """
    tree = ast.parse(source)
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            imported |= {alias.asname or alias.name: alias.name for alias in node.names}
    modules = {name for name, path in imported.items() if any(known.startswith(f"{path}.") for known in DOCUMENTED)}
    read = {
        f"{imported[node.value.id]}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
    }
    found = read | {path for name, path in imported.items() if name not in modules}
    return {name for name in found if name.split(".")[0] == "tridal" and not name.startswith(f"{package}.")}


@pytest.mark.parametrize("path", OP_FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_ops_import_only_documented_names(path: Path) -> None:
    package = "tridal.library" if path.is_relative_to(CORE) else path.parent.name
    assert tridal_names(path.read_text(), package) - DOCUMENTED == set()


def test_documented_names_exist_and_are_all_names_of_both_modules() -> None:
    for name in DOCUMENTED:
        pkgutil.resolve_name(name)
    for module in (ops, pytorch):
        assert {f"{module.__name__}.{name}" for name in module.__all__} <= DOCUMENTED | {"tridal.ops.RowOp"}


@pytest.mark.parametrize(
    "source",
    [
        "from tridal.ops.op import Op",
        "from tridal import ops\nops.table.first()",
        "import tridal.pytorch.path.call",
        "def f():\n    from tridal.pytorch.torch import private",
    ],
)
def test_undocumented_name_is_found(source: str) -> None:
    assert tridal_names(source, "tridal.library") - DOCUMENTED


def test_imports_have_no_cycle() -> None:
    """Imports inside functions count, too."""
    grimp = pytest.importorskip("grimp")
    backends = (path.name for path in BACKENDS.iterdir() if (path / "__init__.py").exists())
    graph = grimp.build_graph("tridal", *backends, exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert "tridal.library.softmax.functions" in imports["tridal"]
    assert "tridal.testing" in imports["tridal.cli.check"], "an import inside a function"
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(reversed(error.args[1]))}")
