"""The task `lookup`: what its tools say, what its problems share, and what its critic marks, in the
right turn."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from text2grad.config import find_config, load_config
from text2grad.critics.table import spec_of
from text2grad.feedback import Critique, Example, Message, Transcript, conversation_of, turns_of
from text2grad.tasks.base import TaskSettings, get_environment_factory, load_task
from text2grad_lab.tasks.lookup import LookupCritic, LookupTask, Tools
from text2grad_lab.tasks.lookup.problems import SLOTS, Problem

TABLE = {"lamp": {"stock": 7, "sold": 4, "price": 12}, "book": {"stock": 3}}
PROBLEM = Problem((SLOTS[0][4], SLOTS[1][3], SLOTS[2][0], SLOTS[3][1]), "lamp", TABLE)
"""How many of the lamp are left, a dozen times, plus 5; answer with the item and the number."""
EXAMPLE = Example(id="1", prompt=(Message(role="user", content=PROBLEM.question()),), meta=PROBLEM.meta())


def played(*turns: str) -> Transcript:
    """An episode of these turns in the environment, as far as it goes."""
    tools, said = Tools(), []
    tools.reset(EXAMPLE)
    others: Sequence[Message] = ()
    for words in turns:
        said.append((others, words))
        others, over = tools.step(Message(role="assistant", content=words))
        if over:
            break
    return Transcript.of(said, others)


def marks(*turns: str) -> tuple[float | None, list[str], list[str]]:
    """The verdict on an episode, the words that are praised, and those that are blamed, each with
    why."""
    (found,) = LookupCritic().critique([EXAMPLE], [played(*turns)])
    assert isinstance(found, Critique)
    good = [span.text for span in found.spans if span.label > 0]
    return found.score, good, [f"{span.text}: {span.reason}" for span in found.spans if span.label < 0]


RIGHT = ("lookup stock of lamp", "compute 12*7+5", "answer lamp 89")


def test_the_right_calls_are_praised_and_pass() -> None:
    score, good, poor = marks(*RIGHT)
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
def test_what_is_wrong_is_blamed_where_it_stands(turns: tuple[str, ...], blamed: list[str]) -> None:
    score, _, poor = marks(*turns)
    assert [each.replace("+ 5", "+5") for each in poor] == blamed
    assert score == (1.0 if turns[-1] == "answer lamp 89" else -1.0)


def test_another_way_to_the_same_sum_is_right() -> None:
    assert marks("lookup stock of lamp", "compute 5+(7*12)", "answer lamp 89")[2] == []


def test_each_mark_is_in_a_turn_of_the_policy() -> None:
    """Of demonstrations with any mistakes: no span reaches over the end of its turn or quotes a
    tool."""
    task = LookupTask(TaskSettings(name="text2grad_lab.tasks.lookup:LookupTask", limit=400))
    demonstrations = task.examples("sft")
    passed = 0
    for example, said in zip(
        demonstrations,
        LookupCritic().critique(demonstrations, [each.reference for each in demonstrations]),
        strict=True,
    ):
        assert isinstance(said, Critique)
        turns = turns_of(example.reference)
        assert all(any(t.start <= span.start < span.end <= t.end for t in turns) for span in said.spans)
        right = task.scores(example, example.reference)["pass"]
        assert said.score == 2 * right - 1
        assert right or any(span.label < 0 for span in said.spans), "what is wrong is said"
        passed += right == 1
    assert 0.1 < passed / len(demonstrations) < 0.4, "imitation alone learns the mistakes"


@pytest.mark.parametrize("slip", range(4))
def test_a_mistake_of_each_part_fails(slip: int) -> None:
    wrong = PROBLEM.transcript([part == slip for part in range(4)])
    (said,) = LookupCritic().critique([EXAMPLE], [wrong])
    assert isinstance(said, Critique) and said.score == -1.0
    turn = turns_of(wrong)[(0, 1, 1, 2)[slip]]
    poor = [span for span in said.spans if span.label < 0]
    assert poor and all(turn.start <= span.start < turn.end for span in poor), (
        "the other turns are right as they are"
    )


def test_held_out_problems_share_no_combination_and_equal_seeds_are_equal() -> None:
    task = LookupTask(TaskSettings(name="text2grad_lab.tasks.lookup:LookupTask", limit=300))
    train, heldout, sft = (task.examples(split) for split in ("train", "heldout", "sft"))
    names = [{each.meta["combination"] for each in split} for split in (train, heldout, sft)]
    assert len(names[0]) == 288 and len(names[1]) == 72 and not names[1] & (names[0] | names[2])
    assert LookupTask(TaskSettings(name="text2grad_lab.tasks.lookup:LookupTask", limit=300)).examples("sft") == sft
    assert all(task.scores(each, each.reference) == {"pass": 1.0} for each in [*train, *heldout])
    assert not any(str(number) in each.prompt[0].content for each in heldout for number in range(6, 10))


def test_an_example_keeps_its_transcript_on_disk() -> None:
    example = LookupTask(TaskSettings(name="text2grad_lab.tasks.lookup:LookupTask")).examples("train")[0]
    again = Example.model_validate_json(example.model_dump_json())
    assert again == example and conversation_of(again.reference) == conversation_of(example.reference)


@pytest.mark.parametrize(
    ("line", "said"),
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
def test_tools_answer_calls(line: str, said: str) -> None:
    tools = Tools(TABLE)
    assert tools.step(Message(role="assistant", content=f" {line}\n")) == (
        (Message(role="tool", content=said),),
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
