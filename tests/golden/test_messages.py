"""Mistakes on the command line and the line that each one prints. `make golden` rewrites
golden/messages.txt."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from text2grad.cli import main

GOLDEN = Path(__file__).parent / "messages.txt"
LISTS = re.compile(
    r"\b(one of(?! a | them| these)|sections are(?= run)|shapes:|preset:|(?:run|critic) has|mean \S+ or) .*"
)
"""A list of what there is: it is compared up to its first entry."""
MINIMAL = "task: {name: demo}\npolicy: {model: tiny}\n"
FILES: dict[str, str | bytes] = {
    "empty.jsonl": "",
    "header.csv": "prompt,response,critique\n",
    "latin.csv": "prompt,response,critique\nß,ö,€\n".encode() + "ä,b,c\n".encode("latin-1"),
    "sheet.xlsx": b"PK\x03\x04\xff",
    "words.txt": "hello\n",
    "torn.jsonl": '{"prompt": "p", "response": "r", "critique": "c"}\n{"prompt":\n',
    "broken.json": "{",
    "numbers.json": "[1, 2]",
    "ok.jsonl": '{"prompt": "p", "response": "r", "critique": "c"}\n',
    "other.csv": "question,answer\na,b\n",
    "typo.csv": "prompt,respnse,critique\na,b,c\n",
    "score.csv": "prompt,response,score\na,b,ten\n",
    "stars.csv": "prompt,response,score\na,b,7\n",
    "ragged.csv": "prompt,response,critique\na,b\n",
    "span.jsonl": '{"prompt": "p", "response": "r", "spans": ["r"]}\n',
    "offsets.jsonl": '{"prompt": "p", "response": "r", "spans": [{"start": "0", "end": "x", "label": 1}]}\n',
    "turns.jsonl": '{"prompt": [3], "response": "r", "critique": "c"}\n',
    "silent.jsonl": '{"prompt": "p", "response": "r"}\n',
    "questions.jsonl": "".join(f'{{"prompt": "question {number}"}}\n' for number in range(13)),
    "rows.jsonl": "".join(f'{{"prompt": "ask {n}", "response": "say {n}"}}\n' for n in range(13)),
    "keys.jsonl": '{"q": "a"}\n',
    "critic.yaml": "task: {name: demo}\npolicy: {model: tiny}\ncritic: {modell: x}\n",
    "list.yaml": "- a\n",
    "tab.yaml": "task:\n\tname: demo\n",
    "twice.yaml": MINIMAL + "ppo:\n  lr: 1\n  lr: 2\n",
    "open.yaml": MINIMAL + "ppo:\n  steps: [3\n",
    "number.yaml": MINIMAL + "run: 3\n",
    "tag.yaml": MINIMAL + "run: !!python/object/apply:os.mkdir [proof]\n",
    "task.yaml": "policy: {model: tiny}\n",
    "recipe.yaml": MINIMAL + "recipe: no_such\n",
    "by_task.yaml": MINIMAL + "by_task: [code]\n",
    "binary.yaml": b"\xff\xfe\x00",
    "bad_syntax.py": "def f(:\n",
    "own.py": (
        "from text2grad import Source\n"
        "class Args:\n    def __init__(self, a): ...\n"
        "class Raises:\n    def __init__(self):\n        raise OSError('no\\nkey')\n"
        "class NoMethod:\n    source = Source(kind='program')\n"
        "class NoSource:\n    def critique(self, examples, responses): ...\n"
    ),
}
IMPORT = """
none.jsonl; .; empty.jsonl; header.csv; latin.csv; sheet.xlsx; words.txt; torn.jsonl; broken.json; numbers.json
other.csv; typo.csv; score.csv; stars.csv; ragged.csv; span.jsonl; offsets.jsonl; turns.jsonl; silent.jsonl
keys.jsonl; ok.jsonl --map response; ok.jsonl --map response=answer; ok.jsonl --map answer=response
ok.jsonl --kind jsonl; ok.jsonl --out .; ok.jsonl --out ok.jsonl/o.jsonl; ok.jsonl --out questions.jsonl
"""
SETTINGS = """
--ppo.learning_rate 1e-5; --generation.max_tokens 5; --ppo.lrr 1; --poo.lr 1; --run.lr 1; --run.xyzzy 1
--xyzzy.xyzzy 1; --reward_model.trainning.lr 1; --ppo.lr fast; --ppo.steps 2.5; --ppo.steps 0; --ppo.kl half
--ppo.lr .nan; --ppo.lr [1; --ppo.lr; --ppo.lr --ppo.steps 3; --policy.lora yes; --policy.dtype fp16
--critic.kind progam; --task.name QA; --task.name nosuch:Task; --policy.model ./none
--policy.device gpu; --lr 3; --confg demo; --xyzzy; --config dmeo; --config paper; --config nowhere/mine.yaml
--config critic.yaml; --config list.yaml; --config tab.yaml; --config twice.yaml; --config open.yaml
--config number.yaml; --config tag.yaml; --config task.yaml; --config recipe.yaml; --config by_task.yaml
--config binary.yaml; --restart --force
"""
CRITICS = """
nosuch:Critic; own:Arg; own:Args; own:Raises; own:NoMethod; own:NoSource; bad_syntax:Critic; json:JSONDecoder
"""
OTHERS = """
import ok.jsonl; export ok.jsonl --as csv --out o.csv; export rows.jsonl --as excel --out o.csv
feedback-report ok.jsonl; feedback-report other.csv; feedback-report .; feedback-report empty.jsonl
sft --task.name qa --task.data questions.jsonl; sft --task.name qa --task.data keys.jsonl
sft --task.name qa --task.data none.jsonl; sft --task.name qa --task.data empty.jsonl
sft --task.name qa --task.data .; annotate --responses empty.jsonl --out o.jsonl --critic.kind program
train; train extra; train --name ../x; train-reward; merge nosuch --out o; evaluate nosuch; evaluate --task both
report; report .; report ok.jsonl; report . --run.seed 5; demo --model gpt2; trian; trian --config human_qa
sample; sample hi --prompts questions.jsonl; sample questions.jsonl; sample hi; sample hi -k 0; try
"""


def commands() -> list[str]:
    """List the wrong commands, without the program's name."""

    def parts(text: str) -> list[str]:
        return [part.strip() for line in text.strip().splitlines() for part in line.split(";")]

    judge = "annotate --responses rows.jsonl --out o.jsonl --critic.kind"
    return [
        *(f"import {words}" if "--out" in words else f"import {words} --out o.jsonl" for words in parts(IMPORT)),
        *(f"sft {words}" for words in parts(SETTINGS)),
        *(f"{judge} {words}" for words in parts(CRITICS)),
        *parts(OTHERS),
    ]


def outcome(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command; return its exit code and what it wrote to stderr."""
    with pytest.raises(SystemExit) as left:
        main(command.split())
    out, err = capsys.readouterr()
    assert left.value.code and not out, command
    return f"[{left.value.code}] {err.strip()}"


def test_every_mistake_is_one_line_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.chdir(tmp_path)
    outcomes = {command: outcome(command, capsys) for command in commands()}
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == set(FILES)
    assert {command for command, line in outcomes.items() if line.count("\n") or "] error: " not in line} == set()
    lines = {command: LISTS.sub(r"\1 ...", line) for command, line in outcomes.items()}
    text = "".join(f"$ text2grad {command}\n{line}\n" for command, line in lines.items())
    text = text.replace(str(tmp_path), "{folder}")
    if os.environ.get("WRITE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")
