"""Measure whether `improve` reads people's files, marks the right words, and improves a model.

- `files`: workbooks and tables that the script writes, in seven languages, mixed, and with the
  column names of an exporter. `read_without_options` of them need no option; `columns_right` is the
  share of columns whose meaning is proposed correctly.
- `anchor_precision`: the share of quoted words marked for a comment (`data/spans/anchors.py`) that
  people marked themselves (SQuALITY) or changed in their correction (DeFacto); null without
  `--data`.
- `before`, `after`: with `--train`, the share of rules that the base model and the better policy
  keep on the held-out questions of examples/feedback.xlsx, as this script judges them: no
  superlative, metric units, price last; 0 for an answer that does not name the product.
- `prompted`: the same of the base model with the three rules in its system prompt, greedy.
- `minutes`: the time of the run; `processor_minutes`: its processor time; `estimated`: the minutes
  in its plan.

    OMP_NUM_THREADS=1 python benchmarks/improve.py [--data ../shared/data] [--train runs/improve]

With `--train` it takes about 11 minutes of one idle core, with `--epochs 1` about 3. The last line
of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from feedback_files import ENGLISH, GERMAN, MIXED, shop_rows, write_table  # noqa: E402
from text2grad.config import find_config, load_config  # noqa: E402
from text2grad.data.spans.anchors import find_anchors  # noqa: E402
from text2grad.data.spans.marks import diff_spans  # noqa: E402
from text2grad.errors import UserError  # noqa: E402
from text2grad.feedback import Message  # noqa: E402
from text2grad.policy.load import load_policy  # noqa: E402
from text2grad.policy.local_chat import LocalChat  # noqa: E402
from text2grad.policy.settings import GenerationSettings, PolicySettings  # noqa: E402
from text2grad.stages.improve.run import run_improve  # noqa: E402
from text2grad.stages.improve.source import ImproveOptions, read_source  # noqa: E402
from workbook_files import write_ods, write_xlsx  # noqa: E402

FIELDS = ("prompt", "response", "critique", "score", "corrected", "annotator")
HEADERS = (
    ENGLISH,
    GERMAN,
    MIXED,
    ("Demande", "Réponse", "Commentaire", "Note", "Réponse corrigée", "Auteur", "Date"),
    ("Pregunta", "Respuesta", "Comentario", "Valoración", "Corrección", "Quién", "Fecha"),
    ("Domanda", "Risposta", "Commento", "Voto", "Risposta corretta", "Chi", "Data"),
    ("Pergunta", "Resposta", "Comentário", "Nota", "Resposta corrigida", "Quem", "Data"),
    ("Vraag", "Antwoord", "Opmerking", "Cijfer", "Beter antwoord", "Wie", "Datum"),
    ("user_message", "model_output", "reviewer_notes", "score", "ideal_response", "rater", "timestamp"),
    ("A", "B", "C", "D", "E", "F", "G"),
)
RULES = (
    "You write shop texts. Use no superlatives (best, finest, perfect, ...). Use metric units only (cm, kg),"
    " no inches, feet or pounds. Name the product. State the price once, in the last sentence."
)
SUPERLATIVE = re.compile(
    r"\b(best|finest|most \w+|unbeatable|perfect\w*|greatest|ultimate|\w+iest)\b", re.IGNORECASE
)
IMPERIAL = re.compile(r"\b(inch\w*|in\.|feet|foot|ft|pounds?|lbs?)\b|\d\"", re.IGNORECASE)


def write_files(folder: Path) -> Iterator[tuple[Path, Sequence[str]]]:
    """Yield files and their headers: each header as .xlsx, .csv and .ods."""
    for number, header in enumerate(HEADERS):
        rows = shop_rows(header)
        yield write_xlsx(folder / f"{number}.xlsx", {"Notes": [("a", "b"), ("c", "d")], "Feedback": rows}), header
        separator, encoding = ",;\t"[number % 3], ("utf-8", "cp1252")[number % 2]
        yield write_table(folder / f"{number}.csv", rows, separator, encoding), header
        yield write_ods(folder / f"{number}.ods", "Feedback", rows), header


def measure_reading() -> dict[str, Any]:
    """Read all files without an option, and return how many and how well."""
    correct: list[bool] = []
    readable = files = 0
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(find_config("human_qa"), ["--run.folder", f"{folder}/run"])
        for path, header in write_files(Path(folder)):
            files += 1
            try:
                source = read_source(config, path, ImproveOptions())
            except UserError as error:
                print(error, file=sys.stderr)
                correct += [False] * len(FIELDS)
                continue
            readable += bool(source.records)
            columns = source.proposal.columns if source.proposal else {}
            correct += [columns.get(field) == name for field, name in zip(FIELDS, header, strict=False)]
    return {"files": files, "read_without_options": readable, "columns_right": round(fmean(correct), 3)}


def pointed_at(data: Path) -> Iterator[bool]:
    """Yield True or False for each quoted place: True if people point at it."""
    for line in (data / "squality_human_eval" / "span_comments_flat.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        for span in row["spans"]:
            if span["start"] is not None:
                for start, end in find_anchors(" ".join(span["comment"]), row["response"]):
                    yield start < span["end"] and span["start"] < end
    for part in ("train", "val", "test"):
        for line in (data / "defacto" / f"{part}.jsonl").read_text("utf-8").splitlines():
            row = json.loads(line)
            feedback = row["feedback"] if isinstance(row["feedback"], dict) else {}
            spans, _ = diff_spans(row["candidate"], feedback.get("summary") or row["candidate"])
            for start, end in find_anchors(feedback.get("explanation") or "", row["candidate"]) if spans else ():
                yield any(start < span.end and span.start < end for span in spans)


def rules_kept(question: str, answer: str) -> float:
    """Return the share of the shop's three rules that an answer keeps.

    It is 0 for an answer that does not name the product.
    """
    product = re.search(r"Product: (.*?)\.", question)
    price = re.search(r"Price: (\d+) euros", question)
    assert product and price, question
    if product[1].casefold() not in answer.casefold():
        return 0.0
    sentences = [part for part in re.split(r"(?<=[.!?])\s+", answer.strip()) if part]
    has_price = [bool(re.search(rf"\b{price[1]}\b", sentence)) for sentence in sentences]
    is_last = bool(has_price) and has_price[-1] and not any(has_price[:-1])
    return fmean([not SUPERLATIVE.search(answer), not IMPERIAL.search(answer), is_last])


def measure_prompt(questions: Sequence[str]) -> float:
    """Return the mean share of rules that the base model keeps when its prompt states them."""
    policy = load_policy(PolicySettings(model="smollm2", device="cpu"))
    chat = LocalChat(policy, GenerationSettings(max_new_tokens=120, temperature=0.0), "base")
    rules = Message(role="system", content=RULES)
    answers = chat.complete([(rules, Message(role="user", content=question)) for question in questions])
    texts = [getattr(answer, "text", "") for answer in answers]
    return round(fmean(rules_kept(*pair) for pair in zip(questions, texts, strict=True)), 3)


def measure_training(run: Path, epochs: int | None) -> dict[str, Any]:
    """Improve a model with the example's feedback, and judge its answers by the rules."""
    limit = [] if epochs is None else ["--sft.epochs", str(epochs), "--offline.epochs", str(epochs)]
    config = load_config(find_config("own"), ["--run.folder", str(run), *limit])
    started = time.process_time()
    summary = run_improve(config, ROOT / "examples" / "feedback.xlsx", ImproveOptions())
    questions = [json.loads(line) for line in (run / "heldout.jsonl").read_text("utf-8").splitlines()]
    prompts = {question["id"]: question["prompt"] for question in questions}

    def mean_rules_kept(name: str) -> float:
        answers = json.loads((run / "evaluation" / "qa-questions" / f"{name}.answers.json").read_text("utf-8"))
        return round(fmean([rules_kept(prompts[row["id"]], row["response"]) for row in answers]), 3)

    figures = {name: mean_rules_kept(name) for name in ("base", *summary.steps)}
    print(f"rules kept: {figures}", file=sys.stderr)
    processor_minutes = round((time.process_time() - started) / 60, 1)
    return {
        "before": figures["base"],
        "after": figures[summary.kept],
        "prompted": measure_prompt(list(prompts.values())),
        "minutes": summary.minutes,
        "processor_minutes": processor_minutes,
        "estimated": summary.estimated_minutes,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="SQuALITY and DeFacto")
    parser.add_argument("--train", type=Path, help="train in this run folder")
    parser.add_argument("--epochs", type=int, help="of sft and offline; default: as derived")
    arguments = parser.parse_args()
    figures = measure_reading()
    has_data = arguments.data.is_dir()
    figures["anchor_precision"] = round(fmean(pointed_at(arguments.data)), 3) if has_data else None
    names = ("before", "after", "prompted", "minutes", "processor_minutes", "estimated")
    training = measure_training(arguments.train, arguments.epochs) if arguments.train else dict.fromkeys(names)
    print(json.dumps({**figures, **training}))


if __name__ == "__main__":
    main()
