"""The parameters that a test or a fixture takes by name."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable
from typing import Any


def parameters(call: Any, with_defaults: bool = False) -> list[str]:
    """What a function wants by name; without `with_defaults` only what has no default."""
    bound = 1 if isinstance(call, types.MethodType) else 0
    plain = call.__func__ if bound else call
    special = hasattr(plain, "__wrapped__") or hasattr(plain, "__signature__")
    if type(plain) is not types.FunctionType or special:
        return _signature(call, with_defaults)
    code, defaults = plain.__code__, len(plain.__defaults__ or ())
    last = code.co_argcount if with_defaults else code.co_argcount - defaults
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    has_default = () if with_defaults else plain.__kwdefaults__ or ()
    first = max(bound, code.co_posonlyargcount)
    return [*code.co_varnames[first:last], *(name for name in keywords if name not in has_default)]


def as_written(value: Any, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Callable[..., Any]:
    """A test that the solution decorated, with the parameters that stand in the test file."""
    import inspect

    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    left = len(node.args.defaults)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    wanted = [inspect.Parameter(name, kind) for name in (names[:-left] if left else names)]

    def test(**given: Any) -> Any:
        return value(**given)

    test.__signature__ = inspect.Signature(wanted)  # type: ignore[attr-defined]
    return test


def fixtures_of(test: Any) -> list[str]:
    """Names of what a test wants and `unittest.mock.patch` does not give it."""
    plain = getattr(test, "__func__", test)
    mocks = [each for each in getattr(plain, "patchings", ()) if each.attribute_name is None]
    replaced = sum(each.new is sys.modules["unittest.mock"].DEFAULT for each in mocks)
    names = parameters(test)
    bound = 1 if names[:1] == ["self"] else 0
    return names[:bound] + names[bound + replaced :]


def _signature(call: Any, with_defaults: bool) -> list[str]:
    import inspect

    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = [each for each in inspect.signature(call).parameters.values() if each.kind in kinds]
    return [each.name for each in found if with_defaults or each.default is inspect.Parameter.empty]
