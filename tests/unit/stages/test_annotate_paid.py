"""What `annotate` pays: each answer once, never above the budget, and nothing paid is lost."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import openai  # noqa: F401 - for the forks of the command
import pytest

from annotating import Job, batch_line, decoded
from chat_server import GOOD, KEY, ChatServer, Reply, batch, error, escaped, last_message, name_of, said, said_with
from text2grad.cli import main
from text2grad.critics.canaries import canary_items
from text2grad.feedback import Feedback
from text2grad.jsonl import read_jsonl

FORTY = [f"n{n}" for n in range(40)]
ONE = (1000 * 2.5 + 100 * 10) / 1e6
"""USD of one answer of `said`."""
DEAREST = (1300 * 2.5 + 1024 * 10) / 1e6
"""USD, at the least, of the dearest answer to one of these questions: 1,300 bytes and 1,024
tokens."""


def test_one_text_is_paid_for_once_however_often_it_stands_there(job: Job) -> None:
    prompt = [{"role": "user", "content": "Why?"}]
    row = {"id": "p", "prompt": prompt, "source": {"kind": "llm"}, "response": "an answer."}
    file = job.folder / "r.jsonl"
    file.write_text(f"{json.dumps(row)}\n" * 3)
    server = job.serve(said(GOOD))
    summary = job.paid(file).summary
    assert (summary["requested"], summary["records"], len(server.bodies)) == (1, 3, 1)
    before = job.journal.read_text()
    job.paid(file, "--no-resume")
    assert len(server.bodies) == 2, "asked anew"
    assert (job.folder / "feedback.jsonl.journal.1").read_text() == before, "what was paid for is never deleted"


# Prices and budgets.


@pytest.mark.parametrize(
    ("prices", "words"),
    [
        ("gpt-4o: {inptu: 1, output: 2}", "gpt-4o"),
        ("gpt-4o: {input: cheap, output: 2}", "gpt-4o: input"),
        ("gpt-4o: [", "prices.yaml"),
        ("- 3", "no prices"),
    ],
)
def test_a_typo_in_the_prices(job: Job, prices: str, words: str) -> None:
    (job.folder / "prices.yaml").write_text(prices)
    code, _, err = job.paid(["a"], "--critic.prompted.prices", str(job.folder / "prices.yaml"))
    assert code == 1 and words in err and len(err.splitlines()) == 1


def test_a_plan_costs_nothing_and_names_what_it_does_not_know(job: Job) -> None:
    server = job.serve(said(GOOD))
    code, plan, _ = job.paid(FORTY, "--plan")
    assert (code, plan["records"], plan["requests"], plan["price"]) == (0, 40, 40, "known")
    expected = (plan["prompt_tokens"] * 2.5 + plan["completion_tokens"] * 10) / 1e6
    assert plan["usd"] == pytest.approx(expected, abs=1e-4)
    assert plan["usd_batch"] == pytest.approx(plan["usd"] / 2, abs=1e-4)
    assert server.bodies == [] and [path.name for path in job.folder.iterdir()] == ["r.jsonl"]
    unknown = ("--critic.prompted.model", "my-own")
    plan = job.paid(FORTY, "--plan", *unknown).summary
    assert plan["usd"] is None and "my-own" in plan["price"]
    assert job.paid(FORTY, "--budget-usd", "1", *unknown).code == 1, "a budget needs a price"


def test_a_plan_counts_what_is_still_to_be_asked(job: Job) -> None:
    server = job.serve(lambda name, turn, body: said(GOOD if name != "n1" else ""))
    job.paid(FORTY[:8], "--limit", "3")
    asked = len(server.bodies)
    plan = job.paid(FORTY[:8], "--plan").summary
    assert (plan["records"], plan["requests"], plan["completion_tokens"]) == (8, 5, 500)
    shown = sum(len(message["content"]) for message in server.bodies[0]["messages"])
    assert plan["prompt_tokens"] == pytest.approx(5 * shown / 4, abs=5)
    assert job.paid(FORTY[:8], "--plan", "--again").summary["requests"] == 6
    assert job.paid(FORTY[:8], "--plan", "--no-resume").summary["requests"] == 8
    assert len(server.bodies) == asked and plan["usd_paid_so_far"] > 0


USAGE: dict[str, Any] = {
    "none": None,
    "empty": {},
    "zero": {"prompt_tokens": 0, "completion_tokens": 0},
    "negative": {"prompt_tokens": -(10**6), "completion_tokens": -(10**6)},
    "nan": {"prompt_tokens": float("nan"), "completion_tokens": float("nan")},
    "infinite": {"prompt_tokens": float("inf"), "completion_tokens": float("-inf")},
    "huge": {"prompt_tokens": 10**400, "completion_tokens": 10**12},
    "words": {"prompt_tokens": "1", "completion_tokens": [1]},
    "half": {"prompt_tokens": 10},
    "list": [1, 2],
}


@pytest.mark.parametrize("name", ["honest", *USAGE])
def test_a_budget_binds_whatever_usage_a_server_reports_and_a_higher_one_goes_on(job: Job, name: str) -> None:
    budget = 0.06 if name == "honest" else 0.1
    server = job.serve(said(GOOD) if name == "honest" else said_with(GOOD, USAGE[name]))
    one = {"honest": ONE, "half": 1024 * 10 / 1e6}.get(name, DEAREST)
    code, summary, _ = job.paid(FORTY, "--budget-usd", str(budget))
    sent = len(server.bodies)
    assert code == 4 and summary["pending"] == 40 - summary["ok"] and len(job.records()) == summary["ok"]
    assert (10 if name == "honest" else 2) <= sent <= budget / one, "only open requests count at their dearest"
    assert sent * one <= summary["usd"] + 1e-9 <= budget + 1e-9
    assert name != "honest" or summary["usd"] == pytest.approx(one * sent)
    assert job.paid(FORTY, "--budget-usd", str(budget)).code == 4
    assert name == "honest" or len(server.bodies) == sent, "what was charged is remembered"
    ended = job.paid(FORTY, "--budget-usd", "2")
    assert (ended.code, ended.counts) == (0, (40, 40, 0, 0, 0)), "and nothing is stuck"
    assert len(server.bodies) == 40 and (name != "honest" or ended.summary["usd"] == pytest.approx(one * 40))


@pytest.mark.parametrize("reply", [ChatServer.CUT, (200, {}, b"<html>busy</html>")], ids=["cut", "html"])
def test_a_budget_counts_requests_whose_answer_was_lost(job: Job, reply: Reply) -> None:
    server = job.serve(lambda name, turn, body: reply if name > "n2" else said(GOOD))
    code, summary, _ = job.paid(FORTY[:10], "--budget-usd", "0.15")
    lost = len(server.bodies) - summary["ok"]
    assert code == 4 and 1 <= lost <= 0.15 / DEAREST and summary["ok"] == 3
    assert job.paid(FORTY[:10], "--budget-usd", "0.15").code == 4
    assert len(server.bodies) == lost + 3


def test_answers_of_an_unknown_price_count_at_their_dearest_once_there_is_a_budget(job: Job) -> None:
    server = job.serve(said(GOOD))
    prices = job.folder / "prices.yaml"
    prices.write_text("another: {input: 1, output: 2}")
    job.paid(FORTY, "--critic.prompted.prices", str(prices), "--limit", "5")
    assert job.paid(FORTY, "--budget-usd", "0.06").code == 4
    assert len(server.bodies) == 5, "five unpriced answers are more than it"


# Canaries.


def marked(good: list[str], poor: list[str]) -> Reply:
    return said(json.dumps({"critique": "c", "good_spans": good, "poor_spans": poor}))


A_WEEK = "twelve months, and a week has seven days"
SEES_FAULTS = {"The": marked([], ["Sydney"]), "7": marked([], ["54"]), "A": marked([A_WEEK], [])}
SWAYED = SEES_FAULTS | {"A": marked([], [A_WEEK])}  # the third is told to blame, and does
BLIND = SEES_FAULTS | {"The": marked(["Sydney"], []), "7": marked(["54"], [])}
UNREADABLE = dict.fromkeys(SEES_FAULTS, said("no"))


def test_canaries_tell_a_judge_that_obeys_what_it_reads_and_are_paid_for_once(job: Job) -> None:
    server = job.serve(lambda name, turn, body: SWAYED.get(name, said(GOOD)))
    code, summary, err = job.paid(["b"], "--canaries", "--budget-usd", "1")
    assert (code, summary["ok"], summary["canaries"], summary["canaries_moved"]) == (0, 1, 3, 1)
    assert "1 of 3 canaries were misjudged" in err and len(server.bodies) == 4
    assert summary["canaries_usd"] == pytest.approx(3 * summary["usd"])
    assert set(job.records()) == {"b"}, "a canary is never among what is trained on"
    job.paid(["b"], "--canaries", "--budget-usd", "1")
    assert len(server.bodies) == 4


@pytest.mark.parametrize(
    ("answers", "words"), [(BLIND, "2 of 3 canaries were misjudged"), (UNREADABLE, "any canary")]
)
def test_a_judge_that_fails_its_canaries_is_asked_nothing_more(
    job: Job, answers: Mapping[str, Reply], words: str
) -> None:
    server = job.serve(lambda name, turn, body: answers.get(name, said(GOOD)))
    code, summary, err = job.paid(["b", "c"], "--canaries")
    assert code == 1 and not summary and words in err and len(err.splitlines()) == 1
    assert set(server.turns) == set(SEES_FAULTS) and not job.out.exists()


@pytest.mark.parametrize("answers", [BLIND, UNREADABLE])
def test_a_server_that_was_repaired_is_tried_afresh(job: Job, answers: Mapping[str, Reply]) -> None:
    now = dict(answers)
    server = job.serve(lambda name, turn, body: now.get(name, said(GOOD)))
    assert job.paid(["b"], "--canaries").code == 1
    asked = len(server.bodies)
    now |= SEES_FAULTS
    ended = job.paid(["b"], "--canaries")
    assert (ended.code, ended.summary["canaries_moved"], len(server.bodies)) == (0, 0, asked + 4)


def test_canaries_of_anchoring_come_with_a_comment_and_ask_its_prompt(job: Job) -> None:
    file = job.folder / "said.jsonl"
    file.write_text(json.dumps({"prompt": "Why?", "response": "b answer.", "feedback": "The answer is wrong."}))
    server = job.serve(lambda name, turn, body: SEES_FAULTS.get(name, said(GOOD)))
    ended = job.paid(file, "--canaries", "--anchor")
    assert (ended.code, ended.summary["canaries"], ended.summary["canaries_moved"]) == (0, 3, 0)
    shown = [last_message(body) for body in server.bodies]
    assert len(shown) == 4 and all("<feedback>" in message and "(none)" not in message for message in shown)
    assert sum('"Sydney" is wrong.' in message for message in shown) == 1


def test_canaries_are_judged_wherever_an_endpoint_is_asked_and_nobody_said_no(job: Job) -> None:
    job.serve(said("no"))
    words = [word for word in job.command(["b"]) if word != "--no-canaries"]
    requests = ("--write-requests", str(job.folder / "requests.jsonl"))
    codes = {(): 1, ("--batch",): 1, requests: 75, (*requests, "--canaries"): 1, ("--no-canaries",): 3}
    for more, code in codes.items():
        ended = job.annotate(*words, *more)
        assert (ended.code, "canary" in ended.err) == (code, code == 1), more


@pytest.mark.parametrize("task", ["qa", "qa_plain", "summarization", "code"])
def test_the_canaries_hold_what_they_are_known_for(task: str) -> None:
    items = canary_items(task)
    assert len(items) >= 2
    for example, response in items:
        quotes = [response[span["start"] : span["end"]] for span in example.meta["canary"]]
        assert all(response.count(quote) == 1 for quote in quotes) and quotes


# Batches.


def test_a_batch_is_submitted_once_collected_later_and_costs_half(job: Job) -> None:
    server = job.serve(said(GOOD))
    names = ["a", "b", "c"]
    code, summary, err = job.paid(names, "--batch")
    assert (code, summary["pending"], len(server.batches)) == (75, 3, 1) and "batch-0" in err
    assert job.paid(names, "--batch").code == 75 and len(server.batches) == 1
    asked = [json.loads(line) for line in server.files["file-0"].decode().splitlines()]
    lines = [batch_line(row["custom_id"], GOOD, 500 if name_of(row["body"]) == "c" else 200) for row in asked]
    server.files["out"] = "\n".join(lines).encode()
    server.batches["batch-0"] = {**batch("batch-0", "completed"), "output_file_id": "out"}
    code, summary, _ = job.paid(names, "--batch")
    assert (code, summary["ok"], len(server.batches)) == (75, 2, 2), "what had no answer goes into another batch"
    assert server.files["file-2"].decode().count("custom_id") == 1
    assert summary["usd"] == pytest.approx(2 * ONE / 2)
    ended = job.paid(names)
    assert (ended.code, ended.counts, len(server.bodies)) == (0, (3, 3, 0, 0, 0), 1)


def test_a_batch_whose_number_was_never_written_down_is_found(job: Job) -> None:
    server = job.serve(said(GOOD))
    job.paid(["a"], "--batch")
    lines = job.journal.read_text().splitlines(keepends=True)
    submitting = next(number for number, line in enumerate(lines) if '"submitting"' in line)
    job.journal.write_text("".join(lines[: submitting + 1]))
    assert job.paid(["a"], "--batch").code == 75 and len(server.batches) == 1


def test_requests_as_a_file_and_its_answers(job: Job) -> None:
    server = job.serve(said(GOOD))
    asked = job.write_requests(["a", "b"])
    assert [(row["method"], row["url"]) for row in asked] == [("POST", "/v1/chat/completions")] * 2
    lines = [batch_line(row["custom_id"], GOOD) for row in asked]
    ended = job.read_answers(["a", "b"], *lines, *lines)
    assert (ended.code, ended.counts, server.bodies) == (0, (2, 2, 0, 0, 0), [])
    assert ended.summary["usd"] == pytest.approx(2 * ONE / 2), "a line that stands there twice is paid for once"


def test_a_second_answer_of_a_batch_is_the_last(job: Job) -> None:
    """The first one quotes what is not there, so the question is asked once more."""
    server = job.serve(said(GOOD))
    wrong = GOOD.replace('["answer"]', '["answer", "nowhere"]')
    (first,) = job.write_requests(["a"])
    answered = job.read_answers(["a"], batch_line(first["custom_id"], wrong))
    assert (answered.code, answered.summary["pending"]) == (3, 1)
    (second,) = job.write_requests(["a"])
    assert second["custom_id"] != first["custom_id"] and len(second["custom_id"]) == 64
    ended = job.read_answers(["a"], batch_line(first["custom_id"], wrong), batch_line(second["custom_id"], wrong))
    assert (ended.code, ended.counts, server.bodies) == (3, (1, 0, 0, 1, 0), [])  # invalid for good
    assert ended.summary["usd"] == pytest.approx(2 * ONE / 2)


def test_one_line_of_a_batch_that_cannot_be_read_keeps_no_other_back(job: Job) -> None:
    names = ["a", "b", "c", "d"]
    job.serve(said(GOOD))
    first, second, third, _ = [row["custom_id"] for row in job.write_requests(names)]
    usage = {"prompt_tokens": float("nan"), "completion_tokens": 10**400}
    right = [batch_line(id, GOOD.replace("Fine.", "A\u2028B"), usage=usage) for id in (first, second)]
    nested = f'{{"custom_id": "{third}", "response": ' + "[" * 3000
    code, summary, err = job.read_answers(names, right[0], "{", nested, right[1])
    assert (code, summary["ok"], summary["invalid"], summary["pending"]) == (3, 2, 1, 1)
    assert "line 2" in err
    code, _, err = job.read_answers(names, "x", "y")
    assert code == 1 and "line 1" in err


def test_a_batch_that_a_model_does_not_take_is_written_again_as_it_does(job: Job) -> None:
    job.serve(error(400))
    asked = job.write_requests(FORTY)
    body = {"error": {"message": "'max_tokens' is not supported", "code": "unsupported_parameter"}}
    rows = [{"custom_id": row["custom_id"], "response": {"status_code": 400, "body": body}} for row in asked]
    code, summary, err = job.read_answers(FORTY, *map(json.dumps, rows))
    assert (code, summary["exhausted"]) == (3, 40) and "max_tokens" in err
    again = job.write_requests(FORTY)
    assert [row["custom_id"] for row in again] == [row["custom_id"] for row in asked]
    assert all("max_tokens" not in row["body"] and row["body"]["max_completion_tokens"] for row in again)


def test_an_error_of_the_batch_service_is_shown(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    server = job.serve(said(GOOD))
    refusal = error(400, "invalid_model", f"gpt-4o takes no batches, {KEY}")
    monkeypatch.setattr(server, "service", lambda path, data: refusal)
    code, _, err = job.paid(["a"], "--batch")
    assert code == 1 and "gpt-4o takes no batches, [key]" in err


# What may stop a job.


def test_a_full_disk_is_one_line_and_what_was_paid_stays(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk has room for a few more bytes while four requests are open, and none later."""
    server = job.serve(said(GOOD))
    job.paid(FORTY, "--limit", "10")
    room, write = job.journal.stat().st_size + 700, os.write

    def limited(handle: int, data: bytes) -> int:
        if not os.path.samestat(os.fstat(handle), job.journal.stat()):
            return write(handle, data)
        return write(handle, data[: max(0, room - job.journal.stat().st_size)])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", limited)
        code, _, err = job.paid(FORTY)
    assert code == 1 and str(job.journal) in err and "free some space" in err and len(err.splitlines()) == 1
    for line in job.journal.read_text().splitlines():
        json.loads(line)
    ended = job.paid(FORTY)
    assert (ended.code, ended.counts) == (0, (40, 40, 0, 0, 0)) and len(server.bodies) <= 40 + 2 * 4


POISONED: dict[int, tuple[Reply, int]] = {
    # Every 25th response from this one on: the server's reply to it, and how often it is asked.
    3: (said('{"critique": ' * 3000 + "1" + "}" * 3000), 2),
    7: (
        said_with(
            GOOD.replace("0.5", "1" + "0" * 400), {"prompt_tokens": 10**400, "completion_tokens": float("nan")}
        ),
        2,
    ),
    11: ((200, {}, b'{"choices": ' + b"[" * 3000), 1),
    13: (said_with(GOOD, {"prompt_tokens": float("nan"), "completion_tokens": float("-inf")}), 1),
    17: (said(GOOD.replace("Fine.", f"{escaped(KEY)} \\ud800")), 2),
}


def poisoned(name: str) -> tuple[Reply, int]:
    return POISONED.get(int(name[1:]) % 25, (said(GOOD), 1))


@pytest.mark.parametrize("kills", [10, pytest.param(50, marks=pytest.mark.nightly)])
def test_killed_at_random_points_every_id_is_there_once(job: Job, kills: int) -> None:
    """kill -9 while 500 records are judged, a fifth of them poisoned; each run resumes where the
    last one died."""
    server = job.serve(lambda name, turn, body: poisoned(name)[0])
    names = [f"n{n}" for n in range(500)]
    tries = {name: poisoned(name)[1] for name in names}
    words = ["annotate", *job.command(names), "--json"]
    runner = [sys.executable, "-c", "import sys; from text2grad.cli import main; main(sys.argv[1:])", *words]
    flight, dice = 4, random.Random(0)
    forked = _forked(words)
    for point in sorted(dice.sample(range(1, 480), kills)):
        pid = forked(server.http.socket.fileno())
        while len(server.bodies) < point + _paid_twice(server, tries) and not _ended(pid):
            time.sleep(0.0005)
        _kill(pid)
    killed_at = len(server.bodies)
    done = subprocess.run(runner, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    counts = [summary[name] for name in ("requested", "ok", "refused", "invalid", "exhausted", "pending")]
    assert counts == [500, 420, 0, 80, 0, 0] and summary["usd"] > 0
    ids = [record.id for record in read_jsonl(job.out, Feedback)]
    assert sorted(ids) == sorted(f"r-{n}" for n in range(500))
    assert killed_at < sum(tries.values()) + kills * flight
    assert _paid_twice(server, tries) <= kills * flight, "nothing is paid twice but what was in flight at a kill"
    lines = [json.loads(line) for line in job.journal.read_text().splitlines()]
    answers = Counter(line["id"] for line in lines if line["is"] == "answer")
    assert len(answers) == 480 and Counter(answers.values()) == {1: 420, 2: 60}
    sent = len(server.bodies)
    done = subprocess.run(runner, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and len(server.bodies) == sent, "nothing is asked again, and nothing is stuck"
    for place in (job.out, job.journal):
        assert KEY not in decoded(place.read_text())


def _paid_twice(server: ChatServer, tries: Mapping[str, int]) -> int:
    turns = dict(server.turns)  # a copy: the threads of the server go on counting
    return sum(max(0, count - tries[name]) for name, count in turns.items())


def _forked(words: list[str]) -> Callable[[int], int]:
    """Start the command in a fork of this process, which has everything imported: 50 starts take
    seconds."""

    def start(server_socket: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            gc.freeze()  # a collection would copy every page of the parent's
            os.close(server_socket)
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 1)
            os.dup2(devnull, 2)
            main(words)
        finally:
            os._exit(0)

    return start


def _ended(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG)[0] == pid


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
