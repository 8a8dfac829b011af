"""Does the program critic blame the right line: planted faults, and programs that people mended.

Faults of six kinds are planted, one at a time, in the reference solutions of MBPP and HumanEval; of those that fail
a test, every one is judged by the critic twice: with the tests alone, and with the reference solution beside them.
The line it is surest of is right if it is the line that was changed; where a line was left out, a line beside the
gap. On ILF's 195 programs, which models wrote and people mended, the lines of the poor spans (tests alone) are held
against the lines that the person changed, took away, or put new lines before.

    python benchmarks/localise.py [--mutants 510] [--repairs 40] [--seed 0] [--workers 2] [--part 1/1]

The last line of stdout is one JSON object. Wanted: top1_without_reference .70, top1_with_reference .95.
`top1_without_repairs` is what tracebacks, coverage and reading alone give: the edits that the critic tries are of
the same nature as the planted faults, so that figure shows how much the other one owes to that.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from mutants import KINDS, Mutant, mutant
from text2grad.critics.program import ProgramCritic
from text2grad.critics.program.source import Lines
from text2grad.feedback import Critique, Example
from text2grad.sandbox.runner import Runner
from text2grad.tasks.code import SHAPES
from text2grad.tasks.loaders import read_examples

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SOURCES = ("mbpp/mbpp.jsonl", "humaneval/HumanEval.jsonl")
PAIRS = "ilf_code_feedback/surge_annotations.jsonl"
BATCH = 120
STARTED = time.perf_counter()
FAILS = ("failed", "timeout")
Planted = tuple[Example, Mutant]


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--mutants", type=int, default=510)
    words.add_argument("--repairs", type=int, default=40)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--workers", type=int, default=2)
    words.add_argument("--part", default="1/1", help="2/3: the second third of the faults and pairs alone")
    options = words.parse_args()
    part, parts = map(int, options.part.split("/"))
    own = slice(part - 1, None, parts)
    if not DATA.is_dir():
        raise SystemExit(f"no data sets in {DATA}")
    with Runner(workers=options.workers) as runner:
        planted = plant(options.mutants, options.seed, runner)[own]
        found = {
            "top1_without_reference": share_right(planted, ProgramCritic(runner, repairs=options.repairs), False),
            "top1_with_reference": share_right(planted, ProgramCritic(runner, repairs=options.repairs), True),
            "top1_without_repairs": share_right(planted, ProgramCritic(runner, repairs=0), False),
        }
        mended = people_mended(ProgramCritic(runner, repairs=options.repairs), own)
    print(json.dumps({"mutants": len(planted), **found, **mended}))


def plant(count: int, seed: int, runner: Runner) -> list[Planted]:
    """`count` programs that fail a test, of every kind as many as there are, never two of one program and kind."""
    dice = random.Random(seed)
    examples = [example for name in SOURCES for example in read_examples(str(DATA / name), SHAPES)]
    waiting = [(example, kind) for example in examples for kind in KINDS]
    dice.shuffle(waiting)
    quota = -(-count // len(KINDS))
    found: dict[str, list[Planted]] = defaultdict(list)
    outcomes: Counter[str] = Counter()
    while waiting and sum(map(len, found.values())) < count:
        batch = list(_made(waiting, {kind: quota - len(found[kind]) for kind in KINDS}, dice))
        verdicts = runner.run_all([(each.code, example.meta["tests"]) for example, each in batch], coverage=True)
        for (example, each), verdict in zip(batch, verdicts, strict=True):
            outcomes[verdict.outcome] += 1
            if verdict.outcome in FAILS and len(found[each.kind]) < quota:
                found[each.kind].append((example, each))
    _say(f"planted: {dict(outcomes)}; kept: { {kind: len(found[kind]) for kind in KINDS} }")
    return [planted for kind in KINDS for planted in found[kind]]


def _made(waiting: list[tuple[Example, str]], wanted: dict[str, int], dice: random.Random) -> Iterator[Planted]:
    made = 0
    while waiting and made < BATCH:
        example, kind = waiting.pop()
        each = mutant(example.reference, kind, dice) if wanted[kind] > 0 else None
        if each is not None and each.code != example.reference:
            made += 1
            yield example, each


def share_right(planted: Sequence[Planted], critic: ProgramCritic, with_reference: bool) -> float:
    """The share of faults whose line is the one that the critic is surest of."""
    right: Counter[str] = Counter()
    for example, each in planted:
        asked = example if with_reference else example.model_copy(update={"reference": ""})
        (said,) = critic.critique([asked], [each.code])
        assert isinstance(said, Critique), said
        right[each.kind] += bool(set(said.meta["lines"][:1]) & each.lines)
    totals = Counter(each.kind for _, each in planted)
    _say(", ".join(f"{kind} {right[kind]}/{totals[kind]}" for kind in KINDS))
    return round(right.total() / max(1, len(planted)), 4)


def people_mended(critic: ProgramCritic, own: slice) -> dict[str, Any]:
    """Lines that people changed against lines of poor spans, over all programs together."""
    changed = blamed = both = first = 0
    examples = read_examples(str(DATA / PAIRS), SHAPES)[own]
    for example in examples:
        response = example.meta["response"]
        (said,) = critic.critique([example.model_copy(update={"reference": ""})], [response])
        assert isinstance(said, Critique), said
        theirs = changed_lines(response, example.reference)
        ours = poor_lines(said, response)
        changed, blamed, both = changed + len(theirs), blamed + len(ours), both + len(ours & theirs)
        first += bool(set(said.meta["lines"][:1]) & theirs)
    return {
        "ilf_line_recall": round(both / changed, 4),
        "ilf_line_precision": round(both / max(1, blamed), 4),
        "ilf_top1": round(first / len(examples), 4),
        "ilf_pairs": len(examples),
    }


def poor_lines(said: Critique, response: str) -> set[int]:
    """The lines (from 1) that poor spans touch."""
    lines = Lines.of(response)
    poor = [span for span in said.spans if span.label < 0]
    return {n for span in poor for n in range(lines.number_at(span.start), lines.number_at(span.end - 1) + 1)}


def changed_lines(before: str, after: str) -> set[int]:
    """Lines of `before` (from 1, blank ones apart) that `after` changes, lacks, or has new lines in front of."""
    old, new = ([line.strip() for line in Lines.of(text).lines] for text in (before, after))
    numbers = [n for n, line in enumerate(old, start=1) if line]
    kept = [line for line in old if line]
    changed: set[int] = set()
    matcher = SequenceMatcher(a=kept, b=[line for line in new if line], autojunk=False)
    for tag, start, end, _, _ in matcher.get_opcodes():
        if tag == "insert":
            changed.add(numbers[min(start, len(numbers) - 1)])
        elif tag != "equal":
            changed.update(numbers[start:end])
    return changed


def _say(words: str) -> None:
    print(f"[{time.perf_counter() - STARTED:.0f} s] {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
