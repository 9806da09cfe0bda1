"""The rules of the layers: where the code may name devices and ops, what ops and kernels import, and no cycles.

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
TESTS = Path(__file__).parents[1]
BACKENDS = TESTS.parent / "backends"
DEVICE = re.compile(r"(?<![a-z])(cuda|npu|ascend|hip|rocm|xpu|mps|sm_)(?![a-z])|ascend[0-9]", re.IGNORECASE)
"""A device name, also as a part of a name in snake case. "input" and "chip" contain no device name."""
OP = re.compile(rf"(?<![a-z])({'|'.join(op.name for op in library.OPS)})(?![a-z])", re.IGNORECASE)
"""The name of an op, also as a part of a name in snake case."""
WITH_OPS = ("library", "models", "__init__.py", "nn.py")
"""The ops, `kernelize`, and the modules that publish the ops."""
OP_FILES = sorted(
    [*(CORE / "library").rglob("*.py"), TESTS / "helpers" / "third_party_op.py"]
    + [path for name in ("row_op_package", "tensor_op_package") for path in (TESTS / name).rglob("*.py")]
)
"""The bundled ops, and those of the third parties of the tests."""
DOCUMENTED = {
    name
    for row in re.findall(
        r"^\| (`tridal\.[^|]*) \|", (TESTS.parent / "docs" / "add-an-op.md").read_text(), re.MULTILINE
    )
    for name in re.findall(r"`([\w.]+)`", row)
}
"""The names of tridal that an op may use: those in the table of the page."""
TRITON_FILES = ("exchange", "lanes", "numerics", "row_index", "tile_counter")
KERNELS = [*(CORE / "kernels" / f"{name}.py" for name in TRITON_FILES), *(CORE / "library").glob("*/kernels/*.py")]


def strings(source: str) -> Iterator[str]:
    """Yields the text of every string in the code, except docstrings."""
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
            yield node.value


def names(source: str) -> Iterator[str]:
    """Yields the text of every name in the code, including module names in imports."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Constant):
            for _, value in ast.iter_fields(node):
                yield from (text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str))


def device_names(source: str) -> list[str]:
    """Returns the strings that contain a device name."""
    return [*filter(DEVICE.search, strings(source))]


def op_names(source: str) -> list[str]:
    """Returns the strings and names that contain the name of an op."""
    return [text for part in (strings(source), names(source)) for text in part if OP.search(text)]


def test_core_has_no_device_names() -> None:
    assert {path: found for path in CORE.rglob("*.py") if (found := device_names(path.read_text()))} == {}


def test_core_and_backends_have_no_op_names() -> None:
    files = [(path, path.relative_to(folder)) for folder in (CORE, BACKENDS) for path in folder.rglob("*.py")]
    without = [path for path, name in files if name.parts[0] not in WITH_OPS]
    assert {path: found for path in without if (found := op_names(path.read_text()))} == {}


def test_kernels_import_only_triton_and_kernels() -> None:
    allowed = re.compile(r"(triton|tridal\.kernels|tridal\.library\.\w+\.kernels|__future__)(\.|$)")
    for path in KERNELS:
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        modules += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        assert [name for name in modules if not allowed.match(name)] == [], path


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_kernels_return_in_both_branches(path: Path) -> None:
    """Triton before 3.7 also compiles the statements after `if CONSTANT: return`, also if they do not suit it."""
    bodies = [body for node in ast.walk(ast.parse(path.read_text())) for body in vars(node).values()]
    followed = [statement for body in bodies if isinstance(body, list) for statement in body[:-1]]
    alone = [statement for statement in followed if isinstance(statement, ast.If) and not statement.orelse]
    returns = (ast.unparse(one) for one in alone if any(isinstance(node, ast.Return) for node in ast.walk(one)))
    assert [*returns] == []


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
    assert tridal_names("from tridal import ops\nops.table.first()", "tridal.library") - DOCUMENTED


def test_imports_have_no_cycle() -> None:
    """Imports inside functions count, too."""
    grimp = pytest.importorskip("grimp")
    backends = (path.name for path in BACKENDS.iterdir() if (path / "__init__.py").exists())
    graph = grimp.build_graph("tridal", *backends, exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert "tridal.testing" in imports["tridal.cli.check"], "an import inside a function"
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(reversed(error.args[1]))}")
