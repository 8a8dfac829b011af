"""`annotate` without a file: what the policy sampled, or the data set's own drafts, before a
scripted server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from annotating import Ended, Job, batch_line
from chat_server import ChatServer, last_message, said
from text2grad.feedback import Feedback
from text2grad.jsonl import read_jsonl
from text2grad.stages import sampling as stage
from text2grad.stages.run_folder import RunFolder
from text2grad.tasks.base import prompt_version

SAMPLED = "They grow well."
DRAFT = "The tomatoes grow."
WORDS = "Leaves out the question."
JUDGED = '{"critique": "It is short.", "good_spans": [], "poor_spans": ["grow"], "score": -0.5}'
TESTS = "from solution import double\n\ndef test_double():\n    assert double(2) == 4\n"
WRONG = "def double(n):\n    return n + 1  # grow\n"
SUMMARIES = ("--task.name", "summarization", "--task.heldout_share", "0")
WITH_HELDOUT = ("--task.name", "summarization", "--task.heldout_share", "0.4")

Run = Callable[..., Ended]


@pytest.fixture
def server(job: Job) -> ChatServer:
    return job.serve(said(JUDGED))


@pytest.fixture
def run(job: Job, server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`annotate` with a policy that always says `SAMPLED`."""
    monkeypatch.setattr(RunFolder, "load_policy", lambda run, *_: None)
    monkeypatch.setattr(stage, "sample", lambda policy, examples, *_: [([1], SAMPLED)] * len(examples))
    judge = ("--annotate.critic", "prompted", "--critic.prompted.model", "m", "--no-canaries")
    fixed = (*judge, "--run.folder", str(job.folder / "run"), "--annotate.samples_per_prompt", "1")
    url = ("--critic.prompted.base_url", server.url)
    return lambda data, *words: job.annotate("--task.data", str(data), *fixed, *url, *words)


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def slf5k(path: Path, count: int = 1, **more: str) -> Path:
    reference = "ideal_human_summary"
    return write(
        path,
        [
            {"id": f"t{n}", "title": f"Question {n}", "post": f"Post {n}.", reference: "Ideal.", **more}
            for n in range(count)
        ],
    )


@pytest.fixture
def drafts(job: Job) -> Path:
    return slf5k(job.folder / "drafts.jsonl", feedback=WORDS, generated_summary_for_feedback=DRAFT)


@pytest.fixture
def without_drafts(job: Job) -> Path:
    return slf5k(job.folder / "without.jsonl", feedback=WORDS)


def written(job: Job, name: str = "run/feedback") -> list[Feedback]:
    return list(read_jsonl(job.folder / f"{name}.jsonl", Feedback))


@pytest.mark.parametrize("data", ["drafts", "without_drafts"])
def test_feedback_on_a_draft_is_not_the_critique_of_what_was_sampled(
    job: Job, server: ChatServer, run: Run, data: str, request: pytest.FixtureRequest
) -> None:
    file = request.getfixturevalue(data)
    ended = run(file, *SUMMARIES)
    assert ended.code == 0, ended.err
    (record,) = written(job)
    assert (record.response, record.critique, record.source.kind) == (SAMPLED, "It is short.", "llm")
    assert WORDS not in last_message(server.bodies[0])
    assert record.meta["human_feedback"] == WORDS
    # Read again as a file, it is still about the draft.
    again = ("--responses", str(job.folder / "run" / "feedback.jsonl"), "--out", str(job.folder / "again.jsonl"))
    ended = run(file, *SUMMARIES, *again)
    (record,) = written(job, "again")
    assert (ended.code, record.critique, record.source.kind) == (0, "It is short.", "llm"), ended.err


def test_the_drafts_of_a_data_set_are_annotated_with_its_feedback(
    job: Job, server: ChatServer, run: Run, drafts: Path
) -> None:
    ended = run(drafts, *SUMMARIES, "--anchor")
    assert ended.code == 0, ended.err
    (record,) = written(job)
    assert (record.response, record.critique, record.source.kind) == (DRAFT, WORDS, "human")
    assert [span.text for span in record.spans] == ["grow"]
    assert f"<feedback>\n{WORDS}\n</feedback>" in last_message(server.bodies[0])


def test_a_data_set_without_drafts_has_nothing_to_anchor(run: Run, without_drafts: Path) -> None:
    ended = run(without_drafts, *SUMMARIES, "--anchor")
    assert ended.code == 1 and "has a draft with feedback" in ended.err and ended.err.count("\n") == 1


def test_a_file_of_requests_holds_those_of_training_and_of_held_out_prompts(job: Job, run: Run) -> None:
    data, requests, answers = (job.folder / name for name in ("slf5k.jsonl", "requests.jsonl", "answers.jsonl"))
    slf5k(data, 12)
    for _ in range(2):  # the second time in place of the first
        ended = run(data, *WITH_HELDOUT, "--write-requests", str(requests))
        asked = [json.loads(line)["custom_id"] for line in requests.read_text().splitlines()]
        assert (ended.code, len(asked), ended.summary["pending"]) == (75, 12, 12), ended.err
    assert len(set(asked)) == 12
    answers.write_text("\n".join(batch_line(id, JUDGED) for id in asked))
    ended = run(data, *WITH_HELDOUT, "--read-answers", str(answers))
    held = len(written(job, "run/feedback_heldout"))
    assert (ended.code, ended.summary["ok"], held + len(written(job))) == (0, 12, 12), ended.err
    assert 0 < held < 12


def test_of_held_out_prompts_as_many_are_annotated_as_asked_for(job: Job, run: Run) -> None:
    data, requests = slf5k(job.folder / "slf5k.jsonl", 12), job.folder / "requests.jsonl"
    counts = []
    one, two = ("--annotate.heldout", "1"), ("--evaluate.limit", "2")
    for limits in (one, two, (*one, *two)):
        run(data, *WITH_HELDOUT, *limits, "--write-requests", str(requests))
        counts.append(len(requests.read_text().splitlines()))
    trained = counts[0] - 1
    assert trained > 4 and counts == [trained + 1, trained + 2, trained + 1]


def test_only_who_is_asked_needs_a_key(job: Job, run: Run, drafts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    words = (drafts, *SUMMARIES, "--critic.prompted.base_url", "null")
    ended = run(*words, "--plan")
    assert (ended.code, ended.summary["requests"]) == (0, 1), ended.err
    assert run(*words, "--write-requests", str(job.folder / "requests.jsonl")).code == 75
    ended = run(*words)
    assert ended.code == 1 and "OPENAI_API_KEY" in ended.err


@pytest.mark.parametrize("prompt", ["code", "code_plain"])
def test_a_judge_of_programs_is_shown_what_came_of_the_tests_where_it_is_known(
    job: Job, server: ChatServer, run: Run, prompt: str
) -> None:
    known = [{"outcome": "failed", "test_output": "test_double: assert 3 == 4</outcome>"}, {"outcome": "passed"}]
    words = ("--task.name", "code", "--critic.prompted.prompt", prompt, "--no-resume", "--out", str(job.out))
    for outcome in [*known, {}, {"outcome": "weak_tests"}, {"outcome": "no_program"}, {"outcome": ["failed"]}]:
        meta = {"tests": TESTS, **outcome}
        row = {"id": "a", "prompt": f"Double. {outcome}", "response": WRONG, "meta": meta}
        file = write(job.folder / "rows.jsonl", [row])
        ended = run("none", *words, "--responses", str(file))
        assert ended.code == 0, ended.err
        record = written(job, "feedback")[-1]
        shown = last_message(server.bodies[-1]).partition("<outcome>")[2]
        name = f"{prompt}_tested" if outcome in known else prompt
        assert record.source.prompt_version == prompt_version(name)
        assert shown.startswith(f"\n{outcome['outcome']}\n") if outcome in known else not shown
        assert shown.count("</outcome>") == (outcome in known)


def test_sampled_programs_are_run_before_they_are_judged_if_asked_for(
    job: Job, server: ChatServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "sample", lambda policy, examples, *_: [([1], WRONG)] * len(examples))
    row: dict[str, object] = {"question": "Write double(n).", "solution": WRONG.replace("n + 1", "2 * n")}
    data = write(job.folder / "programs.jsonl", [row | {"test": TESTS}])
    words = (data, "--task.name", "code", "--task.heldout_share", "0")
    ended = run(*words, "--annotate.run_tests", "true")
    assert ended.code == 0, ended.err
    (record,) = written(job)
    assert (record.meta["outcome"], record.source.prompt_version) == ("failed", prompt_version("code_tested"))
    assert record.meta["test_output"] == "test_double: double(2) gave 3, expected 4"
    assert f"<outcome>\nfailed\n{record.meta['test_output']}\n</outcome>" in last_message(server.bodies[0])
    run(*words)
    assert "<outcome>" not in last_message(server.bodies[1])
