"""What text2grad does without torch: run by `make wheel WHEEL_EXTRAS=`.

A plain script, because the core brings no pytest. `tests/test_core_only.py` runs it beside torch,
which is hidden.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import text2grad
from chat_server import GOOD, KEY, ChatServer, said
from places import DATA
from text2grad.data.export import WRITERS
from text2grad.errors import EXTRAS

TEXT = "The fair is next week, they say."


def absent() -> list[str]:
    """The packages of the extra `train` that can be imported here: there must be none."""
    found = []
    for package in (package for package, extra in EXTRAS.items() if extra == "train"):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(package)
            found.append(package)
    return found


def command(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command line."""
    cli = importlib.import_module("text2grad.cli")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(words)
        except SystemExit as left:
            return int(left.code or 0), out.getvalue(), err.getvalue()
    raise AssertionError("a command always leaves")


def pays_tokens(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([TEXT] * 9, trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    ids = tokenizer.encode(TEXT).ids
    said = text2grad.parse('{"critique": "No.", "good_spans": [], "poor_spans": ["next week"], "score": -1}', TEXT)
    assert isinstance(said, text2grad.Critique)
    rewards = text2grad.Aligner(tokenizer).rewards(said, ids, scheme=text2grad.CreditSettings(outcome_weight=0))
    assert len(rewards) == len(ids) and min(rewards) == -1 and max(rewards) == 0


def annotates(folder: Path) -> None:
    responses, out = folder / "rows.jsonl", folder / "feedback.jsonl"
    rows = [{"id": str(n), "prompt": "When?", "response": f"answer {n}"} for n in range(3)]
    responses.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    os.environ["OPENAI_API_KEY"] = KEY
    server = ChatServer(lambda name, turn, body: said(GOOD))
    critic = ("--critic.kind", "prompted", "--critic.prompted.model", "judge")
    critic += ("--critic.prompted.base_url", server.url)
    code, _, err = command("annotate", "--responses", str(responses), "--out", str(out), "--no-canaries", *critic)
    server.close()
    assert code == 0, err
    assert [record.spans[0].text for record in text2grad.read_records(out)] == ["answer"] * 3
    assert command("feedback-report", str(out))[0] == 0


def judges_programs(folder: Path) -> None:
    task = text2grad.load_task(text2grad.TaskSettings(name="demo"))
    problem = task.examples("train")[0]
    with text2grad.Runner() as runner:
        critic = text2grad.ProgramCritic(runner)
        good, bad = critic.critique([problem] * 2, [problem.reference, "def f(xs):\n    return None\n"])
    assert isinstance(good, text2grad.Critique) and good.score == 1
    assert isinstance(bad, text2grad.Critique) and bad.score == -1 and bad.spans


def imports_and_exports(folder: Path) -> None:
    for name, count in (("prodigy-spans/annotations.jsonl", 2), ("google-sheets/Replies - Sheet1.csv", 2)):
        found = text2grad.import_feedback(DATA.parent / "formats" / name, no_prompt=True)
        assert len(found.records) == count
        for kind in sorted(WRITERS.keys() - {"preference"}):  # one answer to a prompt makes no pair
            text2grad.export(found.records, kind, folder / f"{kind}.out")
    assert text2grad.write_records(folder / "own.jsonl", found.records) == count
    assert text2grad.import_feedback(folder / "own.jsonl").records == found.records
    rows = json.loads((DATA / "ultrafeedback.jsonl").read_text("utf-8"))
    assert len(text2grad.responses_of(rows) or ()) == 2


def says_what_training_needs(folder: Path) -> None:
    code, out, err = command("sft", "--run.folder", str(folder / "run"))
    assert (code, out) == (1, "") and err.count("\n") == 1, err
    assert err.startswith("error: this needs ") and "pip install 'text2grad[train]'" in err
    assert command("--help")[0] == 0 and command("train", "--help")[0] == 0


CHECKS = (pays_tokens, annotates, judges_programs, imports_and_exports, says_what_training_needs)


if __name__ == "__main__":
    assert absent() == [], f"not the core alone: {', '.join(absent())}"
    for check in CHECKS:
        with TemporaryDirectory() as folder:
            check(Path(folder))
        print(f"ok  {check.__name__.replace('_', ' ')}")
    assert "torch" not in sys.modules
