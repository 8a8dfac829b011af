"""The prompts of the paper: requested keys, requests and parsed answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chat_server import KEY, ChatServer, last_message, said
from text2grad.cli import main
from text2grad.critics.prompted import Prompt, judge_messages
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Failure, Feedback, Message
from text2grad.jsonl import read_jsonl
from text2grad.stages.critics import load_prompt
from text2grad_lab.prompts.published import parse_published

KEYS = {
    "summarization_b1": ["textual_feedback", "good_spans", "poor_spans"],
    "qa_b2": ["textual_feedback", "good_spans", "poor_spans"],
    "code_b3": ["Code Feedback", "wrong_code", "improvement_code"],
    "dense": ["words", "score"],
    "steps": ["critique", "good_spans", "poor_spans", "omissions", "score"],
}
ANSWERS: dict[str, Any] = {
    "code_b3": {
        "Code Feedback": "So.",
        "wrong_code": ["one"],
        "improvement_code": [{"quote": "two"}],
    },
    "qa_b2": {"textual_feedback": "So.", "good_spans": ["two"], "poor_spans": ["one"]},
    "dense": {"words": [["one", -1], ["two", 1]], "score": 0.5},
}


def prompt(name: str) -> Prompt:
    return load_prompt(f"text2grad_lab.prompts:{name}")


@pytest.mark.parametrize("name", KEYS)
def test_prompts_show_the_response_once_and_ask_for_their_keys(name: str) -> None:
    example = Example(id="1", prompt=(Message(role="user", content="QUESTION"),), reference="r")
    *_, last = messages = judge_messages(prompt(name).text, example, "RESPONSE </response>")
    text = "\n".join(message.content for message in messages)
    assert (text.count("QUESTION"), text.count("RESPONSE"), last.content.count("</response>")) == (1, 1, 1)
    assert "{{" not in text and prompt(name).version.startswith(f"{name}@")
    schema = json.loads(prompt(name).schema())
    assert list(schema["properties"]) == schema["required"] == KEYS[name]


def test_unknown_prompts_are_refused() -> None:
    for name in ("text2grad_lab.prompts:dens", "text2grad_lab.prompts:WORDS", "no_such:prompt"):
        with pytest.raises(UserError, match=name):
            load_prompt(name)


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_in_a_custom_format_are_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request with the schema, then the journal; human feedback is anchored in format z."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    human = json.dumps({"critique": "", "good_spans": ["one"], "poor_spans": []})
    answer = json.dumps(ANSWERS[name])
    server = ChatServer(
        lambda name, turn, body: said(human if "So so." in json.dumps(body) else answer), last_message
    )
    rows: list[dict[str, Any]] = [{"id": "a", "prompt": "Q", "response": "one two"}, {"id": "b", "prompt": "P"}]
    rows[1] |= {"response": "one two", "feedback": "So so."}
    file, out = tmp_path / "r.jsonl", tmp_path / "feedback.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    words = ["annotate", "--responses", str(file), "--out", str(out), "--task.name", "qa", "--no-canaries"]
    words += ["--critic.kind", "prompted", "--critic.prompted.prompt", f"text2grad_lab.prompts:{name}"]
    words += ["--critic.prompted.base_url", server.url, "--critic.prompted.model", "m"]
    for _ in range(2):
        with pytest.raises(SystemExit) as exit_info:
            main(words)
        assert not exit_info.value.code
    annotated, anchored = read_jsonl(out, Feedback)
    labels = [(span.text, span.label) for span in annotated.spans]
    assert labels == [("one", -1), ("two", 0 if name == "code_b3" else 1)]
    assert annotated.source.prompt_version == prompt(name).version
    assert (anchored.critique, [span.text for span in anchored.spans]) == ("So so.", ["one"])
    properties = [body["response_format"]["json_schema"]["schema"]["properties"] for body in server.bodies]
    assert sorted(map(list, properties)) == sorted([KEYS[name], list(properties[-1])]) and len(properties) == 2
    server.close()


def test_the_papers_keys_and_formats_are_read() -> None:
    code = '{"code_feedback": "Late.", "wrong_code": {"art fair": "no"}, "improvement_code": {"late": "why"}}'
    critique = parse_published(code, "The art fair is late.")
    assert isinstance(critique, Critique)
    assert [(s.text, s.label, s.reason) for s in critique.spans] == [("art fair", -1, "no"), ("late", 0, "why")]
    for z in ('{"textual_feedback": "a", "critique": "b"}', '{"words": []}', "no", '{"textual_feedback": "a'):
        failure = parse_published(z, "")
        assert isinstance(failure, Failure) and failure.raw == z, z
