"""Measure if the program critic blames the right line, on planted faults and people's corrections.

Faults of six kinds are planted one at a time in the reference solutions of MBPP and HumanEval. The
critic judges every one that fails a test, with the tests alone and with the reference solution. Its
most certain line is right if it was changed, or is next to the gap of a removed line. On ILF's 195
programs by models, the lines of poor spans (tests alone) are compared with the lines that a person
changed, removed, or inserted lines before.

    python benchmarks/localise.py [--mutants 510] [--repairs 40] [--seed 0] [--workers 2] \\
        [--notes FILE]

The last line of stdout is one JSON object. Targets: top1_without_reference 0.70,
top1_with_reference 0.95. `top1_without_repairs` is the figure without the critic's trial edits,
which resemble the planted faults: tracebacks, coverage and reading alone.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mutants import KINDS, Mutant, mutant
from text2grad.critics.program import ProgramCritic
from text2grad.critics.program.source import Lines
from text2grad.data.published import read_examples
from text2grad.feedback import Critique, Example
from text2grad.sandbox import Runner
from text2grad_lab.benchmarks.programs import SHAPES
from text2grad_lab.readers.ilf import SHAPE

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SOURCES = ("mbpp/mbpp.jsonl", "humaneval/HumanEval.jsonl")
PAIRS = "ilf_code_feedback/surge_annotations.jsonl"
BATCH = 120
STARTED = time.perf_counter()
FAILS = ("failed", "timeout")
NO_CRITIQUE = -1


class Planted(NamedTuple):
    """A program with a fault: the task, the kind of fault, the program, and the lines of the fault
    (from 1)."""

    task: str
    kind: str
    code: str
    lines: Sequence[int]


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--mutants", type=int, default=510)
    words.add_argument("--repairs", type=int, default=40)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--workers", type=int, default=2)
    words.add_argument("--notes", type=Path, help="keep what is found here; an interrupted run goes on from it")
    options = words.parse_args()
    if not DATA.is_dir():
        raise SystemExit(f"no data sets in {DATA}")
    notes = Notes(options.notes)
    options_given = [options.mutants, options.repairs, options.seed]
    if notes.of("mutants, repairs, seed", lambda: options_given) != options_given:
        raise SystemExit(f"{options.notes} is of a run with other options; give another file")
    with Runner(workers=options.workers) as runner:
        planted = [
            Planted(*row) for row in notes.of("planted", lambda: plant(options.mutants, options.seed, runner))
        ]
        examples = {example.id: example for example in solved()}
        full, quick = (ProgramCritic(runner, repairs=repairs) for repairs in (options.repairs, 0))
        ways = {
            "with_reference": (full, True),
            "without_repairs": (quick, False),
            "without_reference": (full, False),
        }
        figures = {f"top1_{way}": share_right(way, planted, examples, *asked, notes) for way, asked in ways.items()}
        mended = people_mended(full, notes)
    print(json.dumps({"mutants": len(planted), **figures, **mended}))


class Notes:
    """Results by name, optionally stored in a file and reused."""

    def __init__(self, path: Path | None) -> None:
        text = path.read_text(encoding="utf-8") if path and path.is_file() else ""
        complete = text[: text.rfind("\n") + 1]  # the last line of a killed run may be incomplete
        if path and complete != text:
            path.write_text(complete, encoding="utf-8")
        self.known: dict[str, Any] = dict(map(json.loads, complete.splitlines()))
        self.path = path

    def of(self, name: str, find: Callable[[], Any]) -> Any:
        """Return the stored result of a name, or compute and store it."""
        if name not in self.known:
            self.known[name] = find()
            if self.path:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([name, self.known[name]]) + "\n")
        return self.known[name]


def solved() -> list[Example]:
    """Return the problems with their reference solutions."""
    return [example for name in SOURCES for example in read_examples(str(DATA / name), SHAPES)]


def plant(count: int, seed: int, runner: Runner) -> list[Planted]:
    """Return `count` failing programs, balanced over kinds, at most one per program and kind."""
    dice = random.Random(seed)
    waiting = [(example, kind) for example in solved() for kind in KINDS]
    dice.shuffle(waiting)
    quota = -(-count // len(KINDS))
    planted_by_kind: dict[str, list[Planted]] = defaultdict(list)
    outcomes: Counter[str] = Counter()
    while waiting and sum(map(len, planted_by_kind.values())) < count:
        batch = list(_make_mutants(waiting, {kind: quota - len(planted_by_kind[kind]) for kind in KINDS}, dice))
        verdicts = runner.run_all([(item.code, example.meta["tests"]) for example, item in batch], coverage=True)
        for (example, mutated), verdict in zip(batch, verdicts, strict=True):
            outcomes[verdict.outcome] += 1
            if verdict.outcome in FAILS and len(planted_by_kind[mutated.kind]) < quota:
                planted_by_kind[mutated.kind].append(
                    Planted(example.id, mutated.kind, mutated.code, sorted(mutated.lines))
                )
    _log(f"planted: {dict(outcomes)}; kept: { {kind: len(planted_by_kind[kind]) for kind in KINDS} }")
    return [planted for kind in KINDS for planted in planted_by_kind[kind]]


def _make_mutants(
    waiting: list[tuple[Example, str]], remaining: dict[str, int], dice: random.Random
) -> Iterator[tuple[Example, Mutant]]:
    count = 0
    while waiting and count < BATCH:
        example, kind = waiting.pop()
        mutated = mutant(example.reference, kind, dice) if remaining[kind] > 0 else None
        if mutated is not None and mutated.code != example.reference:
            count += 1
            yield example, mutated


def share_right(
    way: str,
    planted: Sequence[Planted],
    examples: Mapping[str, Example],
    critic: ProgramCritic,
    with_reference: bool,
    notes: Notes,
) -> float:
    """Return the share of faults whose line is the critic's most certain one."""

    def first_line(fault: Planted) -> int:
        example = examples[fault.task]
        shown_example = example if with_reference else example.model_copy(update={"reference": ""})
        (critique,) = critic.critique([shown_example], [fault.code])
        return next(iter(critique.meta["lines"]), 0) if isinstance(critique, Critique) else NO_CRITIQUE

    right: Counter[str] = Counter()
    silent = 0
    for number, fault in enumerate(planted):
        line = notes.of(f"{way} {number}", partial(first_line, fault))
        right[fault.kind] += line in fault.lines
        silent += line == NO_CRITIQUE
    totals = Counter(fault.kind for fault in planted)
    if silent:
        _log(f"{way}: {silent} without a critique, counted as wrong (a busy machine times out)")
    _log(f"{way}: " + ", ".join(f"{kind} {right[kind]}/{totals[kind]}" for kind in KINDS))
    return round(right.total() / max(1, len(planted)), 4)


def people_mended(critic: ProgramCritic, notes: Notes) -> dict[str, Any]:
    """Compare lines that people changed with lines of poor spans, over all programs."""
    examples = read_examples(str(DATA / PAIRS), [SHAPE])
    rows = [notes.of(f"mended {example.id}", partial(_lines_of, example, critic)) for example in examples]
    changed, blamed, overlap, first = map(sum, zip(*rows, strict=True))
    return {
        "ilf_line_recall": round(overlap / changed, 4),
        "ilf_line_precision": round(overlap / max(1, blamed), 4),
        "ilf_top1": round(first / len(examples), 4),
        "ilf_pairs": len(examples),
    }


def _lines_of(example: Example, critic: ProgramCritic) -> tuple[int, int, int, int]:
    """Count changed lines, poor lines, common ones, and 1 if the most certain one is right."""
    response = example.meta["draft"]
    (critique,) = critic.critique([example.model_copy(update={"reference": ""})], [response])
    theirs = changed_lines(response, example.reference)
    if not isinstance(critique, Critique):
        return len(theirs), 0, 0, 0
    ours = poor_lines(critique, response)
    return len(theirs), len(ours), len(ours & theirs), int(bool(set(critique.meta["lines"][:1]) & theirs))


def poor_lines(critique: Critique, response: str) -> set[int]:
    """Return the lines (from 1) that poor spans touch."""
    lines = Lines.of(response)
    poor = [span for span in critique.spans if span.label < 0]
    return {n for span in poor for n in range(lines.number_at(span.start), lines.number_at(span.end - 1) + 1)}


def changed_lines(before: str, after: str) -> set[int]:
    """Return non-blank lines of `before` (from 1) changed, removed or preceded by new ones."""
    old, new = ([line.strip() for line in Lines.of(text).lines] for text in (before, after))
    numbers = [n for n, line in enumerate(old, start=1) if line]
    removed = [line for line in old if line]
    changed: set[int] = set()
    matcher = SequenceMatcher(a=removed, b=[line for line in new if line], autojunk=False)
    for tag, start, end, _, _ in matcher.get_opcodes():
        if tag == "insert":
            changed.add(numbers[min(start, len(numbers) - 1)])
        elif tag != "equal":
            changed.update(numbers[start:end])
    return changed


def _log(words: str) -> None:
    print(f"[{time.perf_counter() - STARTED:.0f} s] {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
