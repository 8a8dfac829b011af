"""Unit tests as a critic: what is said, what is blamed, and what a hostile or careless program cannot do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from text2grad.critics.program import ProgramCritic, outcome_counts
from text2grad.critics.program.case import Case
from text2grad.critics.program.critique import brief_critique
from text2grad.critics.program.extract import extract_program
from text2grad.critics.program.reference import compare
from text2grad.critics.program.source import read_code
from text2grad.feedback import Critique, Example, Failure, Feedback, Judgement, Message
from text2grad.sandbox import Runner

TESTS = """from solution import f

def test_small():
    assert f([1, 2, 3]) == 5

def test_empty():
    assert f([]) == 0
"""
RIGHT = "def f(xs):\n    ys = [x for x in xs if x >= 2]\n    return sum(ys)\n"
WRONG = RIGHT.replace(">=", ">")


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(seconds=3.0) as made:
        yield made


def example(reference: str = "", tests: str = TESTS) -> Example:
    prompt = (Message(role="user", content="Write f(xs)."),)
    return Example(id="p1", prompt=prompt, reference=reference, meta={"tests": tests} if tests else {})


def judge(runner: Runner, response: str, reference: str = "", tests: str = TESTS, brief: bool = False) -> Judgement:
    return ProgramCritic(runner, brief=brief).critique([example(reference, tests)], [response])[0]


def critique(
    runner: Runner, response: str, reference: str = "", tests: str = TESTS, brief: bool = False
) -> Critique:
    """The judgement, which must be a critique whose spans quote the response exactly."""
    found = judge(runner, response, reference, tests, brief)
    assert isinstance(found, Critique)
    for span in found.spans:
        assert response[span.start : span.end] == span.text != "" and span.text.strip() in ("", span.text)
    return found


def quotes(found: Critique, label: int) -> list[str]:
    return [span.text for span in found.spans if span.label == label]


# What the runner says of a program.


def test_a_right_program_passes_and_every_statement_is_praised(runner: Runner) -> None:
    assert runner.run(RIGHT, TESTS).passed
    found = critique(runner, RIGHT)
    assert found.score == 1.0
    assert quotes(found, 1) == ["ys = [x for x in xs if x >= 2]", "return sum(ys)"]
    assert quotes(found, -1) == []


def test_a_failing_test_is_told_with_input_result_and_expectation(runner: Runner) -> None:
    verdict = runner.run(WRONG, TESTS)
    assert (verdict.outcome, [result.passed for result in verdict.results]) == ("failed", [False, True])
    failed = verdict.results[0]
    assert (failed.call, failed.got, failed.expected) == ("f([1, 2, 3])", "3", "5")
    found = critique(runner, WRONG)
    assert found.score == -1.0
    assert found.text.startswith("Fails 1 of 2 tests: f([1, 2, 3]) gave 3, expected 5.")


def test_brief_names_no_input(runner: Runner) -> None:
    found = critique(runner, WRONG, RIGHT, brief=True)
    assert found.text == "`x > 2` should be `x >= 2`. Fails the tests."


def test_without_a_reference_the_line_of_the_traceback_is_blamed(runner: Runner) -> None:
    program = "def f(xs):\n    first = xs[0]\n    return first + sum(xs) - 1\n"
    found = critique(runner, program)
    assert quotes(found, -1) == ["first = xs[0]"]
    assert found.text.startswith("Fails 2 of 2 tests: f([1, 2, 3]) gave 6, expected 5. Most suspicious: line 2.")
    assert found.meta["evidence"] == ["traceback", "spectrum"]
    assert "traceback" in found.text and "Ochiai" in found.text
    (span,) = [span for span in found.spans if span.label < 0]
    assert "IndexError" in span.reason


def test_without_a_reference_an_edit_that_makes_the_tests_pass_tells_the_place(runner: Runner) -> None:
    found = critique(runner, WRONG)
    assert quotes(found, -1) == ["x > 2"]
    assert "Line 2: with `x >= 2` instead of `x > 2`, all tests pass." in found.text
    assert found.meta["evidence"] == ["repair", "spectrum"]


def test_without_edits_the_spectrum_tells_the_place() -> None:
    program = "def f(xs):\n    total = 0\n    if xs:\n        total = len(xs)\n    return total\n"
    with Runner() as runner:
        (found,) = ProgramCritic(runner, repairs=0).critique([example()], [program])
    assert isinstance(found, Critique)
    assert quotes(found, -1) == ["total = len(xs)"]
    assert found.meta["evidence"] == ["spectrum"]


def test_lines_that_nothing_tells_apart_are_blamed_by_a_share_each() -> None:
    """Four lines that every failing test runs, of which three are quoted; an edit that makes all pass is sure."""
    program = "def f(xs):\n    a = len(xs) + 1\n    b = len(xs) + 2\n    c = b + 1\n    return a * c\n"
    with Runner() as runner:
        guessed, known = (
            ProgramCritic(runner, repairs=repairs).critique([example()], [text])[0]
            for repairs, text in ((0, program), (40, WRONG))
        )
    assert isinstance(guessed, Critique) and isinstance(known, Critique)
    assert len(guessed.meta["lines"]) == 3
    assert [span.weight for span in guessed.spans] == [0.25, 0.25, 0.25]
    assert [span.weight for span in known.spans if span.label < 0] == [1.0]


def test_where_nothing_says_which_line_the_whole_program_is_blamed(runner: Runner) -> None:
    """Each of its three lines as surely as one of three can be."""
    found = critique(runner, WRONG, brief=True)
    assert [(span.text, span.weight) for span in found.spans] == [(WRONG.strip(), 0.3333)]


def test_a_syntax_error_is_blamed_on_its_line(runner: Runner) -> None:
    program = "def f(xs):\n    ys = [x for x in xs\n    return sum(ys)\n"
    verdict = runner.run(program, TESTS)
    assert (verdict.outcome, verdict.line) == ("broken", 2)
    for brief in (True, False):
        found = critique(runner, program, RIGHT, brief=brief)
        assert quotes(found, -1) == ["ys = [x for x in xs"]
        assert "not Python" in found.text
        assert found.score == -1.0


@pytest.mark.parametrize(
    ("program", "wanted"),
    [
        ("def f(xs):\n    ys = xs\n      return sum(ys)\n", "      "),
        ("def f(xs):\n    ys = xs\n  return sum(ys)\n", "  "),
        ("def f(xs):\nreturn sum(xs)\n", "return sum(xs)"),
        ("def f(xs):\n    if xs:\n    return sum(xs)\n", "return sum(xs)"),
    ],
)
@pytest.mark.parametrize("fence", ["", "```python\n"])
def test_a_wrong_indentation_is_what_is_poor(runner: Runner, program: str, wanted: str, fence: str) -> None:
    response = f"{fence}{program}```" if fence else program
    assert quotes(critique(runner, response), -1) == [wanted]


@pytest.mark.parametrize(
    "response",
    ["```python\ndef f(xs):\n    ys = [x for x in", "def f(xs):\n    ys = [x for x in", "```\ndef f(xs):\n"],
)
def test_an_answer_that_is_cut_off_is_blamed_where_it_ends(runner: Runner, response: str) -> None:
    found = critique(runner, response, RIGHT)
    assert "cut off" in found.text
    assert quotes(found, -1) == [response.strip().split("\n")[-1].strip()]


@pytest.mark.parametrize("response", ["", "  \n", "```python\n```", "I am sorry.\nPlease ask a person."])
def test_no_code_is_a_verdict_not_a_failure(runner: Runner, response: str) -> None:
    found = critique(runner, response, RIGHT)
    assert (found.text, found.score) == ("There is no program.", -1.0)
    assert found.meta["outcome"] == "no_program"


def test_a_reference_that_is_another_program_is_not_what_is_wrong(runner: Runner) -> None:
    """Statement by statement everything differs; only running tells the line that is at fault."""
    head = "from functools import reduce\n\ndef f(numbers):\n"
    reference = f"{head}    return reduce(lambda a, b: a + (b > 1) * b, numbers, 0)\n"
    loop = "    for x in xs:\n        if x > 2:\n            total += x\n"
    program = f"def f(xs):\n    total = 0\n{loop}    return total\n"
    found = critique(runner, program, reference)
    assert quotes(found, -1) == ["x > 2"]
    assert "with `x >= 2` instead" in found.text


def test_every_row_and_the_summary_say_what_came_of_the_run(runner: Runner) -> None:
    loop = "def f(xs):\n    while True:\n        pass\n"
    deep = "def f(xs):\n    return f(xs)\n"
    nested = "def f(xs):\n    return " + "-" * 3000 + "1\n"
    long = "def f(xs):\n" + "    xs = xs\n" * 1_000_000
    cases = [
        *[(text, TESTS) for text in (RIGHT, WRONG, loop, deep, nested, "def f(:\n", long, "I cannot do that.")],
        *[(RIGHT, tests) for tests in ("", "x = 1\n", "import no_such_module\n")],
        (RIGHT, "while True:\n    pass\n"),
    ]
    critic = ProgramCritic(runner)
    examples = [example(tests=tests) for _, tests in cases]
    judged = critic.critique(examples, [text for text, _ in cases])
    rows = [
        Feedback.of(asked, text, said, critic.source)
        for asked, (text, _), said in zip(examples, cases, judged, strict=True)
    ]
    outcomes = [row.meta["outcome"] for row in rows]
    assert outcomes[:3] == ["passed", "failed", "timeout"]
    assert set(outcomes[3:5]) <= {"failed", "crashed", "broken"}
    assert outcomes[5:11] == ["broken", "broken", "no_program", "no_tests", "no_tests", "unsupported"]
    assert outcomes[11] in ("timeout", "bad_tests")
    assert [row.error is None for row in rows[:8]] == [True] * 8
    assert [row.score for row in rows[:8]] == [1.0] + [-1.0] * 7
    assert [row.error.kind for row in rows[8:11] if row.error] == ["unsupported"] * 3
    assert sum(outcome_counts(rows).values()) == len(rows)


def test_a_wrong_function_name_does_not_run_and_is_no_fault_of_the_tests(runner: Runner) -> None:
    program = RIGHT.replace("def f", "def g")
    assert runner.run(program, TESTS).outcome == "broken"
    found = critique(runner, program, RIGHT)
    assert found.score == -1.0
    assert "The tests call `f`, which the program does not define." in found.text
    assert quotes(found, -1) == ["def g(xs):"]
    said = {name: found.meta[name] for name in ("tier", "test_output")}
    assert found.meta == {"outcome": "broken", **said, "evidence": ["names"], "lines": [1]}


@pytest.mark.parametrize(
    ("tests", "outcome"),
    [("", "no_tests"), ("def test_f(:\n", "bad_tests"), ("import no_such_module\n", "unsupported")],
)
def test_unusable_tests_give_no_verdict(runner: Runner, tests: str, outcome: str) -> None:
    assert runner.run(RIGHT, tests).outcome == outcome
    found = judge(runner, RIGHT, tests=tests)
    assert isinstance(found, Failure)
    assert found.kind == "unsupported"
    assert found.meta["outcome"] == outcome


def test_tests_that_pass_for_nothing_give_no_verdict(runner: Runner) -> None:
    weak = "from solution import f\n\ndef test():\n    assert f(3) == 3\n"
    asked = [example(tests=weak), example(tests=weak), example()]
    said = ProgramCritic(runner, gate=True).critique(
        asked, ["def f(x):\n    return x\n", "def f(x):\n    return 4\n", RIGHT]
    )
    assert [each.kind if isinstance(each, Failure) else each.score for each in said] == ["unsupported"] * 2 + [1.0]
    assert [each.meta["outcome"] for each in said] == ["weak_tests", "weak_tests", "passed"]
    assert isinstance(said[0], Failure) and "returns its first argument" in said[0].message


def test_a_loop_is_blamed_where_the_reference_differs(runner: Runner) -> None:
    program = "def f(xs):\n    while True:\n        pass\n    return sum(xs)\n"
    found = critique(runner, program, "def f(xs):\n    return sum(xs)\n")
    assert quotes(found, -1) == ["while True:", "pass"]
    assert found.text.startswith("Does not finish in time.")


def test_equal_jobs_are_answered_once() -> None:
    with Runner() as counting:
        assert counting.run_all([(RIGHT, TESTS)] * 2) == [counting.run(RIGHT, TESTS)] * 2
        assert len(counting._known) == 1


def test_equal_responses_to_one_example_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []

    def counting(case: Case) -> Critique:
        judged.append(case.attempt.response)
        return brief_critique(case)

    monkeypatch.setattr("text2grad.critics.program.critic.brief_critique", counting)
    other = example(tests=TESTS.replace("== 5", "== 6"))
    with Runner(seconds=3.0) as runner:
        critic = ProgramCritic(runner, brief=True)
        first, second, third, fourth = critic.critique(
            [example(), example(), example(), other], [RIGHT, WRONG, RIGHT, RIGHT]
        )
    assert judged == [RIGHT, WRONG, RIGHT]
    assert first == third
    scores = [found.score for found in (first, second, third, fourth) if isinstance(found, Critique)]
    assert scores == [1.0, -1.0, 1.0, -1.0], "the tests of an example are part of the question"


# What is blamed.


@pytest.mark.parametrize(
    ("mine", "wanted", "quote", "instead"),
    [
        ("ys = [x for x in xs if x > 2]", "ys = [x for x in xs if x >= 2]", "x > 2", "x >= 2"),
        ("return sum(zs) + 1", "return len(zs) + 1", "sum(zs)", "len(zs)"),
        ("return zs", "return sorted(zs)", "return zs", "return sorted(zs)"),
        ("total += i", "total += i * i", "total += i", "total += i * i"),
        ("for i in range(n):", "for i in range(n + 1):", "range(n)", "range(n + 1)"),
        ("x = 'ä' + g(1)", "x = 'ä' + h(1)", "g(1)", "h(1)"),
        ("x = g(1, 2)", "x = g(1)", "g(1, 2)", "g(1)"),
    ],
)
def test_the_smallest_expression_that_differs_is_blamed(mine: str, wanted: str, quote: str, instead: str) -> None:
    body = "\n    pass\n" if mine.endswith(":") else "\n"
    code, reference = mine + body, wanted + body
    ours, theirs = read_code(code), read_code(reference)
    assert ours and theirs
    _, different = compare(ours, theirs)
    assert [(code[piece.start : piece.end], piece.wanted) for piece in different] == [(quote, instead)]


def test_a_statement_too_many_and_one_too_few(runner: Runner) -> None:
    program = "def f(xs):\n    xs = xs[:1]\n    return sum(xs)\n"
    found = critique(runner, program, "def f(xs):\n    return sum(xs)\n", brief=True)
    assert quotes(found, -1) == ["xs = xs[:1]"]
    assert "`xs = xs[:1]` should not be there." in found.text
    short = critique(runner, "def f(xs):\n    return sum(ys)\n", RIGHT, brief=True)
    assert quotes(short, -1) == ["return sum(ys)"]
    assert "`return sum(ys)` should be `ys = [x for x in xs if x >= 2] return sum(ys)`" in short.text


def test_a_missing_statement_is_told_beside_the_one_it_belongs_to(runner: Runner) -> None:
    program = "def f(xs):\n    total = 0\n    for x in xs:\n        total += x\n    return total\n"
    first = program.replace("        total", "        x *= x > 1\n        total")
    found = critique(runner, program, first)
    assert quotes(found, -1) == ["total += x"]
    assert "`total += x` lacks `x *= x > 1` before it." in found.text
    cut = critique(runner, program.replace("    return total\n", ""), program)
    assert "`total += x` lacks `return total` after it." in cut.text


def test_prose_that_quotes_the_same_line_is_never_blamed(runner: Runner) -> None:
    line = "ys = [x for x in xs if x > 2]"
    before = f"First `{line}`, then `return sum(ys)`.\n\n```python\n"
    after = f"```\nAs said: `{line}`, and `return sum(ys)`.\n"
    response = before + WRONG + after
    for reference in (RIGHT, ""):
        for span in critique(runner, response, reference).spans:
            assert len(before) <= span.start < span.end <= len(before) + len(WRONG)
    assert quotes(critique(runner, response, RIGHT), -1) == ["x > 2"]


@pytest.mark.parametrize("opening", ["```python\n", "``` Python3\n", "```\n", "```python\r\n"])
def test_fences_of_all_spellings(runner: Runner, opening: str) -> None:
    response = f"Here it is:\n{opening}{RIGHT}```"
    assert extract_program(response).code == RIGHT
    assert critique(runner, response).score == 1.0


@pytest.mark.parametrize("strange", ["\x0c", "\u2028", "\x1c", "\x85"])
def test_only_python_line_ends_end_a_line(runner: Runner, strange: str) -> None:
    program = f"def f(xs):\n    note = '{strange}'\n    ys = [x for x in xs if x > 2]\n    return sum(ys)\n"
    reference = program.replace("> 2", ">= 2")
    assert quotes(critique(runner, program, reference), -1) == ["x > 2"]
    failing = f"def f(xs):\n    note = '{strange}'\n    return xs[0]\n"
    assert quotes(critique(runner, failing, tests="def test_f():\n    assert f([]) == 0\n"), -1) == ["return xs[0]"]
