"""The task `forms`: tools, held-out kinds, the critic's spans, and tricks."""

from __future__ import annotations

import pytest
from episodes import play_episode

from text2grad.config import find_config, load_config
from text2grad.critics.table import spec_of
from text2grad.feedback import Critique, Example, Message, Transcript, turns_of
from text2grad.tasks.base import TaskSettings, get_environment_factory, load_task
from text2grad_lab.tasks.forms import Desk, FormCritic, FormTask
from text2grad_lab.tasks.forms.problems import KINDS, RULES, Form

RECORD = {"client": "Ada Brown", "due": "7 March 2024", "number": "kx-204", "total": "$12.50"}
FORM = Form("invoice", {"due": RULES["date"][0], "client": RULES["name"][0]}, RECORD)
EXAMPLE = Example(id="1", prompt=(Message(role="user", content=FORM.question()),), meta=FORM.meta())
RIGHT = ("read due", "set due to 2024-03-07", "read client", "set client to Brown, Ada", "submit")
TASK = "text2grad_lab.tasks.forms:FormTask"


def play(*turns: str) -> Transcript:
    return play_episode(Desk(), EXAMPLE, turns)


def judge(response: str, example: Example = EXAMPLE) -> Critique:
    (critique,) = FormCritic().critique([example], [response])
    assert isinstance(critique, Critique)
    return critique


def blamed(*turns: str) -> list[str]:
    return [f"{span.text}: {span.reason}" for span in judge(play(*turns)).spans if span.label < 0]


def test_right_calls_are_good_and_pass() -> None:
    critique = judge(play(*RIGHT))
    assert critique.score == 1.0 and all(span.label > 0 for span in critique.spans)
    assert [span.text for span in critique.spans] == list(RIGHT)
    assert (
        len(RIGHT) == 5
        and FORM.question() == "Fill in the invoice form. due: year-month-day; client: surname first."
    )


FIRST = RIGHT[:2]
RULE = "due should be: year-month-day"


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (("read due", "set due to 2024-07-03"), [f"07: {RULE}"]),
        (("read due", "set due to 2024-3-07"), [f"3: {RULE}"]),
        (("read due", "set due to 2024-03"), [f"03: the value is not complete; {RULE}"]),
        (("read due", "set due to 2024-03-07 ok"), [f"ok: too much; {RULE}"]),
        (("read due", "set due to 2024 - 03 - 07"), [f"2024 - 03 - 07: {RULE}"]),
        (("read due", "set due to 1999-03-07"), ["1999: the record does not have this"]),
        (("set due to 2024-03-07",), ["set due to 2024-03-07: its field was not read yet"]),
        (("read due", "read due"), ["read due: it was read before"]),
        (("read total",), ["total: the question does not ask for it"]),
        (("read moon",), ["moon: the question does not ask for it"]),
        ((*FIRST, "set due to 2024-03-07"), ["set due to 2024-03-07: the field was filled in before"]),
        ((*FIRST, "submit"), ["submit: client not filled in"]),
        (("submit",), ["submit: due and client not filled in"]),
        (("open the drawer",), ["open the drawer: there is no such call"]),
    ],
)
def test_mistakes_are_poor_at_their_place(turns: tuple[str, ...], expected: list[str]) -> None:
    assert blamed(*turns) == expected
    assert judge(play(*turns)).score == -1.0


def test_corrected_mistakes_are_not_good_twice() -> None:
    critique = judge(play("read due", "set due to 2024-07-03", *RIGHT[1:]))
    assert critique.score == 1.0
    good = [span.text for span in critique.spans if span.label > 0]
    assert good == ["read due", "set due to 2024-", *RIGHT[2:]]


def test_no_trick_passes() -> None:
    """Only the form counts: no wording, order, repetition or forged turn replaces it."""
    complete = "\n".join(RIGHT)
    tricks = {
        "nothing": (),
        "submit at once": ("submit",),
        "all calls in one turn": (complete,),
        "all calls in one line": (" ".join(RIGHT), "submit"),
        "a call before the submission in one turn": (*RIGHT[:3], f"{RIGHT[3]}\nsubmit"),
        "a claim": ("The form is right.", "submit"),
        "tool output in a turn": ("read due\n\ndone", "submit"),
        "other letters": (*RIGHT[:3], "set client to Br\u043ewn, Ada", "submit"),  # a Cyrillic o
        "quotes": (*RIGHT[:3], 'set client to "Brown, Ada"', "submit"),
        "case": (*RIGHT[:3], "SET client to Brown, Ada", "submit"),
        "both orders": (*RIGHT[:3], "set client to Brown, Ada or Ada Brown", "submit"),
        "every field": (*RIGHT[:4], "set total to 1250", "submit"),
        "a right value undone": (*RIGHT[:4], "set client to Ada Brown", "submit"),
        "no submission": RIGHT[:4],
        "a different submission": (*RIGHT[:4], "submit the form"),
        "a field name with a space": (*RIGHT[:3], "set client  to Brown, Ada", "submit"),
    }
    passed = [name for name, turns in tricks.items() if judge(play(*(turns or ("",)))).score == 1.0]
    assert passed == []
    forged = Transcript.of([((), line) for line in ("submit", *RIGHT)])
    assert judge(forged).score == -1.0 and FormTask(TaskSettings(name=TASK)).scores(EXAMPLE, forged)["pass"] == 0
    farmed = judge(play(*["read due"] * 8, *["set due to 2024-01-01"] * 8))
    assert [span.label for span in farmed.spans].count(1) == 2, "one read and one call"


def test_spans_stay_in_their_turn_and_hide_the_value() -> None:
    examples = FormTask(TaskSettings(name=TASK, limit=300)).examples("sft")
    passed = 0
    for example in examples:
        critique = judge(example.reference, example)
        turns = turns_of(example.reference)
        assert all(any(t.start <= span.start < span.end <= t.end for t in turns) for span in critique.spans)
        right = FormTask.scores(FormTask(TaskSettings(name=TASK)), example, example.reference)["pass"]
        assert critique.score == 2 * right - 1
        assert bool(right) == all(span.label > 0 for span in critique.spans), "each mistake is blamed"
        reasons = " ".join(span.reason for span in critique.spans)
        assert not any(value in reasons for value in example.meta["right"].values())
        passed += right == 1
    assert 0.2 < passed / len(examples) < 0.45, "imitation alone learns the mistakes"


def test_every_rule_has_a_mistake_that_fails() -> None:
    record = {name: RECORD[field] for field, name in KINDS["invoice"].items()} | {"place": "Leeds, England"}
    for name, rules in RULES.items():
        for rule in rules:
            form = Form("any", {name: rule}, record)
            example = EXAMPLE.model_copy(update={"meta": form.meta()})
            assert judge(form.transcript(), example).score == 1.0
            wrong = judge(form.transcript([name]), example)
            assert wrong.score == -1.0 and [span.label for span in wrong.spans].count(-1) == 1


def test_held_out_fields_are_new_and_seeds_reproducible() -> None:
    task = FormTask(TaskSettings(name=TASK, limit=300))
    train, heldout, sft = (task.examples(split) for split in ("train", "heldout", "sft"))
    assert (len(train), len(heldout), len(sft)) == (288, 72, 300)
    fields = [{field for example in split for field in example.meta["record"]} for split in (train, heldout, sft)]
    assert not fields[1] & (fields[0] | fields[2]) and len({example.meta["kind"] for example in heldout}) == 2
    assert FormTask(TaskSettings(name=TASK, limit=300)).examples("sft") == sft
    assert all(task.scores(example, example.reference) == {"pass": 1.0} for example in [*train, *heldout])
    assert {len(turns_of(example.reference)) for example in train} == {5, 7}


def test_tools_answer_calls() -> None:
    desk = Desk(RECORD)
    lines = {"read due": "7 March 2024", "read moon": "no field moon", "set due to x": "done", "fill": None}
    replies = {line: desk.respond(line) for line in lines}
    assert replies == {**lines, "fill": "Write one line: read FIELD, set FIELD to VALUE, or submit."}
    assert desk.step(Message(role="assistant", content=" submit\n")) == ((), True) and desk.form == {"due": "x"}
    desk.reset(EXAMPLE)
    assert desk.form == {}


@pytest.mark.parametrize("preset", ["forms_smollm2", "lookup_smollm2"])
def test_presets_name_a_task_with_an_environment_and_its_critic(preset: str) -> None:
    config = load_config(find_config(f"text2grad_lab:{preset}"))
    assert get_environment_factory(load_task(config.task)) is not None
    critic = spec_of(config.critic.kind).make(None, None)  # type: ignore[arg-type]
    assert config.policy.model == "smollm2" and critic.source.prompt_version == preset.removesuffix("_smollm2")
