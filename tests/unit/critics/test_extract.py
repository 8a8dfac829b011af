"""Where the program of a response is, and which character of the response each of its characters
is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from text2grad.critics.program.extract import Program, expected_names, extract_program

CODE = "def f(xs):\n    return sum(xs)\n"
OTHER = "def helper(x):\n    return x\n"


def assert_maps_back(program: Program, response: str) -> None:
    for index, character in enumerate(program.code):
        start, end = program.place(index, index + 1)
        assert response[start:end] == character


FENCED = [
    f"First:\n```python\n{OTHER}```\nThen:\n```python\n{CODE}```\nDone.",
    f"```python\n{CODE}```\nUse it so:\n```python\nprint(f([1]))\n```",
    f"```python\n{OTHER}```\nBetter:\n```\n{CODE}```",
    f"Draft:\n```python\ndef f(xs):\n    pass\n```\nBetter:\n```python\n{CODE}```",
    f"```bash\npip install x\n```\n```python\n{CODE}```",
    f"```text\nf = \n```\n~~~python\n{CODE}~~~\n",
    f"Run `x`.\n````python\n{CODE}````",
    f"1. Write it:\n\n   ```python\n{''.join('   ' + line for line in CODE.splitlines(True))}   ```\n",
    f"Answer: ```python\n{CODE}``` and that is all.",
]
IN_PROSE = [
    ("Here is the function:\n\n", "\nThis works because sum adds (as one expects).\n"),
    ("Sure!\n", ""),
    ("here is what you asked for:\n", "- It runs in O(n).\n- Note: empty lists give 0.\n"),
    ("", "I hope this helps.\n"),
]
BARE = [
    CODE,
    "def f(xs):\n    ys = [x for x in xs\n    return sum(ys)\n",
    "xs = [int(x) for x in input().split()]\nprint(sum(xs))",
    "n = int(input()\nprint(n)",
    "ef f(xs):\n    retrn sum(xs)\n",
    "def f(xs):\n    total = sum(xs)\n    re  return total\n",
    "class Stack:\n    X = [\n",
]
PROSE = ["", "   \n", "I cannot help with that.", "Sorry.\n\nI do not know how."]
CASES = [
    *[(response, CODE) for response in FENCED],
    *[(before + CODE + after, CODE) for before, after in IN_PROSE],
    *[(response, response) for response in BARE],
    *[(response, "") for response in PROSE],
    ("```python\ndef g(xs):\n    return 1\n```\n```\nno code here\n```", "def g(xs):\n    return 1\n"),
]


def test_the_program_is_the_block_that_defines_the_function_or_what_is_no_prose() -> None:
    """A bare program is taken whole even if it is not Python."""
    wrong = {}
    for response, code in CASES:
        program = extract_program(response, ("f",))
        assert_maps_back(program, response)
        if program.code.strip() != code.strip():
            wrong[response] = program.code
    assert not wrong


def test_without_names_the_first_block_is_the_program_and_an_open_fence_is_noted() -> None:
    assert extract_program(f"```python\n{OTHER}```\n```python\n{CODE}```").code == OTHER
    assert not extract_program(f"```python\n{CODE}").closed
    assert extract_program(f"```python\n{CODE}```").closed


@given(st.text(alphabet="`~ \n\r\tdef(x):ab=1é🙂", max_size=80))
def test_whatever_the_response_the_program_maps_back(response: str) -> None:
    assert_maps_back(extract_program(response, ("f",)), response)


def test_names_come_from_the_entry_point_and_the_imports_of_the_tests() -> None:
    tests = "import math\nfrom solution import Stack, g as h\n\ndef test():\n    from solution import k\n"
    assert expected_names(tests, "f") == ("f", "Stack", "g", "k")
    assert expected_names("from solution import *") == ()
    assert expected_names("def broken(:", "f") == ("f",)
