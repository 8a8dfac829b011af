"""`annotate` without a file: what the policy sampled, or the data set's own drafts, before a scripted server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chat_server import KEY, ChatServer, completion, last_message, said
from text2grad.cli import main
from text2grad.feedback import Feedback
from text2grad.jsonl import read_jsonl
from text2grad.stages import sampling as stage
from text2grad.stages.run_folder import RunFolder
from text2grad.tasks.base import prompt_version

SAMPLED = "They grow well."
DRAFT = "The tomatoes grow."
WORDS = "Leaves out the question."
JUDGED = '{"critique": "It is short.", "good_spans": [], "poor_spans": ["grow"], "score": -0.5}'

Run = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def server() -> Iterator[ChatServer]:
    made = ChatServer(lambda name, turn, body: said(JUDGED))
    yield made
    made.close()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`annotate` with a policy that always says `SAMPLED`: exit code, summary, stderr."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(RunFolder, "load_policy", lambda run, *_: None)
    monkeypatch.setattr(stage, "sample", lambda policy, examples, *_: [([1], SAMPLED)] * len(examples))

    def call(data: Path, *words: str) -> tuple[int, dict[str, Any], str]:
        capsys.readouterr()
        settings = (
            "--task.data",
            str(data),
            "--run.folder",
            str(tmp_path / "run"),
            "--annotate.critic",
            "prompted",
        )
        with pytest.raises(SystemExit) as left:
            main(
                [
                    "annotate",
                    *settings,
                    "--critic.prompted.model",
                    "m",
                    "--no-canaries",
                    "--annotate.samples_per_prompt",
                    "1",
                    "--json",
                    *words,
                ]
            )
        printed, err = capsys.readouterr()
        return int(left.value.code or 0), json.loads(printed.splitlines()[-1]) if printed else {}, err

    return call


def slf5k(path: Path, count: int = 1, **more: str) -> Path:
    rows = [
        {"id": f"t{n}", "title": f"Question {n}", "post": f"Post {n}.", "ideal_human_summary": "Ideal.", **more}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def programs(path: Path) -> Path:
    row = {
        "question": "Write double(n).",
        "solution": "def double(n):\n    return 2 * n\n",
        "test": "from solution import double\n\ndef test_double():\n    assert double(2) == 4\n",
    }
    path.write_text(json.dumps(row) + "\n")
    return path


def written(tmp_path: Path, name: str = "feedback") -> list[Feedback]:
    return list(read_jsonl(tmp_path / "run" / f"{name}.jsonl", Feedback))


FEEDBACK = {"feedback": WORDS, "generated_summary_for_feedback": DRAFT}
SUMMARIES = ("--task.name", "summarization", "--task.heldout_share", "0")
PROGRAMS = ("--task.name", "code", "--task.heldout_share", "0")


def data_of(task: str, tmp_path: Path) -> tuple[Path, tuple[str, ...]]:
    more = {"feedback": WORDS} if task == "SLF5K without drafts" else FEEDBACK
    return slf5k(tmp_path / "slf5k.jsonl", **more), SUMMARIES


@pytest.mark.parametrize("task", ["SLF5K", "SLF5K without drafts"])
def test_feedback_on_a_draft_is_not_the_critique_of_what_was_sampled(
    server: ChatServer, run: Run, tmp_path: Path, task: str
) -> None:
    data, words = data_of(task, tmp_path)
    code, _, err = run(data, *words, "--critic.prompted.base_url", server.url)
    assert code == 0, err
    (record,) = written(tmp_path)
    assert (record.response, record.critique, record.source.kind) == (SAMPLED, "It is short.", "llm")
    assert WORDS not in last_message(server.bodies[0])
    assert record.meta["human_feedback"] == WORDS
    # Read again as a file, it is still about the draft.
    code, _, err = run(
        data,
        *words,
        "--critic.prompted.base_url",
        server.url,
        "--anchor",
        "--responses",
        str(tmp_path / "run" / "feedback.jsonl"),
        "--out",
        str(tmp_path / "again.jsonl"),
    )
    (again,) = read_jsonl(tmp_path / "again.jsonl", Feedback)
    assert (code, again.critique, again.source.kind) == (0, "It is short.", "llm"), err


def test_the_drafts_of_a_data_set_are_annotated_with_its_feedback(
    server: ChatServer, run: Run, tmp_path: Path
) -> None:
    data, words = data_of("SLF5K", tmp_path)
    code, _, err = run(data, *words, "--critic.prompted.base_url", server.url, "--anchor")
    assert code == 0, err
    (record,) = written(tmp_path)
    assert (record.response, record.critique, record.source.kind) == (DRAFT, WORDS, "human")
    assert [span.text for span in record.spans] == ["grow"]
    assert f"<feedback>\n{WORDS}\n</feedback>" in last_message(server.bodies[0])


def test_a_data_set_without_drafts_has_nothing_to_anchor(run: Run, tmp_path: Path) -> None:
    data, words = data_of("SLF5K without drafts", tmp_path)
    code, _, err = run(data, *words, "--anchor")
    assert code == 1 and "has a draft with feedback" in err and err.count("\n") == 1


def test_a_file_of_requests_holds_those_of_training_and_of_held_out_prompts(run: Run, tmp_path: Path) -> None:
    data, requests = slf5k(tmp_path / "slf5k.jsonl", 12), tmp_path / "requests.jsonl"
    words = ("--task.name", "summarization", "--task.heldout_share", "0.4")
    for _ in range(2):  # the second time in place of the first
        code, summary, err = run(data, *words, "--write-requests", str(requests))
        assert code == 75, err
        asked = [json.loads(line) for line in requests.read_text().splitlines()]
        assert (len(asked), summary["pending"]) == (12, 12)
    assert len({line["custom_id"] for line in asked}) == 12
    answers = [
        {"custom_id": line["custom_id"], "response": {"status_code": 200, "body": completion(JUDGED)}}
        for line in asked
    ]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
    code, summary, err = run(data, *words, "--read-answers", str(tmp_path / "answers.jsonl"))
    held = len(written(tmp_path, "feedback_heldout"))
    assert (code, summary["ok"], held + len(written(tmp_path))) == (0, 12, 12), err
    assert 0 < held < 12


def test_of_held_out_prompts_as_many_are_annotated_as_asked_for(run: Run, tmp_path: Path) -> None:
    data, words = (
        slf5k(tmp_path / "slf5k.jsonl", 12),
        ("--task.name", "summarization", "--task.heldout_share", "0.4"),
    )
    counts = []
    for more in (
        ("--annotate.heldout", "1"),
        ("--evaluate.limit", "2"),
        ("--annotate.heldout=1", "--evaluate.limit=2"),
    ):
        path = tmp_path / "requests.jsonl"
        run(data, *words, *more, "--write-requests", str(path))
        counts.append(len(path.read_text().splitlines()))
    trained = counts[0] - 1
    assert trained > 4 and counts == [trained + 1, trained + 2, trained + 1]


def test_only_who_is_asked_needs_a_key(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    words = (slf5k(tmp_path / "slf5k.jsonl"), *SUMMARIES)
    code, summary, err = run(*words, "--plan")
    assert (code, summary["requests"]) == (0, 1), err
    code, _, err = run(*words, "--write-requests", str(tmp_path / "requests.jsonl"))
    assert code == 75, err
    code, _, err = run(*words)
    assert code == 1 and "no API key in OPENAI_API_KEY" in err


TESTS = "from solution import double\n\ndef test_double():\n    assert double(2) == 4\n"
WRONG = "def double(n):\n    return n + 1  # grow\n"


@pytest.mark.parametrize("prompt", ["code", "code_plain"])
def test_a_judge_of_programs_is_shown_what_came_of_the_tests_where_it_is_known(
    server: ChatServer, run: Run, tmp_path: Path, prompt: str
) -> None:
    known = [{"outcome": "failed", "test_output": "test_double: assert 3 == 4</outcome>"}, {"outcome": "passed"}]
    for came in [*known, {}, {"outcome": "weak_tests"}, {"outcome": "no_program"}, {"outcome": ["failed"]}]:
        row = {"id": "a", "prompt": f"Double. {came}", "response": WRONG, "meta": {"tests": TESTS, **came}}
        (tmp_path / "rows.jsonl").write_text(json.dumps(row))
        words = (
            "--task.name",
            "code",
            "--critic.prompted.base_url",
            server.url,
            "--critic.prompted.prompt",
            prompt,
        )
        out = (
            "--responses",
            str(tmp_path / "rows.jsonl"),
            "--out",
            str(tmp_path / "out.jsonl"),
            "--no-resume",
        )
        code, _, err = run(tmp_path / "none", *words, *out)
        assert code == 0, err
        record = list(read_jsonl(tmp_path / "out.jsonl", Feedback))[-1]
        shown = last_message(server.bodies[-1]).partition("<outcome>")[2]
        name = f"{prompt}_tested" if came in known else prompt
        assert record.source.prompt_version == prompt_version(name)
        assert shown.startswith(f"\n{came['outcome']}\n") if came in known else not shown
        assert shown.count("</outcome>") == (came in known)


def test_sampled_programs_are_run_before_they_are_judged_if_asked_for(
    server: ChatServer, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "sample", lambda policy, examples, *_: [([1], WRONG)] * len(examples))
    words = (programs(tmp_path / "programs.jsonl"), *PROGRAMS, "--critic.prompted.base_url", server.url)
    code, _, err = run(*words, "--annotate.run_tests", "true")
    assert code == 0, err
    (record,) = written(tmp_path)
    assert (record.meta["outcome"], record.source.prompt_version) == ("failed", prompt_version("code_tested"))
    assert record.meta["test_output"] == "test_double: double(2) gave 3, expected 4"
    assert f"<outcome>\nfailed\n{record.meta['test_output']}\n</outcome>" in last_message(server.bodies[0])
    run(*words)
    assert "<outcome>" not in last_message(server.bodies[1])
