"""Have a chat model mark the words that people's comments are about."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence

from text2grad.config import Config
from text2grad.data.responses import item_of_record
from text2grad.feedback import Feedback
from text2grad.jsonl import read_jsonl
from text2grad.stages.critics import prompt_name
from text2grad.stages.paid import AnnotateOptions, PaidJob

ANCHORED = "anchored.jsonl"


def anchor_comments(
    config: Config, model: str, records: Sequence[Feedback], approve: Callable[[str], bool]
) -> list[Feedback]:
    """Return the records, with marks on the words that comments without spans are about.

    Answers are kept in a journal in the run folder, so that nothing is paid for twice. A comment
    that the model cannot anchor is not changed.

    `approve` is called with a question after the cost is shown; False sends nothing.

    Raises:
        UserError: the endpoint cannot be used, or misplaces the words of known comments.
    """
    target = config.run.folder / ANCHORED
    endpoint = config.critic.prompted.model_copy(update={"model": model})
    job = PaidJob(endpoint, prompt_name(endpoint, config.task), AnnotateOptions(anchor=True))
    items = [item_of_record(record, anchor=True) for record in records]
    plan = job.plan(items, target)
    if not plan["records"]:
        return list(records)
    if plan["requests"]:
        usd = f"{plan['usd']:.2f} USD" if plan["usd"] is not None else f"price {plan['price']}"
        tokens = f"about {plan['prompt_tokens']} tokens in, {plan['completion_tokens']} out"
        print(
            f"comments without marked words: {plan['records']}; {model}: {plan['requests']} requests"
            f" and a few canaries, {tokens}, {usd}",
            file=sys.stderr,
        )
        if not approve(f"Ask {model}?"):
            return list(records)
    command = ["text2grad", "annotate", "--anchor", "--responses", str(config.run.folder / "feedback.jsonl")]
    command += ["--critic.kind", "prompted", "--critic.prompted.model", model]
    print(f"$ {shlex.join(command)}", file=sys.stderr, flush=True)
    target.unlink(missing_ok=True)
    job.annotate(items, target)
    anchored = list(read_jsonl(target, Feedback))
    count = sum(bool(new.spans) and not old.spans for old, new in zip(records, anchored, strict=True))
    print(f"  {count} of {plan['records']} comments now point at words", file=sys.stderr)
    return anchored
