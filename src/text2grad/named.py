"""Load user code that a setting names as `module:Name`: a task, a critic, a credit scheme.

Imports no torch.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from text2grad.errors import UserError, suggestion

T = TypeVar("T")
PACKAGES = ("text2grad", "text2grad_lab")
"""Packages whose errors are bugs and keep their traceback."""


def is_import_path(name: str) -> bool:
    """Return True if a name has the form `module:Name`."""
    module, separator, attribute = name.partition(":")
    return bool(separator) and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))


def check_name(name: str, builtin: Collection[str], form: str) -> str:
    """Return `name` if it is built in or an import path.

    `form` is how an import path is written, for the error, such as `module:Class`.

    Raises:
        ValueError: it is neither.
    """
    if name not in builtin and not is_import_path(name):
        raise ValueError(suggestion(name, builtin, f"one of {', '.join(builtin)}, or {form}"))
    return name


def load_named(what: str, name: str, target: str = "", kinds: tuple[type[Any], ...] = (type,)) -> Any:
    """Import `module:Name` and return the object.

    Modules are searched on Python's path, then in the current folder.

    Args:
        what: the kind of thing that is loaded, for errors: `task`, `critic`.
        name: the value of the setting, for errors.
        target: the import path; by default `name`.

    Raises:
        UserError: there is no such module or name, the object is from the standard library or of
            another type, or the module cannot be imported.
    """
    module_name, _, attribute = (target or name).partition(":")
    module = _import(what, name, module_name)
    if not hasattr(module, attribute):
        candidates = [word for word, value in vars(module).items() if isinstance(value, kinds)]
        cure = suggestion(attribute, candidates) or "check the name"
        raise UserError(f"{what} {name!r}: {module_name} has no {attribute}", cure)
    loaded = getattr(module, attribute)
    if not isinstance(loaded, kinds) or loaded.__module__.partition(".")[0] in sys.stdlib_module_names:
        cure = f"name a {'class' if type in kinds else 'function'} of your own"
        raise UserError(f"{what} {name!r}: {attribute} of {module_name} is not a {what}", cure)
    return loaded


def call_user_code(expects: str, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that may be user code, such as a critic's `critique`.

    Errors of functions in `PACKAGES` are not caught. `expects`, the cure of other errors, says what
    the function must do.

    Raises:
        UserError: user code raised or is async; names its module and line.
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
            raise  # torch is out of memory: the training loop has the cure
        message = " ".join(str(error).split())[:200]
        raise UserError(f"{name}{_line_of(error, module)}: {type(error).__name__}: {message}", expects) from error
    if inspect.iscoroutine(result):
        result.close()
        raise UserError(f"{name} is async", expects)
    return result


def refuse_result(expects: str, owner: object, method: str, answer: object) -> NoReturn:
    """Refuse the return value of a method in user code.

    Raises:
        UserError: always; names the class, its module, and the type of the value and its items.
    """
    kind, shape = type(owner), type(answer).__name__
    if isinstance(answer, list | tuple):
        names = sorted({type(item).__name__ for item in answer})
        shape = f"{shape} of {', '.join(names) or 'nothing'}"
    raise UserError(f"{kind.__name__}.{method} returned {shape}, in {kind.__module__}", expects)


def _line_of(error: Exception, module: str) -> str:
    """Return the last line of a module in the traceback of an error, or an empty text."""
    file = getattr(sys.modules.get(module), "__file__", None)
    frames = traceback.extract_tb(error.__traceback__)
    line = next((frame.lineno for frame in reversed(frames) if frame.filename == file), None)
    return f", line {line}" if line else ""


def module_file(what: str, name: str) -> Path | None:
    """Return the file of the module in `module:Name`; None for a module without a file.

    `what` is the kind of thing named, for errors.

    Raises:
        UserError: there is no such module, or it cannot be imported.
    """
    file = getattr(_import(what, name, name.partition(":")[0]), "__file__", None)
    return Path(file) if file else None


def _import(what: str, name: str, module_name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return importlib.import_module(module_name)
    except SyntaxError as error:
        place = f"line {error.lineno} of {error.filename}"
        raise UserError(f"{what} {name!r}: {error.msg} in {place}", "fix the module") from error
    except ModuleNotFoundError as error:
        # An import missing inside the user's module is reported differently from a missing module.
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        cure = "is it in this folder, or on PYTHONPATH?"
        raise UserError(f"{what} {name!r}: no module {error.name}", cure) from error
