"""Measure if files of other tools are imported correctly, or refused with a working cure.

Every folder of `tests/formats` has a file in the format and under the name of a tool, and a
hand-written `expected.json`. The real command runs on a copy of the folder.

- `records`: response, spans (start, words, label) and score of every record, and more if the file
  has more; `arguments`: the options given. `says`: words that the command prints.
- `cure`: the options that one printed line names for unread fields, and `cured`: the records with
  them.
- `refused`: words of the one error line.

    python benchmarks/imports.py [--folder tests/formats]

The last line of stdout is one JSON object: `files`; `right` (as expected); `refused_with_cure`
(nothing wrong was read, one line names the problem, and its cure works); `silently_wrong` (the
rest).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

CASES = Path(__file__).resolve().parents[1] / "tests" / "formats"


class Ended(NamedTuple):
    """The exit code and output of a command."""

    code: int
    output: str


Command = Callable[[Sequence[str]], Ended]


def run(words: Sequence[str]) -> Ended:
    """Run the real command."""
    command = [sys.executable, "-m", "text2grad.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    return Ended(done.returncode, done.stdout + done.stderr)


def faults(case: Path, work: Path, command: Command = run) -> list[str]:
    """Return the differences from a case's expectations; `work` is a new folder."""
    expected = json.loads((case / "expected.json").read_text(encoding="utf-8"))
    file = shutil.copytree(case, work) / expected["file"]
    if "refused" in expected:
        problems = _not_refused(file, expected, command)
    else:
        records, says = expected["records"], expected.get("says", [])
        problems = _differences(
            file, expected.get("arguments", []), records, says, command, expected.get("code", 0)
        )
    if "cure" in expected:
        problems += _differences(file, expected["cure"], expected["cured"], [], command)
    return problems


def _not_refused(file: Path, expected: dict[str, Any], command: Command) -> list[str]:
    ended = command(["import", str(file), "--out", str(file.with_name("none.jsonl"))])
    lines = [line for line in ended.output.splitlines() if line.startswith("error: ")]
    is_refusal = ended.code in (1, 2) and len(lines) == 1
    problems = [] if is_refusal else [f"exit code {ended.code}: {ended.output[-300:]}"]
    problems += [
        f"does not say {words!r}: {lines}" for words in expected["refused"] if words not in " ".join(lines)
    ]
    return problems


def _differences(
    file: Path,
    arguments: Sequence[str],
    expected: list[dict[str, Any]],
    says: Sequence[str],
    command: Command,
    code: int = 0,
) -> list[str]:
    """Return the differences of an import's records and output from the expected ones."""
    out = file.with_name("feedback.jsonl")
    out.unlink(missing_ok=True)
    ended = command(["import", str(file), "--out", str(out), *arguments])
    if ended.code != code:
        return [f"exit code {ended.code}: {ended.output[-300:]}"]
    records = [json.loads(line) for line in out.read_text(encoding="utf-8").split("\n") if line]
    problems = [f"does not say {words!r}: {ended.output}" for words in says if words not in ended.output]
    if len(records) != len(expected):
        return [*problems, f"{len(records)} records, not {len(expected)}"]
    for number, (record, want) in enumerate(zip(records, expected, strict=True), start=1):
        got = _summarise(record)
        problems += [
            f"record {number}: {key} is {got.get(key)!r}, not {value!r}"
            for key, value in want.items()
            if got.get(key) != value
        ]
    return problems


def _summarise(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record in the format of an expectation."""
    return {
        "id": record["id"],
        "prompt": record["prompt"][-1]["content"],
        "asked": [[turn["role"], turn["content"]] for turn in record["prompt"]],
        "corrected": record["meta"].get("corrected", ""),
        "response": record["response"],
        "spans": [[span["start"], span["text"], span["label"]] for span in record.get("spans", [])],
        "score": record.get("score"),
        "critique": record.get("critique", ""),
        "annotator": record["meta"].get("annotator", ""),
        "error": (record.get("error") or {}).get("kind"),
    }


def main() -> None:
    """Run all cases, print those with faults, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=CASES, help="the folder of the cases")
    cases = sorted(path.parent for path in parser.parse_args().folder.glob("*/expected.json"))
    counts = Counter(files=len(cases), right=0, refused_with_cure=0, silently_wrong=0)
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            problems = faults(case, Path(folder) / case.name)
        expected = json.loads((case / "expected.json").read_text(encoding="utf-8"))
        cured = "refused" in expected or "cure" in expected
        counts["silently_wrong" if problems else "refused_with_cure" if cured else "right"] += 1
        print(f"{case.name}: {'; '.join(problems) or 'as expected'}", file=sys.stderr)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
