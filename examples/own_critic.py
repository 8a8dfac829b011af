"""Your own critic: any object with `source` and `critique`. This one wants digits.

python examples/own_critic.py    # a tiny new model learns to write digits
PYTHONPATH=examples text2grad train --critic.kind own_critic:OnlyNumbers
"""

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import text2grad as t2g


class OnlyNumbers:
    """A critic that praises digits and blames the rest; the verdict rises with their share."""

    source = t2g.Source(kind="program", model="only numbers")

    def critique(self, examples: list[t2g.Example], responses: list[str]) -> list[t2g.Critique | t2g.Failure]:
        """Return one judgement for each response, in order."""
        return [self.judge(response) for response in responses]

    def judge(self, response: str) -> t2g.Critique | t2g.Failure:
        """Judge a response; one that cannot be judged gets a `Failure`, which is no score."""
        if not response.strip():
            return t2g.Failure(kind="unsupported", message="the response is empty")
        runs = [(run.start(), run.end(), run[0]) for run in re.finditer(r"\d+|\D+", response)]
        spans = [t2g.Span(start=a, end=b, label=1 if text[0].isdigit() else -1, text=text) for a, b, text in runs]
        digits = sum(len(span.text) for span in spans if span.label == 1) / len(response)
        return t2g.Critique(text=f"{digits:.0%} digits.", spans=tuple(spans), score=2 * digits - 1)


if __name__ == "__main__":
    t2g.seed_everything(0)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        questions = ["How many days has a week?", "How many sides?"]
        t2g.make_tiny_model(folder / "base", questions, 300, shape=t2g.TinyShape(hidden=32, layers=1))
        policy = t2g.load_policy(t2g.PolicySettings(model=str(folder / "base"), device="cpu"))
        prompts = [(t2g.Message(role="user", content=text),) for text in questions]
        examples = [t2g.Example(id=str(n), prompt=prompt) for n, prompt in enumerate(prompts * 8)]
        ppo = t2g.PPOSettings(steps=20, rollouts=16, lr=1e-2, kl_coefficient=0.0, max_kl=None)
        brief, options = t2g.GenerationSettings(max_new_tokens=8), t2g.RunOptions(folder / "run", title="train")
        chat = t2g.LocalChat(policy, brief, "policy")
        before = chat.complete(prompts * 20)
        t2g.train_ppo(policy, examples, OnlyNumbers(), ppo, t2g.CreditSettings(), brief, options)
        for when, answers in (("before", before), ("after", chat.complete(prompts * 20))):
            text = "".join(getattr(answer, "text", "") for answer in answers)
            print(f"digits {when}: {sum(map(str.isdigit, text)) / len(text):.0%}")
