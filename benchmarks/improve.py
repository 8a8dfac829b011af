"""Does `improve` read files as people have them, mark what they point at, and make a model better?

- `files`: workbooks and tables that the script writes, in seven languages, mixed and with an
  exporter's names; `read_without_options` of them are read with no option, and `columns_right` is
  the share of columns that hold what the proposal says.
- `anchor_precision`: of the words that a comment quotes and that are marked for it
  (`data/spans/anchors.py`), the share that people marked themselves (SQuALITY) or changed in their
  correction (DeFacto); null without `--data`.
- `before`, `after`: with `--train`, the share of rules that the base model and the kept policy keep
  on the held-out questions of examples/feedback.xlsx (no superlative, metric units, price last; 0
  for an answer that does not name the product), as this script judges them; `minutes` is what the
  run took, `estimated` what it said.

    OMP_NUM_THREADS=1 python benchmarks/improve.py [--data ../shared/data] [--train runs/improve]

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
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
from text2grad.stages.improve import ImproveOptions, read_source, run_improve  # noqa: E402
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
SUPERLATIVE = re.compile(
    r"\b(best|finest|most \w+|unbeatable|perfect\w*|greatest|ultimate|\w+iest)\b", re.IGNORECASE
)
IMPERIAL = re.compile(r"\b(inch\w*|in\.|feet|foot|ft|pounds?|lbs?)\b|\d\"", re.IGNORECASE)


def write_files(folder: Path) -> Iterator[tuple[Path, Sequence[str]]]:
    """The files and their headers: each header as a workbook, every other one also as a table or an
    .ods."""
    for number, header in enumerate(HEADERS):
        rows = shop_rows(header)
        yield write_xlsx(folder / f"{number}.xlsx", {"Notes": [("a", "b"), ("c", "d")], "Feedback": rows}), header
        part, page = ",;\t"[number % 3], ("utf-8", "cp1252")[number % 2]
        yield write_table(folder / f"{number}.csv", rows, part, page), header
        yield write_ods(folder / f"{number}.ods", "Feedback", rows), header


def reading() -> dict[str, Any]:
    """Read all files without an option."""
    right: list[bool] = []
    read = files = 0
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(find_config("human_qa"), ["--run.folder", f"{folder}/run"])
        for path, header in write_files(Path(folder)):
            files += 1
            try:
                source = read_source(config, path, ImproveOptions())
            except UserError as error:
                print(error, file=sys.stderr)
                right += [False] * len(FIELDS)
                continue
            read += bool(source.records)
            columns = source.proposal.columns if source.proposal else {}
            right += [columns.get(ours) == theirs for ours, theirs in zip(FIELDS, header, strict=False)]
    return {"files": files, "read_without_options": read, "columns_right": round(fmean(right), 3)}


def pointed_at(data: Path) -> Iterator[bool]:
    """Yield, for each place that a comment quotes, True if people point at it."""
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
    """The share of the three rules of the shop that an answer keeps; 0 if it does not name the
    product."""
    product = re.search(r"Product: (.*?)\.", question)
    price = re.search(r"Price: (\d+) euros", question)
    assert product and price, question
    if product[1].casefold() not in answer.casefold():
        return 0.0
    sentences = [part for part in re.split(r"(?<=[.!?])\s+", answer.strip()) if part]
    priced = [bool(re.search(rf"\b{price[1]}\b", sentence)) for sentence in sentences]
    last = bool(priced) and priced[-1] and not any(priced[:-1])
    return fmean([not SUPERLATIVE.search(answer), not IMPERIAL.search(answer), last])


def training(run: Path) -> dict[str, Any]:
    """Improve a model with the feedback of the example, and judge its answers by the rules."""
    config = load_config(find_config("own"), ["--run.folder", str(run)])
    summary = run_improve(config, ROOT / "examples" / "feedback.xlsx", ImproveOptions())
    questions = [json.loads(line) for line in (run / "heldout.jsonl").read_text("utf-8").splitlines()]
    asked = {question["id"]: question["prompt"] for question in questions}

    def judged(name: str) -> float:
        answers = json.loads((run / "evaluation" / "qa-questions" / f"{name}.answers.json").read_text("utf-8"))
        return round(fmean([rules_kept(asked[row["id"]], row["response"]) for row in answers]), 3)

    figures = {name: judged(name) for name in ("base", *summary.steps)}
    print(f"rules kept: {figures}", file=sys.stderr)
    times = {"minutes": summary.minutes, "estimated": summary.estimated_minutes}
    return {"before": figures["base"], "after": figures[summary.kept], **times}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="SQuALITY and DeFacto")
    parser.add_argument("--train", type=Path, help="train in this run folder")
    chosen = parser.parse_args()
    figures = reading()
    there = chosen.data.is_dir()
    figures["anchor_precision"] = round(fmean(pointed_at(chosen.data)), 3) if there else None
    trained = dict.fromkeys(("before", "after", "minutes", "estimated"))
    print(json.dumps({**figures, **(training(chosen.train) if chosen.train else trained)}))


if __name__ == "__main__":
    main()
