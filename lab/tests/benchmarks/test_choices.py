"""Multiple-choice questions: likelihoods against single passes, the two choices, file formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from places import SHARED
from text2grad.errors import UserError
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import PolicySettings
from text2grad.tasks.base import TaskSettings
from text2grad_lab.benchmarks.arc import ARC
from text2grad_lab.benchmarks.choices import choose
from tiny_runs import tiny_model

OPTIONS = [
    ["rain", "a short poem", "x"],
    ["keep the even ones", "ok", "write", "a"],
    ["poem", "rain", "even", "one"],
]
ROWS = [
    {"id": f"q{n}", "question": question, "options": [{"label": "ABCD"[i], "text": t} for i, t in enumerate(texts)]}
    for n, (question, texts) in enumerate(zip(["Which?", "What is it about?", "Why"], OPTIONS, strict=True))
]


def arc(path: Path, rows: list[dict[str, object]]) -> ARC:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ARC(TaskSettings(name="arc", data=str(path)))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return load_policy(PolicySettings(model=str(tiny_model(tmp_path_factory.mktemp("model")))))


def slow(policy: Policy, question: str, answer: str) -> float:
    """Return the sum of log p over the answer's tokens, by one pass over the complete text."""
    first = len(policy.tokenizer(question)["input_ids"])
    ids = torch.tensor([policy.tokenizer(f"{question} {answer}")["input_ids"]])
    with torch.no_grad():
        logp = policy.model(input_ids=ids).logits[0].double().log_softmax(-1)
    return sum(float(logp[t - 1, ids[0, t]]) for t in range(first, ids.shape[1]))


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_choices_equal_those_of_single_passes(policy: Policy, tmp_path: Path, batch_size: int) -> None:
    task = arc(tmp_path / "arc.jsonl", [{**row, "answer": "B"} for row in ROWS])
    rows = choose(policy, task.examples("heldout"), batch_size)
    differ = 0
    for row, question, texts in zip(rows, ROWS, OPTIONS, strict=True):
        likelihoods = [slow(policy, f"Question: {question['question']}\nAnswer:", text) for text in texts]
        per_character = [value / len(text) for value, text in zip(likelihoods, texts, strict=True)]
        likeliest, normalised = likelihoods.index(max(likelihoods)), per_character.index(max(per_character))
        differ += likeliest != normalised
        assert row["response"] == texts[normalised]
        assert row["scores"] == {
            "likelihood": float(likeliest == 1),
            "likelihood_normalised": float(normalised == 1),
        }
    assert differ, "the two choices should differ for some question"


def test_three_formats_give_the_same_question(tmp_path: Path) -> None:
    texts, labels = ["fog", "rain"], ["1", "2"]
    shapes: list[dict[str, object]] = [
        {"id": "a", "question": "Why?", "choices": {"text": texts, "label": labels}, "answerKey": "2"},
        {
            "id": "a",
            "question": {
                "stem": "Why?",
                "choices": [{"text": t, "label": n} for t, n in zip(texts, labels, strict=True)],
            },
            "answerKey": "2",
        },
        {
            "id": "a",
            "question": "Why?",
            "options": [{"text": t, "label": n} for t, n in zip(texts, labels, strict=True)],
            "answer": "2",
        },
    ]
    (first,), *others = [arc(tmp_path / f"{n}.jsonl", [row]).examples("heldout") for n, row in enumerate(shapes)]
    assert all(other == [first] for other in others)
    assert (first.prompt[0].content, first.reference) == ("Question: Why?\nAnswer:", "rain")
    assert (first.meta["choices"], first.meta["answer"]) == (texts, 1)


def test_an_answer_that_is_not_an_option_is_refused_by_number(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"record 1: the answer 'Z' is not one of A, B, C"):
        arc(tmp_path / "arc.jsonl", [{**ROWS[0], "answer": "Z"}])


def test_a_question_longer_than_the_context_is_refused(policy: Policy, tmp_path: Path) -> None:
    task = arc(tmp_path / "arc.jsonl", [{**ROWS[0], "question": "rain " * 200, "answer": "A"}])
    with pytest.raises(UserError, match="prompts are too long: 'q0'"):
        choose(policy, task.examples("heldout"), 4)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data sets are not here")
@pytest.mark.parametrize(
    ("file", "count"), [("arc_challenge_test_full_1172.jsonl", 1172), ("ARC-Challenge-Test.jsonl", 1150)]
)
def test_published_questions_are_read(file: str, count: int) -> None:
    task = ARC(TaskSettings(name="arc", data=str(SHARED / "arc_challenge" / file)))
    examples = task.examples("heldout")
    assert len({example.id for example in examples}) == count
    assert task.examples("train") == []
    assert examples[0].reference == "Planetary days will become shorter."


def test_a_question_is_computed_once_for_all_its_answers(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token_counts: list[int] = []
    trunk = policy.model.model.forward

    def counted(*words: object, **inputs: torch.Tensor) -> object:
        token_counts.append(inputs["input_ids"].numel())
        return trunk(*words, **inputs)

    examples = arc(tmp_path / "arc.jsonl", [{**ROWS[1], "answer": "B"}]).examples("heldout")
    assert policy.reader.shares_prompts
    monkeypatch.setattr(policy.model.model, "forward", counted)
    choose(policy, examples, 4)
    question = len(policy.tokenizer(examples[0].prompt[-1].content)["input_ids"])
    answers = [
        len(policy.tokenizer(f"{examples[0].prompt[-1].content} {text}")["input_ids"]) for text in OPTIONS[1]
    ]
    assert token_counts == [question + sum(answers) - len(answers) * question]
