"""The task `lookup`: tools, held-out problems, and the critic's spans per turn."""

from __future__ import annotations

import pytest
from episodes import play_episode

from text2grad.config import find_config, load_config
from text2grad.critics.table import spec_of
from text2grad.feedback import Critique, Example, Message, Transcript, conversation_of, turns_of
from text2grad.tasks.base import TaskSettings, get_environment_factory, load_task
from text2grad_lab.tasks.lookup import LookupCritic, LookupTask, Tools
from text2grad_lab.tasks.lookup.problems import SLOTS, Problem

TABLE = {"lamp": {"stock": 7, "sold": 4, "price": 12}, "book": {"stock": 3}}
PROBLEM = Problem((SLOTS[0][4], SLOTS[1][3], SLOTS[2][0], SLOTS[3][1]), "lamp", TABLE)
"""Twelve times the stock of lamps plus 5, answered with the item and the number."""
EXAMPLE = Example(id="1", prompt=(Message(role="user", content=PROBLEM.question()),), meta=PROBLEM.meta())


def play(*turns: str) -> Transcript:
    return play_episode(Tools(), EXAMPLE, turns)


def judge(*turns: str) -> tuple[float | None, list[str], list[str]]:
    """Return the verdict on an episode, its good words, and its poor words with reasons."""
    (critique,) = LookupCritic().critique([EXAMPLE], [play(*turns)])
    assert isinstance(critique, Critique)
    good = [span.text for span in critique.spans if span.label > 0]
    return critique.score, good, [f"{span.text}: {span.reason}" for span in critique.spans if span.label < 0]


RIGHT = ("lookup stock of lamp", "compute 12*7+5", "answer lamp 89")


def test_right_calls_are_good_and_pass() -> None:
    score, good, poor = judge(*RIGHT)
    assert (score, poor) == (1.0, [])
    assert "".join("".join(good).split()) == "".join(" ".join(RIGHT).split())


@pytest.mark.parametrize(
    ("turns", "blamed"),
    [
        (("lookup sold of lamp", "compute 12*4+5", "answer lamp 53"), ["sold: should be stock"]),
        (("lookup stock of book", "compute 12*3+5", "answer lamp 41"), ["book: should be lamp"]),
        (
            ("lookup stock of lamp", "compute 10*7+5", "answer lamp 75"),
            ["0: should be 12"],
        ),
        (
            ("lookup stock of lamp", "compute 12*7-5", "answer lamp 79"),
            ["-: should be +"],
        ),
        (("lookup stock of lamp", "compute 12*8+5", "answer lamp 101"), ["8: should be 7"]),
        (("lookup stock of lamp", "compute 12*7+5", "answer 89"), ["8: lamp is missing"]),
        (
            ("lookup stock of lamp", "compute 12*7+5", "answer 89 lamp"),
            ["89: should be lamp", "lamp: should be 89"],
        ),
        (
            ("lookup stock of lamp", "compute 12*7+5", "answer lamp 7"),
            ["7: the result 89 is not used"],
        ),
        (("lookup stock of lamp", "answer lamp 89"), ["answer lamp 89: it was not computed"]),
        (("compute 12*7+5", "answer lamp 89"), ["compute 12*7+5: nothing was looked up to compute with"]),
        (
            ("lookup stock of lamp", "lookup stock of lamp", "compute 12*7+5", "answer lamp 89"),
            ["lookup stock of lamp: it was looked up before"],
        ),
        (
            ("lookup stock of lamp", "compute 12*7+5", "compute 12*7+5", "answer lamp 89"),
            ["compute 12*7+5: it was computed before"],
        ),
        (("open the drawer",), ["open the drawer: there is no such call"]),
        (("lookup stock of lamp", "compute 12*7", "answer lamp 84"), ["7: +5 is missing"]),
    ],
)
def test_mistakes_are_poor_at_their_place(turns: tuple[str, ...], blamed: list[str]) -> None:
    score, _, poor = judge(*turns)
    assert [reason.replace("+ 5", "+5") for reason in poor] == blamed
    assert score == (1.0 if turns[-1] == "answer lamp 89" else -1.0)


def test_equivalent_sums_are_right() -> None:
    assert judge("lookup stock of lamp", "compute 5+(7*12)", "answer lamp 89")[2] == []


def test_each_span_is_inside_a_turn_of_the_policy() -> None:
    """In demonstrations with mistakes no span crosses the end of a turn or quotes a tool."""
    task = LookupTask(TaskSettings(name="text2grad_lab.tasks.lookup:LookupTask", limit=400))
    demonstrations = task.examples("sft")
    passed = 0
    references = [example.reference for example in demonstrations]
    critiques = LookupCritic().critique(demonstrations, references)
    for example, critique in zip(demonstrations, critiques, strict=True):
        assert isinstance(critique, Critique)
        turns = turns_of(example.reference)
        assert all(any(t.start <= span.start < span.end <= t.end for t in turns) for span in critique.spans)
        right = task.scores(example, example.reference)["pass"]
        assert critique.score == 2 * right - 1
        assert right or any(span.label < 0 for span in critique.spans), "failures have a poor span"
        passed += right == 1
    assert 0.1 < passed / len(demonstrations) < 0.4, "demonstrations contain mistakes"


@pytest.mark.parametrize("slip", range(4))
def test_a_mistake_in_any_part_fails(slip: int) -> None:
    wrong = PROBLEM.transcript([part == slip for part in range(4)])
    (critique,) = LookupCritic().critique([EXAMPLE], [wrong])
    assert isinstance(critique, Critique) and critique.score == -1.0
    turn = turns_of(wrong)[(0, 1, 1, 2)[slip]]
    poor = [span for span in critique.spans if span.label < 0]
    assert poor and all(turn.start <= span.start < turn.end for span in poor), "the other turns are right"


def test_held_out_combinations_are_new_and_seeds_reproducible() -> None:
    task = LookupTask(TaskSettings(name="text2grad_lab.tasks.lookup:LookupTask", limit=300))
    train, heldout, sft = (task.examples(split) for split in ("train", "heldout", "sft"))
    names = [{example.meta["combination"] for example in split} for split in (train, heldout, sft)]
    assert len(names[0]) == 288 and len(names[1]) == 72 and not names[1] & (names[0] | names[2])
    assert LookupTask(TaskSettings(name="text2grad_lab.tasks.lookup:LookupTask", limit=300)).examples("sft") == sft
    assert all(task.scores(example, example.reference) == {"pass": 1.0} for example in [*train, *heldout])
    prompts = [example.prompt[0].content for example in heldout]
    assert not any(str(number) in prompt for prompt in prompts for number in range(6, 10))


def test_examples_are_serialised_with_their_transcript() -> None:
    example = LookupTask(TaskSettings(name="text2grad_lab.tasks.lookup:LookupTask")).examples("train")[0]
    again = Example.model_validate_json(example.model_dump_json())
    assert again == example and conversation_of(again.reference) == conversation_of(example.reference)


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("lookup price of lamp", "12"),
        ("lookup price of moon", "no price of moon"),
        ("compute 2*(3+4)-1", "13"),
        ("compute 7/2", "7/2"),
        ("compute -3+1", "-2"),
        ("compute 1/0", "no such sum"),
        ("compute 9**9**9", "no such sum"),
        ("compute 2*", "no such sum"),
        ("hello", "Write one line: lookup COLUMN of ITEM, compute SUM, or answer WORDS."),
    ],
)
def test_tools_answer_calls(line: str, reply: str) -> None:
    tools = Tools(TABLE)
    assert tools.step(Message(role="assistant", content=f" {line}\n")) == (
        (Message(role="tool", content=reply),),
        False,
    )


def test_the_preset_names_the_task_and_its_critic() -> None:
    config = load_config(find_config("text2grad_lab:lookup"))
    task = load_task(config.task)
    make = get_environment_factory(task)
    assert (
        make is not None
        and isinstance(make(), Tools)
        and get_environment_factory(load_task(TaskSettings(name="demo"))) is None
    )
    assert isinstance(spec_of(config.critic.kind).make(None, None), LookupCritic)  # type: ignore[arg-type]
