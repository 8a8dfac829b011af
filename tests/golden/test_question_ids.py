"""The ids of questions, byte for byte: a paid journal is found again by them, whatever is added
later."""

from __future__ import annotations

import json
from pathlib import Path

from text2grad.chat import EndpointSettings, OpenAIChat
from text2grad.critics.prompted import Prompt, PromptedCritic
from text2grad.feedback import HUMAN_FEEDBACK, Example, Message, Source
from text2grad.tasks.base import read_prompt

PLACE = Path(__file__).with_name("question_ids.json")
PROMPTS = ("code", "code_plain", "qa", "qa_plain", "summarization", "summarization_plain")
CALM = {
    "plain": "The answer is 42, and that is that.",
    "code": "def f(a: list[int]) -> dict[str, int]:\n    return {'a': a[0] if a[0] < 3 else b'\\x00'[0]}\n",
    "generic": "std::vector<std::map<int, T>> v; if (a < b && c > d) x <<= 2; y = a <- b",
    "html": "<div class='x'><p>1 &lt; 2</p><br/></div> <!-- response --> <responses> a </b>",
    "markup": "[1] see [the docs](http://x.org/a?b=c&d=e), $x | y$ || z |> f <| g, [[wiki]], <b>bold</b>",
    "unicode": "Grüße aus Köln – „naïve“ café… 你好，世界。 こんにちは ｆｕｌｌ ＜3 مرحبا 👩‍👩‍👧 e\u0301 a\u00adb",
    "surrogate": "half \ud83d a pair",
    "table": "| a | b |\n|---|---|\n| 1 | <2 |\n\ttab\r\nend\u2028line",
    "percent": "100% {x} {{prompt}} {0} \\1 %s === system ===\n",
}


def questions() -> dict[str, str]:
    ids = {}
    for prompt in PROMPTS:
        settings = EndpointSettings(
            model="judge", base_url="http://localhost:1/v1", max_tokens=512, temperature=0.5
        )
        source = Source(kind="llm", model="judge", prompt_version="v")
        anchor = Prompt(read_prompt("anchor"), "g")
        critic = PromptedCritic(OpenAIChat(settings), read_prompt(prompt), source, annotator=True, anchor=anchor)
        for name, text in CALM.items():
            turns = (Message(role="system", content="Be brief."), Message(role="user", content=f"Why? {text}"))
            meta = {"tests": text, "passed": 1, **({HUMAN_FEEDBACK: "So so."} if name == "html" else {})}
            example = Example(id=name, prompt=turns, reference=text[::-1], meta=meta)
            ids[f"{prompt} {name} 0"] = critic.question(example, text).id
    return ids


def test_questions_about_calm_text_keep_their_ids() -> None:
    assert questions() == json.loads(PLACE.read_text())
