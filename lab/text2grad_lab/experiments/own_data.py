"""Train SmolLM2 on 48 simulated comments of one person, with the preset `own` and two data files.

A seeded script simulates a person who sent 48 replies to mails and marked what they like and
dislike in each: empty courtesies, unrequested promises, hedges. Twelve more mails are held out. The
commands of README's "Your own data" then run with `--config own`. A judge that shares no phrases
with the script scores the policies' answers to the held-out mails: a reply should state the
requested fact and nothing else.

`--start` selects what SFT imitates: the replies as sent, or as corrected. The gate of
`train-reward` is followed as a user would: if only the reward model's spans are fit, it is used
with `--credit.outcome_weight 0`, and if `train` refuses the reward model, the message is recorded.

The last line of stdout is one JSON object: `start`, `records`, and for each seed `seconds` and
`peak_mb` of all commands, `judge_sft` and `judge_text2grad` (-1 to 1, sampled; `judge_..._greedy`
likewise; null if `train` refused), `train_refused` (its message), `gate_fit`, `gate_reasons`,
`reward_model_poor_f1` and `random_poor_f1`. With --offline the policy learns from the records alone
(`train --offline`), without a reward model.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean

import text2grad as t2g
from text2grad.demo import run_command
from text2grad.errors import exit_on_user_error
from text2grad.strict_yaml import parse_yaml
from text2grad_lab.experiments.options import Row, experiment_parser

RECORDS, HELDOUT = 48, 12
SAMPLES = 8
"""Answers to each held-out mail, at temperature 1."""
PHRASES: Row = parse_yaml(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
FAULTS: dict[str, Row] = PHRASES["faults"]
"""Quotes of each kind of fault, and the person's comment on it."""


def main() -> None:
    args = options()
    if args.workers > 1:  # by default each would use all cores
        args.set.append("run.threads=1")
    with ThreadPoolExecutor(args.workers) as pool:
        rows = list(pool.map(lambda seed: run_seed(args, seed), args.seeds))
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    print(json.dumps({"start": args.start, "records": RECORDS} | columns))


def options() -> argparse.Namespace:
    parser = experiment_parser(__doc__, "own_data")
    parser.add_argument("--workers", type=int, default=1, help="seeds in parallel, with one thread each")
    parser.add_argument("--start", choices=("sent", "corrected"), default="sent", help="what SFT imitates")
    parser.add_argument("--offline", action="store_true", help="learn from the records alone")
    return parser.parse_args()


# The person's two files


def make_mails(seed: int) -> Iterator[Row]:
    """Yield mails with sent replies and the person's comments; the last `HELDOUT` are held out."""
    draw = random.Random(seed)
    questions = [(topic, thing) for topic in PHRASES["topics"] for thing in PHRASES["things"]]
    for topic, thing in draw.sample(questions, RECORDS + HELDOUT):
        fact = draw.choice(PHRASES["facts"][topic["facts"]])
        sender = draw.choice([name for name in PHRASES["facts"]["people"] if name != fact])
        notes = topic["answer"].format(thing=thing, fact=fact)
        question = topic["question"].format(thing=thing)
        prompt = f'Mail from {sender}: "{question}"\nYour notes: {notes}\nWrite the reply.'
        yield {"prompt": prompt, "fact": fact, "corrected": notes} | make_reply(draw, notes)


def make_reply(draw: random.Random, notes: str) -> Row:
    """Return a reply with up to three faults, its good and poor quotes, a critique and a score."""
    kinds = draw.sample(list(FAULTS), draw.choice((0, 1, 1, 2, 2, 3)))
    quotes = {kind: draw.choice(FAULTS[kind]["quotes"]) for kind in kinds}
    hedge = quotes.get("hedge", "")
    good = notes if not hedge or notes.split()[0] in PHRASES["facts"]["people"] else notes[0].lower() + notes[1:]
    sentences = [quote for kind, quote in quotes.items() if kind != "hedge"]
    sentences.insert(draw.randint(0, len(sentences)), capitalise(f"{hedge} {good}".strip()))
    remarks = [
        (capitalise(quote) if kind == "hedge" else quote, FAULTS[kind]["why"]) for kind, quote in quotes.items()
    ]
    return {
        "response": " ".join(sentences),
        "good": good,
        "poor": "\n".join(quote for quote, _ in remarks),
        "critique": " ".join(f"'{quote}' is {why}." for quote, why in remarks) or "Says what was asked, and stops.",
        "score": round(1 - 2 * len(kinds) / len(FAULTS), 2),
    }


def capitalise(text: str) -> str:
    return text[0].upper() + text[1:]


def write_files(folder: Path, seed: int, start: str) -> None:
    """Write a person's files: sent replies, comments on them, and held-out mails.

    With `start` "corrected", corrected replies are included.
    """
    corrected = start == "corrected"
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(make_mails(seed))
    with (folder / "remarks.csv").open("w", newline="", encoding="utf-8") as file:
        columns = ["prompt", "response", "good", "poor", "critique", "score", *(["corrected"] if corrected else [])]
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    for name, part in (("questions", rows[:RECORDS]), ("heldout", rows[RECORDS:])):
        answer = "corrected" if corrected else "response"
        lines = [
            json.dumps({"prompt": row["prompt"], "response": row[answer], "fact": row["fact"]}) for row in part
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


# The program that judges replies


UNSURE = re.compile(
    r"\b(i (would|might|could|tend|think|believe|guess|suppose|assume)|mistaken|tell|knowledge|aware|probably|"
    r"possibly|perhaps|maybe|might|seems?|likely|not sure)\b"
)
LONGEST = 40
"""The number of words above which a reply is too long."""


def score_reply(prompt: str, reply: str) -> float:
    """Score a reply from -1 to 1.

    A reply without the fact of the notes scores -1. Otherwise it scores 1, minus 2/3 for every
    superfluous sentence, for hedging, and for too many words.
    """
    notes = re.search(r"Your notes: (.*)", prompt)
    assert notes, prompt
    fact = fact_of(notes[1])
    if not re.search(rf"\b{re.escape(fact)}\b", reply, re.IGNORECASE):
        return -1.0
    sentences = [part for part in re.split(r"[.!?]+\s+|\n+", reply.strip()) if len(part.split()) > 3]
    others = sum(not re.search(rf"\b{re.escape(fact)}\b", part, re.IGNORECASE) for part in sentences)
    repeats = sum(1 for part in sentences) - others - 1
    faults = others + max(0, repeats) + bool(UNSURE.search(reply.lower())) + (len(reply.split()) > LONGEST)
    return max(-1.0, 1 - 2 * faults / 3)


def fact_of(notes: str) -> str:
    """Return the fact in the notes."""
    facts: list[str] = [fact for values in PHRASES["facts"].values() for fact in values]
    return next(fact for fact in facts if re.search(rf"\b{fact}\b", notes))


# The commands


class Commands:
    """Commands in a folder with a person's files; each runs only once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.summaries: list[Row] = []

    def run(self, *words: str, may_fail: bool = False) -> Row:
        """Run a command that has no record; record its `seconds`, `peak_mb` and exit `code`.

        Raises:
            SystemExit: it failed without `may_fail`, or another command was recorded in its place.
        """
        record_file = self.folder / "done" / f"{len(self.summaries)}_{words[0]}.json"
        if not record_file.is_file():
            record_file.write_text(
                json.dumps(self._run(words, record_file.with_suffix(".log"), may_fail)), encoding="utf-8"
            )
        summary: Row = json.loads(record_file.read_text("utf-8"))
        if summary["words"] != list(words):
            raise SystemExit(f"{record_file} has other settings: choose another --out")
        self.summaries.append(summary)
        return summary

    def _run(self, words: Sequence[str], log: Path, may_fail: bool) -> Row:
        log.parent.mkdir(exist_ok=True)
        started = time.perf_counter()
        code, peak = run_command([sys.executable, "-m", "text2grad.cli", *words], log, self.folder)
        last = log.read_text("utf-8").strip().splitlines()[-1]
        if code and not may_fail:
            raise SystemExit(f"{' '.join(words)}: {last}")
        seconds = time.perf_counter() - started
        print(f"{self.folder.name}: {words[0]} ({seconds:.0f} s)", file=sys.stderr, flush=True)
        return {"words": words, "seconds": round(seconds, 1), "peak_mb": round(peak), "code": code, "last": last}


def run_seed(args: argparse.Namespace, seed: int) -> Row:
    """Run all commands for one seed; return the figures."""
    folder = (args.out / f"seed-{seed}").resolve()
    write_files(folder, seed, args.start)
    options = ["--config", "own", "--run.folder", "mine", "--run.seed", str(seed), *settings(args.set)]
    options += ["--task.data", "questions.jsonl", "--task.heldout_data", "heldout.jsonl"]
    commands, trained = Commands(folder), "offline" if args.offline else "text2grad"
    commands.run("import", "remarks.csv", *options)
    commands.run("sft", *options)
    if args.offline:
        training = commands.run("train", "--offline", "mine/feedback.jsonl", "--name", trained, *options)
    else:
        commands.run("train-reward", *options)
        training = commands.run("train", *options_after_gate(folder), *options, may_fail=True)
    policies = "sft" if training["code"] else f"sft,{trained}"
    commands.run("sample", "--prompts", "heldout.jsonl", "--with", policies, *options)
    commands.run("report", "mine")
    summaries = list(commands.summaries)
    return {
        "seconds": round(sum(summary["seconds"] for summary in summaries)),
        "peak_mb": max(summary["peak_mb"] for summary in summaries),
        **judge_policies(commands, policies, options),
        "train_refused": training["last"] if training["code"] else None,
        **({} if args.offline else reward_model_figures(folder)),
    }


def options_after_gate(folder: Path) -> list[str]:
    """Return the option to train on spans alone if only these are fit."""
    gate = json.loads((folder / "mine" / "reward_model" / "gate.json").read_text("utf-8"))
    only_spans_fit = not gate["fit"] and (gate["spans_alone"] or {}).get("fit")
    return ["--credit.outcome_weight", "0"] if only_spans_fit else []


def settings(options: Sequence[str]) -> list[str]:
    """Return `KEY=VALUE` settings as options."""
    return [word for option in options for word in (f"--{option.partition('=')[0]}", option.partition("=")[2])]


def judge_policies(commands: Commands, policies: str, options: Sequence[str]) -> Row:
    """Return mean scores of sampled and greedy answers of the policies to the held-out mails."""
    results: Row = {f"judge_{name}{way}": None for way in ("", "_greedy") for name in ("sft", "text2grad")}
    for way, temperature, answers in (("", "1.0", SAMPLES), ("_greedy", "0.0", 1)):
        answers_file = commands.folder / f"answers{way}.jsonl"
        commands.run("sample", "--prompts", "heldout.jsonl", "-k", str(answers), "--out", answers_file.name,
                     "--with", policies, *options, "--generation.temperature", temperature)  # fmt: skip
        records = t2g.read_records(answers_file)
        for name, policy in zip(("sft", "text2grad"), policies.split(","), strict=False):
            scores = [
                score_reply(record.prompt[-1].content, record.response)
                for record in records
                if record.meta["policy"] == policy
            ]
            results[f"judge_{name}{way}"] = round(fmean(scores), 3)
    return results


def reward_model_figures(folder: Path) -> Row:
    """Return the figures and the verdict of the gate of `train-reward`."""
    gate = json.loads((folder / "mine" / "reward_model" / "gate.json").read_text("utf-8"))
    poor, chance = gate["figures"]["by_label"]["poor"]
    return {
        "gate_fit": gate["fit"],
        "gate_reasons": gate["reasons"],
        "reward_model_poor_f1": round(poor, 3),
        "random_poor_f1": round(chance, 3),
    }


if __name__ == "__main__":
    with exit_on_user_error():
        main()
