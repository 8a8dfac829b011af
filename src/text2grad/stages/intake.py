"""`import`: convert people's feedback to records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from text2grad.config import Config
from text2grad.errors import EXIT_SOME_RECORDS_FAILED
from text2grad.feedback import Feedback
from text2grad.jsonl import read_jsonl, write_jsonl, writing
from text2grad.stages.run_folder import RunFolder, write_json

if TYPE_CHECKING:
    from text2grad.data.records import ImportResult


def run_import(
    config: Config,
    source: Path,
    kind: str,
    out: Path | None,
    names: Sequence[str] = (),
    scales: Sequence[str] = (),
    no_prompt: bool = False,
    sheet: str = "",
    skip: bool = False,
) -> dict[str, Any]:
    """Add people's feedback to the run's records, or to the file `out`.

    `names`, `scales`, `no_prompt`, `sheet` and `skip` are arguments of
    `data.records.import_feedback`. Without `out`, the figures of each data set are also written to
    `evaluation/import_<data set>.json`, for the report.
    """
    from text2grad.data.records import import_feedback

    run = RunFolder.of(config)
    characters, write = config.task.context_characters, run.turn_writer()
    imported = import_feedback(source, kind, characters, names, scales, write, no_prompt, sheet, skip)
    return store_import(run, imported, out)


def store_import(run: RunFolder, imported: ImportResult, out: Path | None = None) -> dict[str, Any]:
    """Add imported records to the run's records, or to the file `out`.

    Returns:
        The import report, the file's record counts by data set, and the lines of the import that
        are not empty; ratings that lack a scale come first, with exit code 3.
    """
    from text2grad.data.records import merge_feedback, reports_by_data_set

    target = out or run.feedback_file
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    existing = list(read_jsonl(target, Feedback)) if target.is_file() else []
    records = merge_feedback(existing, imported.records)
    write_jsonl(target, records)
    added = len(records) - len(existing)
    held = reports_by_data_set(records)
    for name, report in held.items() if out is None else ():
        figures = report.model_dump(exclude={"source"})
        write_json(run.evaluation / f"import_{name}.json", figures)
    lines = {
        "scales": imported.scales,
        "marked_as_quoted": imported.anchored,
        "ignored": imported.ignored,
        "losses": [line for line in imported.losses if line not in imported.unscored],
    }
    return {
        **({"unscored": imported.unscored} if imported.unscored else {}),
        **imported.report.model_dump(),
        "added": added,
        "replaced": imported.report.records - added,
        "file_holds": {name: report.records for name, report in held.items()},
        "out": str(target),
        **{name: values for name, values in lines.items() if values},
        **({"exit_code": EXIT_SOME_RECORDS_FAILED} if imported.unscored else {}),
    }
