"""Mistakes a beginner makes: each ends in one line with the cure and the right exit code, and writes nothing."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from commands import TOY, Command
from test_bad_input import FAILED, USAGE, contents, one_line

FILES: dict[str, str | bytes] = {
    "empty.jsonl": "",
    "header.csv": "prompt,response,critique\n",
    "latin.csv": "prompt,response,critique\nä,b,c\n".encode("latin-1"),
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
    "bad_syntax.py": "def f(:\n",
    "own.py": (
        "from text2grad import Source\n"
        "class Args:\n    def __init__(self, a): ...\n"
        "class Raises:\n    def __init__(self):\n        raise OSError('no\\nkey')\n"
        "class NoMethod:\n    source = Source(kind='program')\n"
        "class NoSource:\n    def critique(self, examples, responses): ...\n"
    ),
}
OUT = "--out o.jsonl"
QA = "sft --task.name qa --run.folder new --task.data"
JUDGE = f"annotate --responses rows.jsonl {OUT} --critic.kind"

MISTAKES: list[tuple[str, int, list[str]]] = [
    # a file of the wrong kind
    (f"import none.jsonl {OUT}", FAILED, ["none.jsonl", "No such file", "check the path"]),
    (f"import . {OUT}", FAILED, ["Is a directory"]),
    (f"import empty.jsonl {OUT}", FAILED, ["empty.jsonl is empty"]),
    (f"import header.csv {OUT}", FAILED, ["header.csv has no rows"]),
    (
        f"import latin.csv {OUT}",
        FAILED,
        ["latin.csv: not UTF-8", "iconv -f CP1252 -t UTF-8 latin.csv > latin-utf8"],
    ),
    (f"import sheet.xlsx {OUT}", FAILED, ["is a spreadsheet", "save it as CSV"]),
    (f"import words.txt {OUT}", FAILED, ["words.txt:1: not JSON"]),
    (f"import torn.jsonl {OUT}", FAILED, ["torn.jsonl:2: not JSON"]),
    (f"import broken.json {OUT}", FAILED, ["broken.json:1: not JSON"]),
    (f"import numbers.json {OUT}", FAILED, ["record 1 is not an object"]),
    # a column or a cell
    (f"import other.csv {OUT}", FAILED, ["no column 'response'", "--map response=COLUMN", "question, answer"]),
    (f"import typo.csv {OUT}", FAILED, ["did you mean 'response'?", "--map response=respnse"]),
    (f"import score.csv {OUT}", FAILED, ["row 2: the score 'ten' is not a number"]),
    (f"import stars.csv {OUT}", FAILED, ["row 2: the score 7 is not between -1 and 1", "--scale 1..5"]),
    (f"import ragged.csv {OUT}", FAILED, ["ragged.csv: row 2: not as many cells"]),
    (f"import span.jsonl {OUT}", FAILED, ["a span is an object"]),
    (f"import offsets.jsonl {OUT}", FAILED, ["offsets '0' and 'x' are not whole numbers"]),
    (f"import turns.jsonl {OUT}", FAILED, ["line 1: the prompt is neither text nor a list of turns"]),
    (f"import silent.jsonl {OUT}", FAILED, ["nothing is said of the responses", "--map critique=COLUMN"]),
    (f"import keys.jsonl {OUT}", FAILED, ["cannot tell what kind", "--map response=KEY", "keys: q"]),
    (f"import ok.jsonl {OUT} --map response", USAGE, ["'response' is not a pair"]),
    (f"import ok.jsonl {OUT} --map response=answer", FAILED, ["no column 'answer'", "columns: prompt"]),
    (f"import ok.jsonl {OUT} --map answer=response", USAGE, ["no field 'answer'", "fields: "]),
    (f"import ok.jsonl {OUT} --kind jsonl", USAGE, ["unknown kind", "remarks"]),
    (f"import ok.jsonl {OUT} --kind slf5k --map response=answer", USAGE, ["--map is for tables and remarks"]),
    # where to write
    ("import ok.jsonl", USAGE, ["where to write", "--out FILE"]),
    ("import ok.jsonl --out .", FAILED, ["cannot write"]),
    ("import ok.jsonl --out ok.jsonl/o.jsonl", FAILED, ["cannot write ok.jsonl/o.jsonl"]),
    ("import ok.jsonl --out questions.jsonl", FAILED, ["questions.jsonl:1: "]),
    ("export {run}/feedback.jsonl --as csv --out nowhere/o.csv", FAILED, ["cannot write nowhere/o.csv"]),
    ("export {run}/feedback.jsonl --as excel --out o.csv", USAGE, ["unknown shape 'excel'", "csv"]),
    # a file of remarks where records are read
    ("feedback-report ok.jsonl", FAILED, ["ok.jsonl:1: ", "text2grad import ok.jsonl --out feedback.jsonl"]),
    ("feedback-report other.csv", FAILED, ["other.csv:1: ", "text2grad import other.csv --out feedback.jsonl"]),
    ("feedback-report .", FAILED, ["Is a directory"]),
    ("feedback-report empty.jsonl", FAILED, ["holds no records", "text2grad import"]),
    ("export ok.jsonl --as csv --out o.csv", FAILED, ["text2grad import ok.jsonl"]),
    # a setting
    ("sft --ppo.learning_rate 1e-5", USAGE, ["unknown setting 'ppo.learning_rate'", "did you mean 'ppo.lr'?"]),
    ("sft --generation.max_tokens 5", USAGE, ["did you mean 'generation.max_new_tokens'?"]),
    ("sft --lr 3", USAGE, ["unknown option --lr", "--sft.lr"]),
    ("sft --ppo.lr -1", USAGE, ["ppo.lr = -1", "greater than 0"]),
    ("sft --sft.epochs three", USAGE, ["sft.epochs = 'three'", "number"]),
    ("sft --policy.dtype fp16", USAGE, ["policy.dtype = 'fp16'", "float16"]),
    ("sft --config critic.yaml", USAGE, ["unknown setting 'critic.modell'", "'critic.prompted.model'"]),
    ("sft --config list.yaml", USAGE, ["sections are expected"]),
    ("sft --config tab.yaml", USAGE, ["tab.yaml:2", "mend the YAML"]),
    ("sft --config .", USAGE, ["no preset '.'"]),
    ("sft --policy.device gpu --run.folder new", FAILED, ["unknown device 'gpu'", "cuda"]),
    ("sft --task.name QA --run.folder new", FAILED, ["unknown task 'QA', did you mean 'qa'?"]),
    ("sft --policy.model ./none --run.folder new", FAILED, ["no model folder"]),
    # a file of questions
    (f"{QA} questions.jsonl", FAILED, ["questions, none has a reference answer", "add 'response'"]),
    (f"{QA} keys.jsonl", FAILED, ["unknown shape with keys q", "known shapes"]),
    (f"{QA} none.jsonl", FAILED, ["none.jsonl", "check the path"]),
    (f"{QA} empty.jsonl", FAILED, ["has no records"]),
    (f"{QA} .", FAILED, ["Is a directory"]),
    # a critic
    ("train --run.folder {run} --critic.kind progam", USAGE, ["did you mean 'program'?", "module:Class"]),
    (f"{JUDGE} nosuch:Critic", FAILED, ["no module nosuch", "in this folder, or on PYTHONPATH"]),
    (f"{JUDGE} own:Arg", FAILED, ["own has no Arg", "did you mean Args?"]),
    (f"{JUDGE} own:Args", FAILED, ["cannot be made", "missing 1 required", "without arguments"]),
    (f"{JUDGE} own:Raises", FAILED, ["cannot be made: line 6: OSError: no key"]),
    (f"{JUDGE} own:NoMethod", FAILED, ["is not a Critic", "no method critique"]),
    (f"{JUDGE} own:NoSource", FAILED, ["is not a Critic", "no source"]),
    (f"{JUDGE} bad_syntax:Critic", FAILED, ["in line 1 of", "mend the module"]),
    (f"{JUDGE} json:JSONDecoder", FAILED, ["is not a critic", "a class of your own"]),
    ("annotate --responses empty.jsonl --out o.jsonl --critic.kind program", FAILED, ["no responses to judge"]),
    (
        "train --run.folder {run} --critic.kind program --task.name qa --task.data rows.jsonl",
        FAILED,
        ["no prompt has tests", "the program critic", "another critic"],
    ),
    (
        "annotate --run.folder {run} --annotate.critic program --task.name qa --task.data rows.jsonl",
        FAILED,
        ["no prompt has tests"],
    ),
    (
        "train --run.folder {run} --critic.kind reference --task.name qa --task.data questions.jsonl",
        FAILED,
        ["no prompt has reference answers"],
    ),
    # the order of stages, and names of what is there
    ("sft --run.folder {run}", FAILED, ["sft is finished", "--restart trains it again"]),
    ("train --run.folder new", FAILED, ["no policy in new/sft/policy", "text2grad sft"]),
    ("train-reward --run.folder new", FAILED, ["no feedback in", "text2grad annotate"]),
    ("evaluate --samples none.jsonl --task humaneval", FAILED, ["none.jsonl", "check the path"]),
    ("evaluate ok.jsonl --run.folder {run}", FAILED, ["no policy 'ok.jsonl'", "known: sft, text2grad"]),
    ("merge nosuch --run.folder {run} --out o", FAILED, ["no policy 'nosuch'"]),
    ("report .", FAILED, ["nothing to report in ."]),
    ("report ok.jsonl", FAILED, ["no run folder ok.jsonl"]),
    ("report seeds", FAILED, ["nothing to report in seeds"]),
    ("demo --model gpt2", USAGE, ["no demo of the model 'gpt2'", "smollm2"]),
    # asking
    ("sample", USAGE, ["one of a prompt and --prompts FILE"]),
    ("sample hi --prompts questions.jsonl", USAGE, ["one of a prompt and --prompts FILE"]),
    ("sample questions.jsonl", USAGE, ["is a file", "--prompts questions.jsonl"]),
    ("sample hi --run.folder new", FAILED, ["no policy in new", "--with MODEL"]),
    ("sample hi --with nosuch --run.folder {run}", FAILED, ["no policy 'nosuch'", "known: sft"]),
    ("sample --prompts keys.jsonl --run.folder {run}", FAILED, ["no 'prompt'"]),
    ("sample --prompts empty.jsonl --run.folder {run}", FAILED, ["has no prompts"]),
    ("sample hi --run.folder {run} --critique --critic.kind program", FAILED, ["no prompt has tests"]),
    ("try --run.folder new", FAILED, ["no policy in new"]),
    ("trian", USAGE, ["No such command 'trian'", "'train'"]),
    ("trian --config human_qa --run.folder new", USAGE, ["No such command 'trian'", "'train'"]),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of a beginner, which is the current one."""
    for name, text in FILES.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    (tmp_path / "seeds" / "seed-1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("line", "code", "said"), MISTAKES, ids=[line for line, *_ in MISTAKES])
def test_a_mistake_is_one_line_and_writes_nothing(
    command: Command, finished: Path, place: Path, line: str, code: int, said: list[str]
) -> None:
    before, run = contents(place), contents(finished)
    words = line.format(run=finished).split()
    toy = TOY if "{run}" in line and words[0] in ("sft", "train") and "qa" not in words else ()
    ended = command(words[0], *toy, *words[1:])
    one_line(ended, code, *said)
    assert len(ended.err.splitlines()) == 1
    assert contents(finished) == run
    assert {name: hash for name, hash in contents(place).items() if "__pycache__" not in name} == before


def test_a_mistyped_model_without_a_network_is_told_at_once(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    for name in ("https_proxy", "http_proxy", "all_proxy", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    words = ("sft", "--run.folder", "new", "--policy.model")
    one_line(command(*words, "owner/no-such-model"), FAILED, "'owner/no-such-model'", "no network to")
    one_line(command(*words, "smolm2"), FAILED, "did you mean smollm2?")
    assert not Path("new").exists()


def test_questions_and_answers_in_plain_text_are_imitated(command: Command, place: Path) -> None:
    Path("answers.jsonl").write_text(
        "".join(json.dumps({"prompt": f"Say {n}.", "response": f"It is {n}."}) + "\n" for n in range(12))
    )
    tiny = (*TOY, "--task.name", "qa", "--sft.epochs", "1", "--run.folder", "new")
    ended = command("sft", *tiny, "--task.data", "answers.jsonl", "--task.heldout_share", "0", "--json")
    assert ended.code == 0 and json.loads(ended.out.splitlines()[-1])["examples"] == 12
