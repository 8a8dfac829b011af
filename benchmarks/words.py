"""How well does the project read? Counts of odd English, long lines, gaps in the documentation.

    python benchmarks/words.py [--english ../shared/tools/english.py]

The last line of stdout is one JSON object:

- `per_1000_lines`: odd phrases and vague names in src, README.md and docs per 1,000 lines of
  source, as the script `--english` counts them; null without it
- `readme_lines`
- `longest_prose_line`: columns of the longest line of a docstring, a comment or a page (code
  blocks, tables and links left out)
- `undocumented_public`: names of `text2grad.__all__`, and their public methods, without a docstring
- `dead_links`: links of pages that lead to no file or heading
- `unrun_snippets`: Python blocks of pages that no test runs
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import text2grad  # noqa: E402
from blocks import fenced  # noqa: E402
from test_pages import LAB_PAGES, PAGES, leads_somewhere  # noqa: E402

SNIPPET_TESTS = {
    "README.md": "tests/e2e/test_readme.py",
    "docs/library.md": "tests/test_library_page.py",
    "docs/tutorial.md": "lab/tests/test_tutorial.py",
    "docs/plugins.md": "tests/plugins/page.py",
    "docs/extend.md": "tests/test_snippets.py",
    "docs/serving.md": "tests/test_snippets.py",
    "docs/deploy.md": "tests/test_snippets.py",
}
"""The test that runs the Python blocks of each page."""


def odd_phrases(script: Path) -> float | None:
    """Return the count of odd English per 1,000 lines of source, None without the script."""
    if not script.is_file():
        return None
    command = [sys.executable, str(script), "src", "README.md", "docs"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return float(json.loads(output.splitlines()[-1])["per_1000_lines"])


def prose_lines(path: Path) -> Iterator[str]:
    """Yield the lines of docstrings and comments of a module, or the prose of a page."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        lines = text.split("\n")
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield from lines[node.lineno - 1 : node.end_lineno]
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
                yield token.line.rstrip()
        return
    for line in re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE).split("\n"):
        if not line.startswith(("|", "#")) and "](" not in line:
            yield line


def undocumented() -> list[str]:
    """Return the public names, and public methods of public classes, that have no docstring."""
    missing: list[str] = []
    for name in text2grad.__all__:
        value = getattr(text2grad, name)
        methods = {
            f"{name}.{key}": member
            for key, member in (vars(value).items() if inspect.isclass(value) else ())
            if not key.startswith("_")
            and key not in getattr(value, "__dataclass_fields__", ())
            and (inspect.isfunction(member) or isinstance(member, classmethod | property))
        }
        missing += [key for key, member in {name: value, **methods}.items() if not inspect.getdoc(member)]
    return missing


def dead_links() -> list[str]:
    """Return the links of pages and of the lab book that lead nowhere."""
    return [
        f"{page.name}: {target}"
        for page in (*PAGES, *LAB_PAGES)
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))
        if not leads_somewhere(page, target)
    ]


def unrun_snippets() -> int:
    """Return the number of Python blocks on pages without a test that runs them."""
    count = 0
    for page in PAGES:
        test = SNIPPET_TESTS.get(str(page.relative_to(ROOT)))
        if test is None or not (ROOT / test).is_file():
            count += len(fenced(page.read_text("utf-8"), "python"))
    return count


def main() -> None:
    """Print the figures, and on stderr what they count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--english", type=Path, default=ROOT.parent / "shared" / "tools" / "english.py")
    options = parser.parse_args()
    files = [*sorted((ROOT / "src").rglob("*.py")), *PAGES]
    longest = max(
        ((len(line), path, line) for path in files for line in prose_lines(path)), key=lambda item: item[0]
    )
    names, links = undocumented(), dead_links()
    print(f"longest line: {longest[1].relative_to(ROOT)}: {longest[2]}", *names, *links, sep="\n", file=sys.stderr)
    figures = {
        "per_1000_lines": odd_phrases(options.english),
        "readme_lines": len((ROOT / "README.md").read_text("utf-8").splitlines()),
        "longest_prose_line": longest[0],
        "undocumented_public": len(names),
        "dead_links": len(links),
        "unrun_snippets": unrun_snippets(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
