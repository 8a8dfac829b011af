"""Code of the user's own that a setting names as `module:Name`: a task, a critic, a credit scheme.
No torch."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from text2grad.errors import UserError

T = TypeVar("T")
PACKAGES = ("text2grad", "text2grad_lab")
"""Packages whose errors are bugs, and keep their traceback."""


def is_own_name(name: str) -> bool:
    """Whether a name is written as `module:Name`."""
    module, separator, found = name.partition(":")
    return bool(separator) and found.isidentifier() and all(part.isidentifier() for part in module.split("."))


def known_name(name: str, known: Collection[str], own: str) -> str:
    """`name`, if it is one of those `known` or written as `module:Name`; `own` says how the latter
    is written.

    Raises:
        ValueError: it is neither; names the nearest.
    """
    if name not in known and not is_own_name(name):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"{hint}one of {', '.join(known)}, or {own}")
    return name


def load_named(what: str, name: str, target: str = "", kinds: tuple[type[Any], ...] = (type,)) -> Any:
    """What `target` (by default `name` itself) names as `module:Name`, for the setting `name` of a
    `what`.

    Modules are looked up where Python looks, then in the current folder. `kinds` are the types that
    will do, by default classes alone.

    Raises:
        UserError: there is no such module or name, it is of the standard library or of another
            type, or the module cannot be imported.
    """
    module_name, _, wanted = (target or name).partition(":")
    module = _import(what, name, module_name)
    if not hasattr(module, wanted):
        known = [word for word, value in vars(module).items() if isinstance(value, kinds)]
        near = difflib.get_close_matches(wanted, known, n=1)
        cure = f"did you mean {near[0]}?" if near else "check the name"
        raise UserError(f"{what} {name!r}: {module_name} has no {wanted}", cure)
    found = getattr(module, wanted)
    if not isinstance(found, kinds) or found.__module__.partition(".")[0] in sys.stdlib_module_names:
        cure = f"name a {'class' if type in kinds else 'function'} of your own"
        raise UserError(f"{what} {name!r}: {wanted} of {module_name} is not a {what}", cure)
    return found


def call_own(expects: str, function: Callable[..., T], *arguments: Any) -> T:
    """Call what may be code of the user's own, such as a critic's `critique`; `expects` says what
    it must do.

    Raises:
        UserError: it is not of this package, and raised or is async: names its module and line.
    """
    module = str(getattr(function, "__module__", ""))
    if module.partition(".")[0] in PACKAGES:
        return function(*arguments)
    name = f"{getattr(function, '__qualname__', type(function).__name__)} of {module}"
    try:
        result = function(*arguments)
    except (UserError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, RuntimeError) and "memory" in str(error):
            raise  # torch has no room: whoever trains has the cure
        message = " ".join(str(error).split())[:200]
        raise UserError(f"{name}{_line_of(error, module)}: {type(error).__name__}: {message}", expects) from error
    if inspect.iscoroutine(result):
        result.close()
        raise UserError(f"{name} is async", expects)
    return result


def refuse_answer(expects: str, owner: object, method: str, answer: object) -> NoReturn:
    """Refuse what a method of the user's own code returned.

    Raises:
        UserError: names the class, its module and the type, of a list those of its items too.
    """
    kind, shape = type(owner), type(answer).__name__
    if isinstance(answer, list | tuple):
        names = sorted({type(item).__name__ for item in answer})
        shape = f"{shape} of {', '.join(names) or 'nothing'}"
    raise UserError(f"{kind.__name__}.{method} gave {shape}, in {kind.__module__}", expects)


def _line_of(error: Exception, module: str) -> str:
    """The last line of a module that an error went through; empty if it arose in the call
    itself."""
    file = getattr(sys.modules.get(module), "__file__", None)
    frames = traceback.extract_tb(error.__traceback__)
    line = next((frame.lineno for frame in reversed(frames) if frame.filename == file), None)
    return f", line {line}" if line else ""


def module_file(what: str, name: str) -> Path | None:
    """The file of the module in `module:Name`, which names a `what`; None of a module that has
    none.

    Raises:
        UserError: there is no such module, or it cannot be imported.
    """
    place = getattr(_import(what, name, name.partition(":")[0]), "__file__", None)
    return Path(place) if place else None


def _import(what: str, name: str, module_name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return importlib.import_module(module_name)
    except SyntaxError as error:
        place = f"line {error.lineno} of {error.filename}"
        raise UserError(f"{what} {name!r}: {error.msg} in {place}", "mend the module") from error
    except ModuleNotFoundError as error:
        # A module that the user's own lacks is a different mistake from one that is not there.
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        cure = "is it in this folder, or on PYTHONPATH?"
        raise UserError(f"{what} {name!r}: no module {error.name}", cure) from error
