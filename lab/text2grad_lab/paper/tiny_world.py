"""All that the steps of the paper need of the world, small enough for a laptop and made on the spot.

Models stand in the current folder under their hub names, data sets answer under theirs (`hub_rows`), the files of
`data/` are there, and a scripted chat endpoint on loopback judges whatever it is shown. So a step runs with its own
words; only `SMALL` follows them. No network, no GPU, no key.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from text2grad.critics.canaries import OURS as CANARIES
from text2grad.errors import UserError
from text2grad.tasks.base import TaskSettings, read_prompt, split_of

Row = dict[str, Any]

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
"""What follows the words of each command, beside the tiny models and data: short answers, one step of PPO, which
trains the policy at once, two problems to measure on. A reward model taught by a dozen critiques is fit for
nothing, so its gate is left open."""

RIGHT, WRONG = ("def f(x):\n    return x + 1", "def f(x):\n    return x - 1")
"""What the tiny models answer, whatever they are asked: a program that passes the tests below, or one that does
not."""
CRITIQUE = (
    '{"critique": "Fine.", "good_spans": ["def f(x):"], "poor_spans": ["return"], "omissions": [], "score": 0.5}'
)
"""What they say as a critic."""


# The models


def make_models(folder: Path) -> None:
    """Write the models of the list to `folder`, each under its hub name: a tiny Llama that has learned `_lessons`,
    and an encoder of random weights."""
    import torch

    from text2grad.policy.tiny import TinyShape, make_tiny_model

    taught = list(_lessons())
    texts = [*(text for _, text in taught), *(turn for prompt, _ in taught for turn in prompt), str(slf5k(4))]
    shape = TinyShape(hidden=48, layers=2, heads=2, feed_forward=96, phrases=False)
    first, *others = (folder / name for name in MODELS)
    make_tiny_model(first, texts * 3, 1200, 4096, shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _teach(first, taught)
        _make_encoder(folder / ENCODER)
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.symlink_to(first.resolve(), target_is_directory=True)


def _lessons() -> Iterator[tuple[str, str]]:
    """What is asked and what the tiny models answer: a task either program, a critic's question one critique."""
    from text2grad.critics.prompted import judge_messages
    from text2grad.feedback import Example, Message

    asked = [f"{_questions('Add one', 0.1)[0]}\n\nStart from this declaration: `def f(x):`"]
    asked += ["Write a short summary of this post.\n\nTitle: post 2\n\n" + slf5k(3)[2]["post"]]
    asked += ["Say one more than number 3.", "Complete this function. Answer with all of it.", "Add one, 1."]
    for question in asked:
        example = Example(id="1", prompt=(Message(role="user", content=question),))
        for answer in (RIGHT, WRONG):
            yield question, answer
            (turn,) = judge_messages(read_prompt("reward_model"), example, answer)
            yield turn.content, CRITIQUE


def _teach(folder: Path, lessons: Sequence[tuple[str, str]], steps: int = 200) -> None:
    """Train a model on all lessons at once, so many times."""
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
        wanted = labels[:, 1:].flatten()
        # Smoothed, so that no other text is all but impossible: fine-tuning on it would count as diverged.
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted, label_smoothing=0.01)
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


# The data sets


def hub_rows(name: str, split: str) -> Iterator[Row]:
    """In the place of `data.files._hub_rows`: rows of the data sets of the list, in their published shapes.

    Raises:
        UserError: the list has no such data set, or it has no such split.
    """
    known: Mapping[tuple[str, str], Iterable[Row]] = {
        ("JeremyAlain/SLF5K", "train.jsonl"): slf5k(12),
        ("JeremyAlain/SLF5K", "validation.jsonl"): slf5k(3, "held"),
        ("KodCode/KodCode-Light-RL-10K", "train"): [_kodcode(each) for each in _questions("Add one", 0.1)],
        ("openbmb/UltraFeedback", "train"): [_ultrafeedback(each) for each in _questions("Say one more", 0.02)],
        ("HuggingFaceH4/ultrafeedback_binarized", "train_prefs"): _binarized("train"),
        ("HuggingFaceH4/ultrafeedback_binarized", "test_prefs"): _binarized("test"),
        ("openai/openai_humaneval", "test"): [_humaneval(n) for n in range(3)],
        ("google-research-datasets/mbpp", "test"): [_mbpp(n) for n in range(11, 14)],
        ("allenai/ai2_arc", "ARC-Challenge/test"): [_arc(n) for n in range(3)],
        ("tatsu-lab/alpaca_eval", "alpaca_eval_gpt4_baseline.json"): [_alpaca(n) for n in range(3)],
    }
    if (name, split) not in known:
        raise UserError(f"the list names no split {split!r} of {name!r}", "tiny_world.hub_rows has those it names")
    return iter(known[name, split])


def _questions(start: str, heldout_share: float, trained: int = 12, held: int = 2) -> list[str]:
    """Questions of which so many are trained on and held out, at the share of their preset."""
    settings = TaskSettings(name="qa", heldout_share=heldout_share)
    wanted, found = {"train": trained, "heldout": held}, []
    for number in range(10_000):
        question = f"{start} than number {number}."
        if wanted[split := split_of(question.casefold(), settings)]:
            wanted[split] -= 1
            found.append(question)
    return found


def slf5k(count: int, name: str = "post") -> list[Row]:
    """Posts with a draft, what a person said of it, and their own summary."""
    return [
        {
            "id": f"t3_{name}{n}",
            "title": f"{name} {n}",
            "post": f"I watered my {n} plants every day in June and now half of them split. Water less?",
            "generated_summary_for_feedback": f"The author grows {n} plants.",
            "feedback": "Leaves out the question.",
            "tldr_human_reference_summary": f"{n} plants split, water less?",
            "ideal_human_summary": f"Half of {n} plants that were watered daily split; water less?",
        }
        for n in range(count)
    ]


def _kodcode(question: str) -> Row:
    return {
        "question_id": question.split()[-1].rstrip("."),
        "question": question,
        "solution": f"{RIGHT}\n",
        "test": "from solution import f\n\ndef test_some():\n    assert f(1) == 2\n\ndef test_none():\n    f(0)\n",
        "test_info": [{"function_name": "f", "function_declaration": "def f(x):"}],
    }


def _ultrafeedback(question: str) -> Row:
    completions: list[Row] = [
        {"model": "a", "response": "One.", "overall_score": 2.0},
        {"model": "b", "response": "One more."},
    ]
    return {"instruction": question, "completions": [completions[0], {**completions[1], "overall_score": 8.0}]}


def _binarized(split: str) -> list[Row]:
    rows = []
    for number in range(8 if split == "train" else 3):
        question = f"A {split} question, number {number}?"
        asked = {"role": "user", "content": question}
        chosen, rejected = ({"role": "assistant", "content": text} for text in ("A good answer.", "No."))
        turns = {"chosen": [asked, chosen], "rejected": [asked, rejected]}
        rows.append({"prompt": question, "prompt_id": f"{split}-{number}", **turns})
    return rows


def _humaneval(number: int) -> Row:
    return {
        "task_id": f"HumanEval/{number}",
        "prompt": f'def f(x):\n    """Add one, {number}."""\n',
        "entry_point": "f",
        "canonical_solution": "    return x + 1\n",
        "test": "def check(candidate):\n    assert candidate(2) == 3\n",
    }


def _mbpp(number: int) -> Row:
    return {
        "task_id": number,
        "prompt": f"Write a function to add one, {number}.",
        "code": RIGHT,
        "test_imports": [],
        "test_list": ["assert f(2) == 3", "assert f(0) == 1"],
    }


def _plus(number: int, kind: str) -> Row:
    row = _humaneval(number)
    prompt = row["prompt"] if kind == "HumanEval" else f'"""\nAdd one, {number}.\nassert f(1) == 2\n"""\n'
    whole = row["canonical_solution"] if kind == "HumanEval" else f"{RIGHT}\n"
    inputs = {"base_input": [[1], [2]], "plus_input": [[3], [0]], "atol": 0}
    return {**row, "task_id": f"{kind}/{number}", "prompt": prompt, "canonical_solution": whole, **inputs}


def _arc(number: int) -> Row:
    choices = {"label": ["A", "B"], "text": [f"one more, {number}", "a stone"]}
    return {"id": f"q{number}", "question": f"What follows {number}?", "choices": choices, "answerKey": "A"}


def _alpaca(number: int) -> Row:
    return {
        "instruction": f"Count from {number}.",
        "output": f"{number}, then one more.",
        "dataset": "helpful_base",
    }


# The files


def write_files(folder: Path) -> None:
    """What no data set of the hub brings, under `folder/data`."""
    for stem, kind in (("HumanEvalPlus", "HumanEval"), ("MbppPlus", "Mbpp")):
        _write(folder / "data" / f"{stem}.jsonl.gz", [_plus(n, kind) for n in range(2)])
    place = folder / "data" / "mt_bench"
    turns = [("writing", ["Write.", "Again."]), ("math", ["1 + 1?", "And 2 more?"])]
    questions = [
        {"question_id": n, "category": category, "turns": said} for n, (category, said) in enumerate(turns)
    ]
    _write(place / "question.jsonl", questions)
    _write(place / "reference_answer_gpt-4.jsonl", [{"question_id": 1, "choices": [{"turns": ["2", "4"]}]}])
    _write(place / "judge_prompts.jsonl", [_judge_prompt(math, two) for math in (0, 1) for two in (0, 1)])


def _judge_prompt(math: int, two: int) -> Row:
    template = "{question_1}: {answer_1}; {question_2}: {answer_2}" if two else "{question}: {answer}"
    name = f"single{'-math' * math}-v1{'-multi-turn' * two}"
    right = "Right: {ref_answer_1}\n" * math
    return {"name": name, "system_prompt": RATE, "prompt_template": right + template}


def _write(path: Path, rows: Iterable[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


# The chat endpoint

RATE = "Rate from 1 to 10."


def reply_to(messages: list[Row]) -> str:
    """What the endpoint says: a verdict, a rating, labels of all words, or a critique, as it is asked."""
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
    said: Row = {"reasoning": "Its first words, then its last."} if '"reasoning"' in text else {}
    said |= {"critique": "It begins well and ends badly.", "good_spans": good, "poor_spans": poor, "omissions": []}
    return json.dumps(said | ({} if '"score"' not in text else {"score": 0.5}))


def marks_of(response: str) -> tuple[list[Row], list[Row]]:
    """Good and poor quotes: of a canary those that are known, of anything else its first word and its last."""
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
    """Of a word: that of a quote with it or in it."""
    for label, quotes in ((-1, poor), (1, good)):
        if any(word in each["quote"].split() or each["quote"] in word for each in quotes):
            return label
    return 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = {"role": "assistant", "content": reply_to(asked["messages"])}
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": asked["model"]}
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
    """A server on loopback; its base URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
