"""Chat templates in the shapes of those on the hub: how each begins an answer, ends it, and treats
earlier ones."""

from __future__ import annotations

import copy
from typing import NamedTuple

from tokenizers import AddedToken, Regex, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from made_tokenizers import byte_level_tokenizer


class Shape(NamedTuple):
    """A template, its control tokens, what ends an answer, and how finished answers begin behind
    their header."""

    template: str
    control: tuple[str, ...]
    end: str
    begins: str = ""
    system: bool = True


IM = ("<|im_start|>", "<|im_end|>")
_SPLIT = (
    "{% set text = m.content %}{% set thought = '' %}{% if '</think>' in text %}"
    "{% set thought = text.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
)
_LAST_USER = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
)
QWEN3 = (
    _LAST_USER + "{% for m in messages %}{% if m.role == 'assistant' %}" + _SPLIT + "<|im_start|>assistant\n"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}"
    "{{ '<think>\\n' + thought + '\\n</think>\\n\\n' + text.lstrip('\\n') }}{% else %}{{ text }}{% endif %}"
    "<|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
)
QWQ = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
)
DEEPSEEK_R1 = (
    "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.system = m.content %}{% endif %}{% endfor %}{{ bos_token }}{{ ns.system }}"
    "{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% elif m.role == 'assistant' %}"
    "<｜Assistant｜>{{ m.content.split('</think>')[-1] }}<｜end｜>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"
)
DEEPSEEK_V31 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}"
    "<｜User｜>{{ m.content }}{% else %}<｜Assistant｜></think>{{ m.content.split('</think>')[-1] }}<｜end｜>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<｜Assistant｜>"
    "{{ '<think>' if thinking else '</think>' }}{% endif %}"
)
SMOLLM3 = (
    "{% set think = enable_thinking if enable_thinking is defined else true %}"
    "{% set mode = '/think' if think else '/no_think' %}{% set custom = '' %}"
    "{% if messages[0].role == 'system' %}{% if '/no_think' in messages[0].content %}"
    "{% set mode = '/no_think' %}{% endif %}"
    "{% set custom = messages[0].content.replace('/no_think', '').replace('/think', '').rstrip() %}{% endif %}"
    "<|im_start|>system\nToday Date: {{ strftime_now('%d %B %Y') }}\nReasoning Mode: {{ mode }}\n\n"
    "{{ custom }}<|im_end|>\n"
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>user\n{{ m.content }}<|im_end|>\n"
    "{% elif m.role == 'assistant' %}{% generation %}<|im_start|>assistant\n"
    "{{ '<think>\\n\\n</think>\\n' if mode == '/no_think' else '' }}{{ m.content.lstrip('\\n') }}<|im_end|>\n"
    "{% endgeneration %}{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{{ '<think>\\n\\n</think>\\n' if mode == '/no_think' else '' }}{% endif %}"
)
HARMONY = (
    "<|start|>system<|message|>Current date: {{ strftime_now('%Y-%m-%d') }}<|end|>"
    "{% for m in messages %}{% if m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>"
    "{{ m.content }}{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}"
    "{% else %}<|start|>{{ 'developer' if m.role == 'system' else m.role }}<|message|>{{ m.content }}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
GEMMA3 = (
    "{{ bos_token }}{% set first = '' %}{% set rest = messages %}{% if messages[0].role == 'system' %}"
    "{% set first = messages[0].content + '\n\n' %}{% set rest = messages[1:] %}{% endif %}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ first if loop.first else '' }}"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
LLAMA31 = (
    "{{ bos_token }}{% set system = '' %}{% set rest = messages %}{% if messages[0].role == 'system' %}"
    "{% set system = messages[0].content | trim %}{% set rest = messages[1:] %}{% endif %}"
    "{{ '<|header|>system<|close|>\\n\\nToday Date: ' + strftime_now('%d %b %Y') + '\\n\\n' + system + '<|eot|>' }}"
    "{% for m in rest %}{{ '<|header|>' + m.role + '<|close|>\\n\\n' + m.content | trim + '<|eot|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|header|>assistant<|close|>\\n\\n' }}{% endif %}"
)
MISTRAL = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}{{ bos_token }}{% for m in rest %}{% if m.role == 'user' %}"
    "{% if loop.last and system is defined %}[INST] {{ system }}\n\n{{ m.content }}[/INST]"
    "{% else %}[INST] {{ m.content }}[/INST]{% endif %}{% else %} {{ m.content | trim }}{{ eos_token }}"
    "{% endif %}{% endfor %}"
)
LLAMA2 = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}{% if m.role == 'user' %}"
    "{{ bos_token }}[INST] {% if loop.first and system is defined %}<<SYS>>\n{{ system }}\n<</SYS>>\n\n{% endif %}"
    "{{ m.content | trim }} [/INST]{% else %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)
PHI4 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
)
GLM45 = (
    _LAST_USER
    + "[gMASK]<sop>{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>"
    + _SPLIT
    + "{{ '\\n' }}"
    "{% if loop.index0 > ns.last and thought %}<think>{{ thought }}</think>{% else %}<think></think>{% endif %}"
    "{% if text.strip() %}{{ '\\n' + text.strip() }}{% endif %}{% else %}<|{{ m.role }}|>\n{{ m.content }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>"
    "{{ '\\n<think></think>' if enable_thinking is defined and not enable_thinking else '' }}{% endif %}"
)
GLM47 = (
    "[gMASK]<sop>{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|></think>"
    "{{ m.content.split('</think>')[-1].strip() }}{% else %}<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{{ '</think>' if enable_thinking is defined and not enable_thinking else '<think>' }}{% endif %}"
)
GRANITE = (
    "{% if messages[0].role != 'system' %}<|role|>system<|close|>Today's Date: {{ strftime_now('%B %d, %Y') }}."
    "<|end_of_text|>\n{% endif %}{% for m in messages %}<|role|>{{ m.role }}<|close|>{{ m.content }}"
    "<|end_of_text|>\n{% endfor %}{% if add_generation_prompt %}<|role|>assistant<|close|>{% endif %}"
)
COMMAND_R7B = (
    "{{ bos_token }}{% for m in messages %}<|TURN|>{% if m.role == 'assistant' %}"
    "<|CHATBOT|><|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|><|END|>"
    "{% else %}<|USER|>{{ m.content }}<|END|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|TURN|><|CHATBOT|>{% endif %}"
)

EMPTY = "<think>\n\n</think>\n\n"
DEEPSEEK = ("<｜User｜>", "<｜Assistant｜>", "<｜end｜>")
GLM = ("[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|system|>")
COMMAND = ("<|TURN|>", "<|USER|>", "<|CHATBOT|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|END|>")
HARMONIC = ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>")
SHAPES = {
    "qwen3": Shape(
        QWEN3 + "{% if enable_thinking is defined and not enable_thinking %}"
        "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}",
        IM,
        "<|im_end|>",
        EMPTY,
    ),
    "qwen3-2507-thinking": Shape(QWEN3 + "{{ '<think>\\n' }}{% endif %}", IM, "<|im_end|>", EMPTY),
    "qwq": Shape(QWQ, IM, "<|im_end|>"),
    "deepseek-r1": Shape(DEEPSEEK_R1, DEEPSEEK, "<｜end｜>"),
    "deepseek-v3.1": Shape(DEEPSEEK_V31, DEEPSEEK, "<｜end｜>", "</think>"),
    "smollm3": Shape(SMOLLM3, IM, "<|im_end|>"),
    "gpt-oss": Shape(HARMONY, HARMONIC, "<|return|>", "<|channel|>final<|message|>"),
    "gemma-3": Shape(GEMMA3, ("<start_of_turn>", "<end_of_turn>"), "<end_of_turn>"),
    "llama-3.1": Shape(LLAMA31, ("<|header|>", "<|close|>", "<|eot|>"), "<|eot|>"),
    "mistral": Shape(MISTRAL, ("[INST]", "[/INST]"), "<eos>", system=False),
    "llama-2": Shape(LLAMA2, (), "<eos>"),
    "phi-4": Shape(PHI4, (*IM, "<|im_sep|>"), "<|im_end|>"),
    "glm-4.5": Shape(GLM45, GLM, "<eos>", "\n<think></think>\n"),
    "glm-4.7": Shape(GLM47, GLM, "<eos>", "</think>"),
    "granite": Shape(GRANITE, ("<|role|>", "<|close|>", "<|end_of_text|>"), "<|end_of_text|>"),
    "command-r7b": Shape(COMMAND_R7B, COMMAND, "<|END_RESPONSE|>", "<|START_RESPONSE|>"),
}


def tokenizer_of(shape: Shape) -> PreTrainedTokenizerFast:
    """A byte-level BPE that keeps line breaks apart from words, as those of Llama 3, Qwen and
    DeepSeek do."""
    core = copy.deepcopy(byte_level_tokenizer().backend_tokenizer)
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?[^\s]+|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.add_special_tokens(["<bos>", "<eos>", *(AddedToken(name, special=True) for name in shape.control)])
    core.add_tokens([AddedToken(name, special=False) for name in ("<think>", "</think>")])
    made = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<bos>", eos_token="<eos>", pad_token="<eos>")
    made.chat_template = shape.template
    return made
