"""What the solution can influence in a test file."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from codeverdict.inside.rewrite import last_name, nodes_of, wanted_names


class Taint:
    """What the solution can influence in a test file: names that come from it, and values derived from them."""

    def __init__(self, tests: str, tree: ast.Module, nodes: list[ast.AST]) -> None:
        self.names = {"solution"}
        self.conditional: set[str] = set()
        self.skips: set[int] = set()
        self.classes: set[str] = set()
        self.decorated: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self.wrapped = self.decorated.copy()
        plain = all(isinstance(node, _PLAIN_STATEMENTS) for node in tree.body)
        if not plain or "@" in tests or "skip" in tests.lower():
            self.names.update(wanted_names(tree, nodes))
            self._look(tree, nodes)

    def _look(self, tree: ast.Module, nodes: list[ast.AST]) -> None:
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module == "solution":
                self.names |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.Import):
                self.names |= {alias.asname or alias.name for alias in node.names if alias.name == "solution"}
        for node in tree.body:
            if not isinstance(node, _PLAIN_STATEMENTS) and self.touches(node):
                self._taint(nodes_of(node))
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        self.names |= {node.name for node in functions if _is_fixture(node) and any(map(self.touches, node.body))}
        self.decorated = {node.name: node for node in functions if any(map(self.touches, node.decorator_list))}
        self.classes = {
            node.name
            for node in nodes
            if isinstance(node, ast.ClassDef) and any(map(self.touches, node.decorator_list))
        }
        self.wrapped = {
            name: node for name, node in self.decorated.items() if any(map(self._wraps, node.decorator_list))
        }
        may_skip = any(isinstance(node, ast.Call) and last_name(node.func) in _SKIPPING for node in nodes)
        places = [*functions, *(node for node in tree.body if isinstance(node, ast.If))] if may_skip else []
        self.skips = {line for node in places for line in self._skips_in(node)}

    def _taint(self, parts: list[ast.AST]) -> None:
        """What a statement at the top binds comes from the solution; a test that it defines may be missing."""
        for each in parts:
            if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load):
                self.names.add(each.id)
            elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test"):
                self.conditional.add(each.name)

    def touches(self, node: ast.AST) -> bool:
        """Whether a name that comes from the solution stands in an expression or statement."""
        return any(
            (isinstance(each, ast.Name) and each.id in self.names)
            or (isinstance(each, ast.arg) and each.arg in self.names)
            or (isinstance(each, ast.ImportFrom) and each.module == "solution")
            or (isinstance(each, ast.Constant) and each.value == "solution")
            for each in nodes_of(node)
        )

    def _wraps(self, decorator: ast.expr) -> bool:
        """Whether a decorator is the solution's."""
        while isinstance(decorator, ast.Call | ast.Attribute):
            decorator = decorator.func if isinstance(decorator, ast.Call) else decorator.value
        return self.touches(decorator)

    def _skips_in(self, place: ast.FunctionDef | ast.AsyncFunctionDef | ast.If) -> Iterator[int]:
        """Lines that skip a test depending on something of the solution."""
        always = [each.value for each in place.body if isinstance(each, ast.Expr)]
        inside = nodes_of(place)
        for node in inside:
            if isinstance(node, ast.Call) and last_name(node.func) in _SKIPPING:
                names = ast.Name | ast.arg
                before = [each for each in inside if isinstance(each, names) and each.lineno <= node.lineno]
                if (isinstance(place, ast.If) or node not in always) and any(map(self.touches, before)):
                    yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _is_fixture(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("fixture" in ast.unparse(each) for each in node.decorator_list)


_PLAIN_STATEMENTS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Expr)
_SKIPPING = ("skip", "skipTest", "SkipTest", "xfail")
