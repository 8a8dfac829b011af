"""The paper's tables and figures as one list of commands, for a GPU and a key of a chat model.

steps.yaml has the list, and lab/paper.md says how exact it is. A step names the steps whose results
it reads, so a part of the list runs with its prerequisites, and `runner` runs steps in parallel.

Hours are estimates: PPO takes the preset's steps times the minutes of the paper's Table 13, or
times the seconds an answer took on our H100; other steps their tokens divided by the rates below.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from text2grad.chat.prices import read_prices
from text2grad.errors import UsageError
from text2grad.strict_yaml import parse_yaml
from text2grad_lab.paper import GROUPS
from text2grad_lab.paper.tables import read_tables, steps_of

LIST = Path(__file__).with_suffix(".yaml")
PAPER_GPUS = 8
TRAINED_A_SECOND, WRITTEN_A_SECOND = 2_000, 1_000
"""Tokens per second of one 80 GB GPU with 8 billion parameters, in training with adapters (a fifth
of an A100's bfloat16 peak at 4 FLOPs per weight and token) and in sampling 64 answers at a time.
Assumed, not measured."""
CHAT_MODEL = "gpt-4o"
LAB = (
    *("refine", "imitate", "reflect", "train-units", "train-dpo", "train-scalar"),
    *("alpaca", "choices", "mt-bench", "samples", "texts", "published"),
)
"""Commands of the lab: `python -m text2grad_lab`."""
WITHOUT_SETTINGS = ("feedback-report", "export")
KINDS = ("ppo", "trained", "written")
"""Kinds of GPU work, the largest first."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One command on a data set, and its requirements.

    Attributes:
        gpu_hours: on one GPU, by the paper's minutes.
        h100_hours: the same by the seconds of our H100.
        gpu_gb: memory on the GPU.
        disk_gb: what it leaves in `runs/`.
        chat_usd: price of the chat model.
        needs: `gpu`, `key`, or a file.
        after: the steps whose results it reads.
        awaits: patterns of steps that it runs after if they run.
        holds: a file that one step at a time can use, "" for none.
    """

    name: str
    data: str
    shows: str
    words: tuple[str, ...]
    gpu_hours: float
    h100_hours: float
    gpu_gb: float
    disk_gb: float
    chat_usd: float
    needs: tuple[str, ...]
    after: tuple[str, ...] = ()
    awaits: tuple[str, ...] = ()
    holds: str = ""

    @property
    def group(self) -> str:
        return self.name.partition("/")[0]


# The list


@cache
def read_list() -> dict[str, Any]:
    """Return the tables of steps.yaml."""
    tables: dict[str, Any] = parse_yaml(LIST.read_text(encoding="utf-8"))
    return tables


def steps(prompts: str = "ours", published: bool = False, seed: int = 0) -> list[Step]:
    """Return all steps by part of the list, each part in the order of the file.

    Args:
        prompts: `paper` for those of appendices B and E.
        published: annotate the data sets' own answers instead of the SFT policy's.
        seed: the setting run.seed of every step that has settings.
    """
    tables = read_list()
    all_steps = [
        with_seed(step_of(row, facts, prompts), seed)
        for row in tables["steps"]
        if row.get("published", published) == published
        for facts in combinations(row["over"], tables)
    ]
    return sorted(all_steps, key=lambda step: GROUPS.index(step.group))


def with_seed(step: Step, seed: int) -> Step:
    """Return a step with this `run.seed`, if it is not 0 and the command has settings."""
    if not seed or step.words[0] in WITHOUT_SETTINGS:
        return step
    return replace(step, words=(*step.words, "--run.seed", str(seed)))


def select(all_steps: Sequence[Step], names: Sequence[str]) -> list[Step]:
    """Return the steps of parts (`slf5k`), tables (`table2`) and names, with their prerequisites.

    Raises:
        UsageError: there is no such part, table or step.
    """
    by_name = {step.name: step for step in all_steps}
    chosen: set[str] = set()
    for name in names:
        if name in GROUPS:
            chosen |= {step.name for step in all_steps if step.group == name}
        elif name in by_name:
            chosen.add(name)
        elif name.removeprefix("table") in map(str, read_tables()):
            chosen.update(steps_of(int(name.removeprefix("table"))))
        else:
            choices = f"{', '.join(GROUPS)}, table1 to table{max(read_tables())}, or a step of --plan"
            raise UsageError(f"no part {name!r}", f"--only takes {choices}")
    return [step for step in all_steps if step.name in with_needed(chosen, by_name)]


def with_needed(names: Iterable[str], by_name: Mapping[str, Step]) -> list[str]:
    """Return the names of steps and their prerequisites, each after its prerequisites."""
    ordered: dict[str, None] = {}
    for name in names:
        if name not in ordered:
            ordered |= dict.fromkeys(with_needed(by_name[name].after, by_name)) | {name: None}
    return list(ordered)


def combinations(over: Mapping[str, Sequence[str]], tables: Row) -> Iterator[dict[str, Any]]:
    """Yield the fields of every combination of rows, with their names."""
    for names in product(*over.values()):
        facts: dict[str, Any] = dict(zip(over, names, strict=True))
        for kind, name in facts.copy().items():
            facts |= tables.get(kind, {}).get(name, {})
        yield facts


def step_of(row: Row, facts: dict[str, Any], prompts: str) -> Step:
    """Return the step of a row with the fields of one combination."""

    def text(name: str) -> str:
        return str(row.get(name, "")).format_map(facts).format_map(facts)

    tables = read_list()
    kind = next((kind for kind in KINDS if kind in row), "")
    count, minutes = value(row, "ppo", facts) or (0, 0)
    other_hours = trained_hours(value(row, "trained", facts)) + written_hours(value(row, "written", facts))
    token_counts = value(row, "asked", facts) or (0, 0, 0)
    files = value(row, "files", facts) or ()
    gpu, key = (("gpu",) if row.get("gpu", True) else ()), (("key",) if token_counts[0] else ())
    h100 = tables["h100"]
    seconds = h100[row["ppo"]] / h100["answers"] * facts["rollouts"] if count else 0.0
    return Step(
        text("name"),
        facts["data"],
        text("shows"),
        tuple(shlex.split(text("words") + (f" {text('paper')}" if prompts == "paper" else ""))),
        gpu_hours=other_hours + ppo_hours(count, minutes),
        h100_hours=other_hours + count * seconds / 3600,
        gpu_gb=tables["memory"].get(kind, 0),
        disk_gb=tables["disk"].get(kind, 0),
        chat_usd=chat_usd(*token_counts),
        needs=(*gpu, *key, *files),
        after=tuple(text("after").split()),
        awaits=tuple(text("awaits").split()),
        holds=text("holds"),
    )


def value(row: Row, name: str, facts: Row) -> Any:
    """Return a cost in a row: a number, or a field of the combination; default 0."""
    cell = row.get(name, 0)
    return facts[cell.format_map(facts)] if isinstance(cell, str) else cell


def trained_hours(millions: float) -> float:
    return millions * 1e6 / TRAINED_A_SECOND / 3600


def written_hours(millions: float) -> float:
    return millions * 1e6 / WRITTEN_A_SECOND / 3600


def ppo_hours(count: int, minutes: float) -> float:
    """Return the GPU hours of `count` steps that take `minutes` each on the paper's eight GPUs."""
    return count * minutes / 60 * PAPER_GPUS


def chat_usd(questions: int, input_tokens: int, output_tokens: int) -> float:
    """Return the price in USD of questions with these tokens each."""
    return questions * read_prices(None)[CHAT_MODEL].cost(
        {"prompt_tokens": input_tokens, "completion_tokens": output_tokens}
    )


# The plan


def print_plan(selected: Sequence[Step], gpu_usd: float) -> dict[str, int]:
    """Print each step with its command, and the totals of each part; return the overall totals."""
    for step in selected:
        needs = ", ".join(step.needs) or "nothing"
        hours = f"{step.gpu_hours:.1f} h ({step.h100_hours:.1f} h on an H100)"
        sizes = f"{step.gpu_gb:g} GB on a GPU, {step.disk_gb:g} GB on disk"
        print(f"{step.name} [{step.shows}] {hours}, {sizes}, chat ${step.chat_usd:.2f}, needs {needs}")
        print(f"    {shlex.join(words_of(step))}")
    print()
    for line in (*table(selected, gpu_usd), "", *size_lines(selected)):
        print(line)
    return totals(selected, gpu_usd)


def table(selected: Sequence[Step], gpu_usd: float) -> Iterator[str]:
    """Yield the totals of each part of the list as a Markdown table."""
    yield "| part | steps | GPU hours | H100 hours | GPU $ | chat $ |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name in (*GROUPS, "all"):
        figures = totals([step for step in selected if name in (step.group, "all")], gpu_usd)
        if figures["steps"]:
            yield f"| {name} | " + " | ".join(f"{figure:,}" for figure in figures.values()) + " |"


def size_lines(selected: Sequence[Step]) -> Iterator[str]:
    """Yield the memory and the disk that steps need, and the pace of our H100."""
    memory, runs = max(step.gpu_gb for step in selected), sum(step.disk_gb for step in selected)
    cached = sum(row["gb"] for row in hub_needs(selected).values())
    yield f"memory: at most {memory:g} GB on a GPU; disk: {runs:.1f} GB in runs/, {cached:.1f} GB of the hub"
    h100 = read_list()["h100"]
    yield (
        f"H100 hours: a PPO step of {h100['answers']} answers took {h100['text2grad']} s there"
        f" ({h100['scalar']} s without critiques), taken in proportion to the answers;"
        f" GPU hours: the paper's minutes on its {PAPER_GPUS} GPUs"
    )


def hub_needs(selected: Sequence[Step]) -> dict[str, Row]:
    """Return the models and data sets of the hub that steps load."""
    rows: dict[str, Row] = read_list()["hub"]
    return {name: row for name, row in rows.items() if any(fnmatch(step.name, row["steps"]) for step in selected)}


def totals(selected: Iterable[Step], gpu_usd: float) -> dict[str, int]:
    """Return the number of steps, the GPU hours and the prices."""
    selected = list(selected)
    hours = sum(step.gpu_hours for step in selected)
    return {
        "steps": len(selected),
        "gpu_hours": round(hours),
        "h100_hours": round(sum(step.h100_hours for step in selected)),
        "gpu_usd": round(hours * gpu_usd),
        "chat_usd": round(sum(step.chat_usd for step in selected)),
    }


def words_of(step: Step) -> list[str]:
    """Return the command line of a step."""
    program = [sys.executable, "-m", "text2grad_lab"] if step.words[0] in LAB else ["text2grad"]
    return [*program, *step.words]
