"""Where the program of a response is, and which character of the response each of its characters is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text2grad.critics.program.extract import Program, extract_program, wanted_names

CODE = "def f(xs):\n    return sum(xs)\n"
OTHER = "def helper(x):\n    return x\n"


def assert_maps_back(program: Program, response: str) -> None:
    for index, character in enumerate(program.code):
        start, end = program.place(index, index + 1)
        assert response[start:end] == character


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (f"First:\n```python\n{OTHER}```\nThen:\n```python\n{CODE}```\nDone.", CODE),
        (f"```python\n{CODE}```\nUse it so:\n```python\nprint(f([1]))\n```", CODE),
        (f"```python\n{OTHER}```\nBetter:\n```\n{CODE}```", CODE),
        (f"Draft:\n```python\ndef f(xs):\n    pass\n```\nBetter:\n```python\n{CODE}```", CODE),
        (f"```bash\npip install x\n```\n```python\n{CODE}```", CODE),
        (f"```text\nf = \n```\n~~~python\n{CODE}~~~\n", CODE),
        (f"Run `x`.\n````python\n{CODE}````", CODE),
        ("```python\ndef g(xs):\n    return 1\n```\n```\nno code here\n```", "def g(xs):\n    return 1\n"),
        (f"1. Write it:\n\n   ```python\n{''.join('   ' + line for line in CODE.splitlines(True))}   ```\n", CODE),
        (f"Answer: ```python\n{CODE}``` and that is all.", CODE),
    ],
)
def test_the_block_that_defines_the_function_is_the_program(response: str, code: str) -> None:
    program = extract_program(response, ("f",))
    assert program.code.rstrip() == code.rstrip()
    assert_maps_back(program, response)


def test_without_names_the_first_block_is_the_program() -> None:
    assert extract_program(f"```python\n{OTHER}```\n```python\n{CODE}```").code == OTHER


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Here is the function:\n\n", "\nThis works because sum adds (as one expects).\n"),
        ("Sure!\n", ""),
        ("here is what you asked for:\n", "- It runs in O(n).\n- Note: empty lists give 0.\n"),
        ("", "I hope this helps.\n"),
    ],
)
def test_prose_around_a_bare_program_is_no_part_of_it(before: str, after: str) -> None:
    response = before + CODE + after
    program = extract_program(response, ("f",))
    assert program.code.strip() == CODE.strip()
    assert_maps_back(program, response)


@pytest.mark.parametrize(
    "response",
    [
        CODE,
        "def f(xs):\n    ys = [x for x in xs\n    return sum(ys)\n",
        "xs = [int(x) for x in input().split()]\nprint(sum(xs))",
        "n = int(input()\nprint(n)",
        "ef f(xs):\n    retrn sum(xs)\n",
        "def f(xs):\n    total = sum(xs)\n    re  return total\n",
        "class Stack:\n    X = [\n",
    ],
)
def test_a_bare_program_is_taken_whole_even_if_it_is_not_python(response: str) -> None:
    assert extract_program(response, ("f",)).code == response


@pytest.mark.parametrize("response", ["", "   \n", "I cannot help with that.", "Sorry.\n\nI do not know how."])
def test_prose_alone_holds_no_program(response: str) -> None:
    assert extract_program(response).code.strip() == ""


def test_an_open_fence_is_noted() -> None:
    assert not extract_program(f"```python\n{CODE}").closed
    assert extract_program(f"```python\n{CODE}```").closed


@given(st.text(alphabet="`~ \n\r\tdef(x):ab=1é🙂", max_size=80))
def test_whatever_the_response_the_program_maps_back(response: str) -> None:
    assert_maps_back(extract_program(response, ("f",)), response)


def test_names_come_from_the_entry_point_and_the_imports_of_the_tests() -> None:
    tests = "import math\nfrom solution import Stack, g as h\n\ndef test():\n    from solution import k\n"
    assert wanted_names(tests, "f") == ("f", "Stack", "g", "k")
    assert wanted_names("from solution import *") == ()
    assert wanted_names("def broken(:", "f") == ("f",)
