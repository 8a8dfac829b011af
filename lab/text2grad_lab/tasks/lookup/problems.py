"""Seeded problems of four parts, and demonstrations by an agent that makes mistakes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from text2grad.data.published import single_turn_example
from text2grad.feedback import Environment, Example, Message, Transcript, turns_of
from text2grad.settings import TinyShape
from text2grad.tasks.base import TaskSettings, refuse_split_settings
from text2grad.tasks.demo import SLIPS, Part
from text2grad_lab.tasks.lookup.tools import Table, Tools, value_of

DEFAULT_DEMONSTRATIONS = 6144
ITEMS = ("lamp", "chair", "book", "clock", "kettle", "spoon")
COLUMNS = ("price", "value", "weight", "size", "stock", "sold", "age")
LEAST, MOST = 2, 9
"""The range of the numbers in a table."""


def _part(name: str, phrase: str, text: str, wrong: str, slip: str) -> Part:
    return Part(name, phrase, text, (wrong,), SLIPS[slip])


SLOTS = (
    (
        _part("costs", "what the {item} costs", "price", "value", "rare"),
        _part("worth", "what the {item} is worth", "value", "price", "habit"),
        _part("weighs", "what the {item} weighs", "weight", "size", "rare"),
        _part("old", "how old the {item} is", "age", "size", "rare"),
        _part("left", "how many of the {item} are left", "stock", "sold", "habit"),
        _part("gone", "how many of the {item} have gone", "sold", "stock", "rare"),
    ),
    (
        _part("twice", "twice", "2*{x}", "{x}+2", "rare"),
        _part("thrice", "three times", "3*{x}", "3+{x}", "rare"),
        _part("seven", "seven times", "7*{x}", "7+{x}", "rare"),
        _part("dozen", "a dozen times", "12*{x}", "10*{x}", "habit"),
        _part("square", "squared", "{x}*{x}", "2*{x}", "habit"),
    ),
    (
        _part("plus", "plus 5", "+5", "-5", "rare"),
        _part("minus", "minus 3", "-3", "+3", "rare"),
        _part("more", "plus itself", "+{x}", "+1", "habit"),
        _part("less", "minus itself", "-{x}", "-1", "habit"),
    ),
    (
        _part("number", "the number", "{result}", "{x}", "rare"),
        _part("named", "the item and the number", "{item} {result}", "{result}", "habit"),
        _part("first", "the number and the item", "{result} {item}", "{item} {result}", "rare"),
    ),
)
"""The parts of a problem: the column, the factor, the summand, and the wording of the answer.

`code` is the agent's text for a part, `wrong` its text when it makes a mistake.
"""


@dataclass(frozen=True)
class Problem:
    """One combination of parts, about one item of a table."""

    parts: tuple[Part, ...]
    item: str
    table: Table

    @property
    def combination(self) -> str:
        """The structure, which training and held-out problems never share."""
        return "/".join(part.name for part in self.parts)

    def question(self) -> str:
        """Return the question to the policy."""
        subject, times, added, worded = (part.phrase.format(item=self.item) for part in self.parts)
        return f"Find {subject}, {times}, {added}. Answer with {worded}."

    def plan(self, slips: Sequence[bool] = (False,) * 4) -> dict[str, str]:
        """Return the agent's text per part: `column`, `sum` of {x}, `answer` of {x}, {result}."""
        column, times, added, worded = (
            part.wrong[0] if slip else part.code for part, slip in zip(self.parts, slips, strict=True)
        )
        return {"column": column, "sum": f"{times}{added}", "answer": worded.replace("{item}", self.item)}

    def meta(self) -> dict[str, Any]:
        """Return the data that the environment and the critic see, but not the policy."""
        return {"combination": self.combination, "item": self.item, "table": self.table, "plan": self.plan()}

    def transcript(self, slips: Sequence[bool] = (False,) * 4) -> Transcript:
        """Return an episode of an agent that makes the mistake of part i where `slips[i]`."""
        plan, tools = self.plan(slips), Tools(self.table)
        call = f"lookup {plan['column']} of {self.item}"
        x = tools.respond(call)
        compute = f"compute {plan['sum'].format(x=x)}"
        result = tools.respond(compute)
        answer = f"answer {plan['answer'].format(x=x, result=result)}"
        messages = [(), *((Message(role="tool", content=text),) for text in (x, result))]
        return Transcript.of(zip(messages, (call, compute, answer), strict=True))


def make_table(rng: random.Random) -> Table:
    """Return a table with a number for every column of every item."""
    return {item: {column: rng.randint(LEAST, MOST) for column in COLUMNS} for item in ITEMS}


class LookupTask:
    """Problems whose numbers only the environment knows, with held-out combinations.

    `sft` has demonstrations with mistakes, `train` and `heldout` right transcripts as references.
    """

    name = "lookup"
    critic_prompt = "qa"
    tiny_model = TinyShape(phrases=False)  # a token is a word, and spans mark words

    def __init__(self, settings: TaskSettings) -> None:
        refuse_split_settings(settings)
        self.limit = settings.limit or DEFAULT_DEMONSTRATIONS
        self.seed = settings.seed
        combinations = list(itertools.product(*SLOTS))
        random.Random(f"{self.seed}/lookup").shuffle(combinations)
        cut = round(len(combinations) * settings.heldout_share)
        self.combinations = {"heldout": combinations[:cut], "train": combinations[cut:]}

    def environment(self) -> Environment:
        """Return the table and the calculator of one episode."""
        return Tools()

    def examples(self, split: str) -> list[Example]:
        """Return every combination once, or for `sft` `task.limit` demonstrations of training ones.

        Equal seeds give equal examples.
        """
        rng = random.Random(f"{self.seed}/{split}")
        pool = self.combinations["heldout" if split == "heldout" else "train"]
        problems = itertools.islice(itertools.cycle(pool), self.limit if split == "sft" else len(pool))
        return [self._example(f"{split}-{index}", parts, split, rng) for index, parts in enumerate(problems)]

    def _example(self, name: str, parts: tuple[Part, ...], split: str, rng: random.Random) -> Example:
        problem = Problem(parts, rng.choice(ITEMS), make_table(rng))
        slips = [split == "sft" and rng.random() < part.slip for part in parts]
        example = single_turn_example(name, problem.question(), "", problem.meta())
        return example.model_copy(update={"reference": problem.transcript(slips)})

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Return `pass`, 1 if the last turn is the right answer."""
        return {"pass": float(is_right(example, response))}


def is_right(example: Example, response: str) -> bool:
    """True if the last turn is the right answer."""
    last = turns_of(response)[-1]
    return response[last.start : last.end].strip() == f"answer {right_answer(example)}"


def right_answer(example: Example) -> str:
    """Return the text of the right answer."""
    plan, item = example.meta["plan"], example.meta["item"]
    x = str(example.meta["table"][item][plan["column"]])
    return str(plan["answer"]).format(x=x, result=value_of(plan["sum"].format(x=x)))
