"""The probability from which on a reward model's span head calls a token poor, chosen on held-out critiques."""

from __future__ import annotations

import torch

from text2grad.align import token_labels
from text2grad.config import Config
from text2grad.feedback import Failure
from text2grad.policy.heads.model import as_tokens
from text2grad.rl.units import best_threshold
from text2grad.stages.judge.critics import SPANS_FILE, head_chat, load_reward_model, reward_model_folder
from text2grad.stages.learn.reward_data import fitting, reward_data
from text2grad.stages.run.results import write_json


def choose_threshold(config: Config) -> None:
    """Choose the threshold with the best F1 of poor tokens on the held-out critiques; writes it beside the model.

    Where they mark nothing poor, a token is what is likeliest.
    """
    model, folder = load_reward_model(config), reward_model_folder(config)
    (folder / SPANS_FILE).unlink(missing_ok=True)  # it is of the model before
    heads = head_chat(config, model, str(folder))
    gold = fitting(model, reward_data(config)[1], config.reward_model)
    if heads is None or not gold:
        return
    read = heads.read([pair.prompt for _, pair in gold], [record.response for record, _ in gold])
    chances, poor = [torch.zeros(0)], [torch.zeros(0, dtype=torch.bool)]
    for (record, _), each in zip(gold, read, strict=True):
        if not isinstance(each, Failure):
            tokens = as_tokens(record.response, each.places)
            chances.append(each.logits.softmax(dim=-1)[:, 0])
            poor.append(torch.from_numpy(token_labels(record.spans, tokens, config.credit.membership) < 0))
    if (known := torch.cat(poor)).any():
        threshold, f1 = best_threshold(torch.cat(chances), known)
        write_json(folder / SPANS_FILE, {"poor_threshold": threshold, "heldout_poor_f1": f1})
