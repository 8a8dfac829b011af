"""Your own task: a class with the prompts and a measure of the answers.

python examples/own_task.py
PYTHONPATH=examples text2grad sft --task.name own_task:Capitals
"""

import text2grad as t2g

CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Kenya": "Nairobi", "Peru": "Lima", "Norway": "Oslo"}


class Capitals:
    """Questions for the capital of a country."""

    name = "capitals"
    critic_prompt = "qa"  # the prompt of a judge: a built-in file, or your .txt file

    def __init__(self, settings: t2g.TaskSettings) -> None:
        self.limit = settings.limit

    def examples(self, split: str) -> list[t2g.Example]:
        """Return a split: `sft` to imitate, `train` to be judged in training, or `heldout`."""
        countries = list(CAPITALS)[-1:] if split == "heldout" else list(CAPITALS)[:-1][: self.limit]
        return [
            t2g.Example(
                id=country,
                prompt=(t2g.Message(role="user", content=f"What is the capital of {country}?"),),
                reference=f"The capital of {country} is {CAPITALS[country]}.",
            )
            for country in countries
        ]

    def scores(self, example: t2g.Example, response: str) -> dict[str, float]:
        """Return measures that need no model, each in [0, 1]."""
        return {"named": float(CAPITALS[example.id] in response)}


def main() -> None:
    """Load the task as a stage does, and measure two answers to a held-out question."""
    task = t2g.load_task(t2g.TaskSettings(name=f"{__name__}:Capitals"))
    print(f"{len(task.examples('train'))} questions to learn from")
    (question,) = task.examples("heldout")
    for response in (question.reference, "I do not know."):
        print(f"{question.prompt[0].content} {response} {task.scores(question, response)}")


if __name__ == "__main__":
    main()
