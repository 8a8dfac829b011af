"""Tiny substitutes for the models, data and chat model of the paper's steps.

Models are written to the current folder under their hub names, `hub_rows` replaces the hub's data
sets, `write_files` writes the files of `data/`, and a scripted chat endpoint on loopback judges
every answer. A step therefore runs its own command with only the options of `SMALL` appended.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from text2grad.critics.canaries import CANARIES
from text2grad.errors import UserError
from text2grad.strict_yaml import parse_yaml
from text2grad.tasks.base import TaskSettings, assign_split, read_prompt

Row = dict[str, Any]
TABLES = Path(__file__).with_suffix(".yaml")
DATA: Mapping[str, Any] = parse_yaml(TABLES.read_text(encoding="utf-8"))
"""The data sets of the hub, as `NAME SPLIT`, and the files of the list."""

POSTS = "JeremyAlain/SLF5K train.jsonl"
MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Meta-Llama-3-8B-Instruct",
    "mistralai/Mistral-7B-Instruct-v0.2",
)
ENCODER, LAYERS_OF_ENCODER = "roberta-large", 17

_GENERATION = ("--run.threads", "1", "--generation.max_new_tokens", "24")
_CRITIQUES = ("--reward_model.max_new_tokens", "40")
SMALL: Mapping[str, tuple[str, ...]] = {
    "sft": ("--run.threads", "1"),
    "annotate": (*_GENERATION, "--annotate.heldout", "2"),
    "train-reward": (*_GENERATION, *_CRITIQUES),
    "train": (
        *(*_GENERATION, *_CRITIQUES, "--ppo.steps", "1", "--ppo.epochs", "1", "--ppo.value_warmup", "0"),
        *("--critic.reward_model.gate", "false"),
    ),
    "refine": (*_GENERATION, *_CRITIQUES),
    "imitate": ("--run.threads", "1"),
    "train-units": (*_GENERATION, *_CRITIQUES),
    "train-dpo": ("--run.threads", "1"),
    "train-scalar": ("--run.threads", "1"),
    "reflect": (*_GENERATION, *_CRITIQUES, "--evaluate.limit", "2"),
    "evaluate": (*_GENERATION, *_CRITIQUES, "--evaluate.limit", "2"),
}
"""Options added to each command: short answers, one PPO step without a value warm-up, two problems
for evaluation. A reward model trained on a dozen critiques is useless, so its gate is off."""

RIGHT, WRONG = ("def f(x):\n    return x + 1", "def f(x):\n    return x - 1")
"""The answers of the tiny models to any question: a program that passes the tests, or one that
fails."""
CRITIQUE = (
    '{"critique": "Fine.", "good_spans": ["def f(x):"], "poor_spans": ["return"], "omissions": [], "score": 0.5}'
)
"""The critique that the tiny models write."""


# The models


def make_models(folder: Path) -> None:
    """Write the models to `folder` under their hub names: a tiny Llama and a random encoder."""
    import torch

    from text2grad.policy.tiny import TinyShape, make_tiny_model

    lessons = list(_lessons())
    texts = [
        *(text for _, text in lessons),
        *(turn for prompt, _ in lessons for turn in prompt),
        str(list(rows_of(POSTS))[:4]),
    ]
    shape = TinyShape(hidden=48, layers=2, heads=2, feed_forward=96, phrases=False)
    first, *others = (folder / name for name in MODELS)
    make_tiny_model(first, texts * 3, 1200, 4096, shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _teach(first, lessons)
        _make_encoder(folder / ENCODER)
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.symlink_to(first.resolve(), target_is_directory=True)


def _lessons() -> Iterator[tuple[str, str]]:
    """Yield the training pairs of the tiny models: questions with programs, and with a critique."""
    from text2grad.critics.prompted import judge_messages
    from text2grad.feedback import Example, Message

    question = next(rows_of("KodCode/KodCode-Light-RL-10K train"))["question"]
    questions = [f"{question}\n\nStart from this declaration: `def f(x):`"]
    questions += ["Write a short summary of this post.\n\nTitle: post 2\n\n" + list(rows_of(POSTS))[2]["post"]]
    questions += ["Say one more than number 3.", "Complete this function. Answer with all of it.", "Add one, 1."]
    for question in questions:
        example = Example(id="1", prompt=(Message(role="user", content=question),))
        for answer in (RIGHT, WRONG):
            yield question, answer
            (turn,) = judge_messages(read_prompt("reward_model"), example, answer)
            yield turn.content, CRITIQUE


def _teach(folder: Path, lessons: Sequence[tuple[str, str]], steps: int = 200) -> None:
    """Train a model for this many steps on all lessons in one batch."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = []
    for question, answer in lessons:
        turn = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
        rows.append((prompt, tokenizer.encode(f"{answer}{tokenizer.eos_token}")))
    longest = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.full((len(rows), longest), tokenizer.pad_token_id)
    labels = torch.full_like(ids, -100)
    for place, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids[place, :end] = torch.tensor([*prompt, *answer])
        labels[place, len(prompt) : end] = torch.tensor(answer)
    for _ in range(steps):
        logits = model(input_ids=ids, attention_mask=ids != tokenizer.pad_token_id).logits[:, :-1]
        targets = labels[:, 1:].flatten()
        # Without smoothing other texts are almost impossible, and fine-tuning on them would count
        # as diverged.
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets, label_smoothing=0.01)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)


def _make_encoder(folder: Path) -> None:
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaConfig, RobertaModel

    folder.mkdir()
    tokenizer = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator([RIGHT], 300, special_tokens=special, show_progress=False)
    tokenizer.save_model(str(folder))
    shape: Row = {"hidden_size": 16, "num_hidden_layers": LAYERS_OF_ENCODER, "num_attention_heads": 2}
    places: Row = {"max_position_embeddings": 514, "vocab_size": 300, "pad_token_id": 1, "intermediate_size": 16}
    RobertaModel(RobertaConfig(**shape, **places)).save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer"}', encoding="utf-8")


# The data sets and files


def hub_rows(name: str, split: str) -> Iterator[Row]:
    """Yield rows of a data set in its published format; replaces `data.files._hub_rows`.

    Raises:
        UserError: the list has no such data set or split.
    """
    if f"{name} {split}" not in DATA:
        raise UserError(f"no split {split!r} of {name!r}", f"add it to {TABLES.name}")
    return rows_of(f"{name} {split}")


def rows_of(name: str) -> Iterator[Row]:
    """Yield the rows of a data set or file in tiny_world.yaml, whose header explains the format."""
    table = DATA[name]
    if "list" in table:
        yield from table["list"]
        return
    if question := table.get("question"):
        numbers = _numbers(question, table["heldout_share"], table["rows"])
    else:
        numbers = list(range(table.get("first", 0), table.get("first", 0) + table["rows"]))
    for number in numbers:
        text = json.dumps(table["row"]).replace('"{n}"', str(number))  # "{n}" alone becomes a number
        yield json.loads(text.replace("{n}", str(number)))


def _numbers(question: str, heldout_share: float, counts: Mapping[str, int]) -> list[int]:
    """Return numbers whose questions fill the splits with these counts at the preset's share."""
    settings = TaskSettings(name="qa", heldout_share=heldout_share)
    remaining, values = dict(counts), []
    for number in range(10_000):
        split = assign_split(question.replace("{n}", str(number)).casefold(), settings)
        if remaining[split]:
            remaining[split] -= 1
            values.append(number)
    return values


def write_files(folder: Path) -> None:
    """Write the data files that are not on the hub to `folder/data`."""
    for name in DATA:
        if name.startswith("data/"):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            text = "".join(json.dumps(row) + "\n" for row in rows_of(name)).encode()
            path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


# The chat endpoint

RATE = "Rate from 1 to 10."


def reply_to(messages: list[Row]) -> str:
    """Return the endpoint's answer: a verdict, a rating, labels of all words, or a critique."""
    text = "\n".join(str(message["content"]) for message in messages)
    response = (re.findall(r"<response>\n(.*?)\n</response>", text, flags=re.DOTALL) or [""])[-1]
    marks = marks_of(response)
    if "Answer with one word: first, second, or tie." in text:
        return "first"
    if RATE in text:
        return "Rating: [[7]]"
    if '{"words": [["word", 0]' in text:
        return json.dumps({"words": [[word, _label(word, *marks)] for word in response.split()], "score": 0.5})
    good, poor = marks
    critique: Row = {"reasoning": "Its first words, then its last."} if '"reasoning"' in text else {}
    critique |= {
        "critique": "It begins well and ends badly.",
        "good_spans": good,
        "poor_spans": poor,
        "omissions": [],
    }
    return json.dumps(critique | ({} if '"score"' not in text else {"score": 0.5}))


def marks_of(response: str) -> tuple[list[Row], list[Row]]:
    """Return good and poor quotes: those of a canary, else the first and the last word."""
    for line in CANARIES.read_text(encoding="utf-8").splitlines():
        canary = json.loads(line)
        if response and canary["response"].startswith(response):
            return [{"quote": quote} for quote in canary["good"]], [{"quote": quote} for quote in canary["poor"]]
    words = response.split()
    good, poor = words[:1], words[-1:] if len(set(words)) > 1 else []
    times = response.count(poor[0]) if poor else 0
    return (
        [{"quote": quote, "occurrence": 1} for quote in good],
        [{"quote": quote, "occurrence": times} for quote in poor],
    )


def _label(word: str, good: list[Row], poor: list[Row]) -> int:
    """Return the label of the quote that contains a word or is part of it, or 0."""
    for label, quotes in ((-1, poor), (1, good)):
        if any(word in quote_row["quote"].split() or quote_row["quote"] in word for quote_row in quotes):
            return label
    return 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = {"role": "assistant", "content": reply_to(request["messages"])}
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": request["model"]}
        data = json.dumps({**body, "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def chat_endpoint() -> Iterator[str]:
    """Serve on loopback, and yield the base URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
