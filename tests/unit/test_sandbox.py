"""The sandbox as a place to run tests: what may stand in a test file, and what each job comes to."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from text2grad.sandbox.runner import Runner, Verdict

ONE = "def f(x):\n    return x + 1\n"
TEST_ONE = "from solution import f\n\ndef test_f():\n    assert f(1) == 2\n"


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(seconds=10.0) as made:
        yield made


def outcome(runner: Runner, solution: str, tests: str) -> str:
    verdict = runner.run(solution, tests)
    return verdict.outcome + "".join(f"; {each.name}: {each.error}" for each in verdict.results if not each.passed)


SUPPORTED = {
    "star import": ("def f(x):\n    return x\n", "from solution import *\ndef test():\n    assert f(1) == 1\n"),
    "names that are not imported": ("K = 3\ndef f():\n    return K\n", "def test():\n    assert f() == K == 3\n"),
    "a mutated list": (
        "def f(xs):\n    xs.append(1)\n",
        "def test():\n    xs = [0]\n    assert f(xs) is None\n    assert xs == [0, 1]\n",
    ),
    "the mutated argument returned": (
        "def f(xs):\n    xs.sort()\n    return xs\n",
        "def test():\n    xs = [2, 1]\n    ys = f(xs)\n    assert ys is xs and ys == [1, 2]\n",
    ),
    "nested and shared containers": (
        "def f(d):\n    d['a'][0].add(3)\n    del d['b']\n    d['c'] = d\n",
        "def test():\n    s = {1}\n    d = {'a': [s], 'b': 2}\n    f(d)\n    assert s == {1, 3} and 'b' not in d and d['c'] is d\n",
    ),
    "a list of an instance changed by the test": (
        "class Stack:\n    def __init__(self):\n        self.items = []\n    def size(self):\n        return len(self.items)\n",
        "def test():\n    s = Stack()\n    s.items.append(1)\n    assert s.size() == 1\n    assert s.items == [1]\n",
    ),
    "a list kept by an instance and changed later": (
        "class Box:\n    def __init__(self, xs):\n        self.xs = xs\n    def total(self):\n        return sum(self.xs)\n",
        "def test():\n    xs = [1]\n    b = Box(xs)\n    xs.append(2)\n    assert b.total() == 3 and b.xs is xs\n",
    ),
    "values of many types": (
        "def f(x):\n    return x\n",
        "import datetime, decimal, fractions, collections, uuid, pathlib\n"
        "def test():\n"
        "    for v in [None, True, 3, 10**30, -2**70, 1.5, float('inf'), 'ä\\ud800', b'\\xff', (1, (2,)), [1], {1: [2]}, {1},\n"
        "              frozenset({1}), 1j, range(3), slice(1, 2), decimal.Decimal('1.10'), fractions.Fraction(1, 3),\n"
        "              datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc),\n"
        "              datetime.timedelta(1, 2), collections.deque([1], 3), collections.Counter('aab'),\n"
        "              collections.OrderedDict(a=1), collections.defaultdict(list, a=[1]), bytearray(b'x'), uuid.UUID(int=5),\n"
        "              pathlib.PurePosixPath('a/b'), {1: 2}.keys(), {1: 2}.items(), int, ValueError, len, Ellipsis]:\n"
        "        w = f(v)\n"
        "        assert w == v and type(w) is type(v), v\n"
        "    n = f(float('nan'))\n    assert n != n\n"
        "    assert f(collections.defaultdict(list))['new'] == []\n",
    ),
    "a bool is not an int": ("def f():\n    return True\n", "def test():\n    assert f() is True\n"),
    "named tuples": (
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f():\n    return P(1, 2)\n",
        "def test():\n    p = f()\n    assert p == (1, 2) and p.x == 1 and p._asdict() == {'x': 1, 'y': 2}\n",
    ),
    "classes, instances, properties, operators": (
        "class V:\n    n = 0\n    def __init__(self, x):\n        self.x = x\n        V.n += 1\n"
        "    def __add__(self, o):\n        return V(self.x + o.x)\n    def __mul__(self, k):\n        return V(self.x * k)\n"
        "    def __eq__(self, o):\n        return isinstance(o, V) and self.x == o.x\n    def __hash__(self):\n        return hash(self.x)\n"
        "    def __lt__(self, o):\n        return self.x < o.x\n    def __len__(self):\n        return self.x\n    def __repr__(self):\n        return f'V({self.x})'\n"
        "    def __getitem__(self, i):\n        return [self.x][i]\n    def __contains__(self, x):\n        return x == self.x\n"
        "    @property\n    def double(self):\n        return 2 * self.x\n    @staticmethod\n    def zero():\n        return V(0)\n    @classmethod\n    def of(cls, x):\n        return cls(x)\n",
        "from solution import V\ndef test():\n    a, b = V(1), V(2)\n    assert isinstance(a, V) and a.x == 1 and a + a == b and a * 2 == b\n"
        "    assert a != b and a < b and sorted([b, a]) == [a, b] and len(b) == 2 and repr(a + b) == 'V(3)'\n"
        "    assert a[0] == 1 and 1 in a and 5 not in a and b.double == 4 and V.zero().x == 0 and V.of(4).x == 4\n"
        "    assert len({V(1), V(1), b}) == 2 and V.n > 3\n    a.x = 7\n    assert a.double == 14\n    assert list(b) == [2]\n"
        "    V.n = 0\n    assert V.n == 0 and not hasattr(a, 'nothing')\n    assert str(a) == 'V(7)'\n",
    ),
    "inheritance": (
        "class A:\n    def name(self):\n        return 'a'\nclass B(A):\n    pass\n",
        "def test():\n    assert issubclass(B, A) and isinstance(B(), A) and B().name() == 'a' and type(B()) is B\n    assert B.__name__ == 'B'\n",
    ),
    "abstract classes": (
        "from abc import ABC, abstractmethod\nclass A(ABC):\n    @abstractmethod\n    def f(self): ...\n",
        "import pytest\ndef test():\n    with pytest.raises(TypeError):\n        A()\n",
    ),
    "enumerations": (
        "from enum import Enum\nclass C(Enum):\n    RED = 1\n    BLUE = 2\ndef f():\n    return C.RED\n",
        "def test():\n    assert f() is C.RED and f() == C.RED and f() != C.BLUE and C.RED.value == 1 and C.RED.name == 'RED'\n"
        "    assert len(C) == 2 and [c.name for c in C] == ['RED', 'BLUE'] and C(2) is C.BLUE and C['RED'] is C.RED\n"
        "    assert {C.RED: 1}[f()] == 1\n",
    ),
    "data classes": (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int = 2\n",
        "def test():\n    assert P(1) == P(1, 2) != P(2)\n    assert repr(P(1)) == 'P(x=1, y=2)'\n",
    ),
    "callbacks": (
        "def f(g, xs):\n    return [g(x) for x in xs]\ndef compose(a, b):\n    return lambda x: a(b(x))\n",
        "def test():\n    seen = []\n    def g(x):\n        seen.append(x)\n        return f(lambda y: y + 1, [x])[0]\n"
        "    assert f(g, [1, 2]) == [2, 3] and seen == [1, 2]\n    assert compose(str, abs)(-1) == '1' and f(len, ['ab']) == [2]\n",
    ),
    "exceptions of the language": (
        "def f(x):\n    if x < 0:\n        raise ValueError('negative', x)\n    return {}['k']\n",
        "import pytest\ndef test():\n    with pytest.raises(ValueError, match='neg') as info:\n        f(-1)\n    assert info.value.args == ('negative', -1)\n"
        "    with pytest.raises((TypeError, KeyError)):\n        f(1)\n    try:\n        f(-1)\n    except ValueError as e:\n        assert str(e) == \"('negative', -1)\"\n",
    ),
    "exceptions of the solution": (
        "class Bad(ValueError):\n    def __init__(self, code):\n        super().__init__(f'code {code}')\n        self.code = code\ndef f():\n    raise Bad(7)\n",
        "import pytest\nfrom solution import Bad, f\ndef test():\n    with pytest.raises(Bad, match='code 7') as info:\n        f()\n    assert info.value.code == 7 and isinstance(info.value, ValueError)\n    assert str(Bad(8)) == 'code 8' and issubclass(Bad, ValueError)\n",
    ),
    "exceptions of callbacks": (
        "def f(g):\n    try:\n        g()\n    except KeyError:\n        return 'key'\n    except Exception as e:\n        return str(e)\n",
        "class Mine(Exception):\n    pass\ndef test():\n    def a():\n        raise KeyError(1)\n    def b():\n        raise Mine('m')\n    assert f(a) == 'key' and f(b) == 'm'\n",
    ),
    "exceptions through both": (
        "def f(g):\n    return g()\n",
        "import pytest\nclass Mine(Exception):\n    pass\ndef test():\n    def b():\n        raise Mine('m')\n    with pytest.raises(Mine):\n        f(b)\n",
    ),
    "generators and iterators": (
        "def f(n):\n    for i in range(n):\n        yield i\ndef count():\n    i = 0\n    while True:\n        got = yield i\n        i = got if got is not None else i + 1\ndef total(xs):\n    return sum(xs)\n",
        "import types, itertools\ndef test():\n    assert list(f(3)) == [0, 1, 2] and isinstance(f(1), types.GeneratorType)\n    c = count()\n"
        "    assert next(c) == 0 and c.send(5) == 5 and list(itertools.islice(c, 2)) == [6, 7]\n    assert total(x for x in [1, 2]) == 3 and total(map(int, '12')) == 3\n",
    ),
    "context managers": (
        "class C:\n    def __enter__(self):\n        return 5\n    def __exit__(self, *a):\n        return a[0] is ValueError\n",
        "def test():\n    with C() as x:\n        assert x == 5\n        raise ValueError\n",
    ),
    "objects of the tests": (
        "def depth(n):\n    return 0 if n is None else 1 + max(depth(n.left), depth(n.right))\ndef grow(n):\n    n.left = type(n)(9)\n    n.tags.append('x')\n",
        "class Node:\n    def __init__(self, v, left=None, right=None):\n        self.v, self.left, self.right, self.tags = v, left, right, []\n"
        "def test():\n    n = Node(1, Node(2), None)\n    assert depth(n) == 2\n    grow(n)\n    assert n.left.v == 9 and n.tags == ['x'] and isinstance(n.left, Node)\n",
    ),
    "coroutines": (
        "import asyncio\nasync def f(x):\n    await asyncio.sleep(0.001)\n    return x + 1\n",
        "import asyncio\ndef test():\n    assert asyncio.run(f(1)) == 2\nasync def test_two():\n    assert await f(2) == 3\n",
    ),
    "decorated and cached functions": (
        "from functools import lru_cache\n@lru_cache(None)\ndef f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)\n",
        "def test():\n    f.cache_clear()\n    assert f(30) == 832040 and f.cache_info().misses == 31 and f.__name__ == 'f'\n",
    ),
    "modules and constants of the solution": (
        "import math\nLIMIT = [1, 2]\n",
        "import solution\ndef test():\n    assert solution.LIMIT == [1, 2] and math.pi > 3\n    solution.LIMIT = 5\n    assert solution.LIMIT == 5\n",
    ),
    "random numbers with a seed": (
        "import random\ndef f():\n    return random.random()\n",
        "import random\ndef test():\n    random.seed(3)\n    a = f()\n    random.seed(3)\n    assert f() == a\n",
    ),
    "parametrize": (
        ONE,
        "import pytest\n@pytest.mark.parametrize('x,y', [(1, 2), pytest.param(2, 3, id='two')])\n@pytest.mark.parametrize('z', [0, 1])\n"
        "def test_f(x, y, z):\n    assert f(x) + z == y + z\nclass TestMore:\n    @pytest.mark.parametrize('x', [1], ids=['one'])\n    def test_g(self, x):\n        assert f(x) == 2\n",
    ),
    "fixtures": (
        ONE,
        "import pytest\nlog = []\n@pytest.fixture\ndef one():\n    log.append('up')\n    yield 1\n    log.append('down')\n@pytest.fixture(scope='module')\ndef two(): return [2]\n"
        "@pytest.fixture(autouse=True)\ndef always():\n    log.append('auto')\n@pytest.fixture\ndef three(one, two):\n    return one + two[0]\n"
        "def test_a(one, three):\n    assert f(one) == 2 and three == 3 and log == ['auto', 'up']\ndef test_b(two):\n    two.append(1)\n    assert log == ['auto', 'up', 'down', 'auto']\n"
        "class TestC:\n    @pytest.fixture\n    def four(self):\n        return 4\n    def setup_method(self):\n        self.five = 5\n    def test_c(self, four, two):\n        assert (four, self.five, two) == (4, 5, [2, 1])\n",
    ),
    "printing": (
        "def f():\n    print('hello')\n",
        "def test(capsys):\n    f()\n    print('x')\n    out = capsys.readouterr().out\n    assert 'hello' in out and 'x' in out\n    assert capsys.readouterr().out == ''\n",
    ),
    "files": (
        "def f(path):\n    with open(path) as file:\n        return file.read()\n",
        "def test(tmp_path):\n    p = tmp_path / 'a.txt'\n    p.write_text('abc')\n    assert f(p) == f(str(p)) == 'abc'\n",
    ),
    "monkeypatch and marks": (
        "LIMIT = 1\ndef f():\n    return LIMIT\n",
        "import pytest, solution\n@pytest.mark.slow\ndef test(monkeypatch):\n    monkeypatch.setattr(solution, 'LIMIT', 2)\n    assert f() == 2\ndef test_z():\n    assert f() == 1\n"
        "@pytest.mark.skip(reason='no')\ndef test_s():\n    assert False\n@pytest.mark.skipif(True, reason='no')\ndef test_t():\n    assert False\ndef test_u():\n    pytest.skip('later')\n",
    ),
    "approx": (
        "def f():\n    return 0.1 + 0.2\ndef g():\n    return [1.0000001, 2]\n",
        "from pytest import approx\ndef test():\n    assert f() == approx(0.3) and g() == approx([1, 2]) and {'a': f()} == approx({'a': .3})\n    assert f() != approx(0.4) and f() == approx(.31, abs=.1)\n",
    ),
    "unittest": (
        ONE,
        "import unittest\nclass T(unittest.TestCase):\n    def setUp(self):\n        self.x = 1\n    def test_f(self):\n        self.assertEqual(f(self.x), 2)\n        with self.assertRaises(TypeError):\n            f(None)\n",
    ),
    "numpy": (
        "import numpy as np\ndef f(a):\n    a[0] = 9\n    return a * 2, a.sum(), a.mean()\ndef g():\n    return np.float64(1.5)\n",
        "import numpy as np\ndef test():\n    a = np.arange(3)\n    b, s, m = f(a)\n    assert (b == np.array([18, 2, 4])).all() and a[0] == 9 and s == 12 and type(s) is np.int64\n"
        "    np.testing.assert_allclose(b, [18, 2, 4])\n    assert g() == 1.5 and b.dtype == a.dtype and b.shape == (3,)\n",
    ),
    "threads": (
        "import threading\ndef f(n):\n    out = []\n    ts = [threading.Thread(target=out.append, args=(i,)) for i in range(n)]\n    [t.start() for t in ts]\n    [t.join() for t in ts]\n    return sorted(out)\n",
        "def test():\n    assert f(4) == [0, 1, 2, 3]\n",
    ),
    "many frames and large values": (
        "def f(x):\n    return x\n",
        "def test():\n    big = list(range(100000))\n    assert f(big) == big\n    s = 'x' * 1000000\n    assert f(s) == s\n    assert sum(f(i) for i in range(500)) == 124750\n",
    ),
    "modules that are loaded late": (
        "def f():\n    import colorsys, json.tool, xml.etree.ElementTree, sqlite3, email.message\n    return colorsys.rgb_to_hsv(0, 0, 1)\n",
        "def test():\n    assert f()[2] == 1\n",
    ),
}


@pytest.mark.parametrize("what", SUPPORTED)
def test_what_test_files_may_use(runner: Runner, what: str) -> None:
    assert outcome(runner, *SUPPORTED[what]) == "passed"


def test_parametrized_cases_are_results_of_their_own(runner: Runner) -> None:
    tests = "import pytest\n@pytest.mark.parametrize('x', [1, 2])\ndef test_f(x):\n    assert f(x) == 2\n"
    results = runner.run(ONE, tests).results
    assert [(each.name, each.passed) for each in results] == [("test_f[1]", True), ("test_f[2]", False)]


FAILING = {
    "a wrong value": "def test():\n    assert f(1) == 3\n",
    "pytest.fail": "import pytest\ndef test():\n    pytest.fail('so')\n",
    "an exception that does not come": "import pytest\ndef test():\n    with pytest.raises(ValueError):\n        f(1)\n",
    "another exception": "import pytest\ndef test():\n    with pytest.raises(ValueError):\n        f('a')\n",
    "a message that does not match": "import pytest\ndef test():\n    with pytest.raises(TypeError, match='qqq'):\n        f('a')\n",
    "one of two": "def test_a():\n    assert f(1) == 2\ndef test_b():\n    assert f(1) == 1\n",
    "approx": "from pytest import approx\ndef test():\n    assert f(1) == approx(2.1)\n",
    "unittest": "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(f(1), 3)\n",
    "a fixture's end": "import pytest\n@pytest.fixture\ndef x():\n    yield 1\n    assert f(1) == 3\ndef test(x):\n    pass\n",
}


@pytest.mark.parametrize("what", FAILING)
def test_what_fails_is_failed(runner: Runner, what: str) -> None:
    assert runner.run(ONE, FAILING[what]).outcome == "failed"


UNSUPPORTED = {
    "a package that is not installed": "import no_such_package\ndef test():\n    pass\n",
    "another process": "import subprocess\ndef test():\n    pass\n",
    "replaced builtins": "from unittest.mock import patch\n@patch('builtins.input')\ndef test(m):\n    pass\n",
    "a fixture nobody defines": "def test(benchmark):\n    pass\n",
    "a value that cannot cross": "import threading\ndef test():\n    f(threading.Lock())\n",
    "warnings of the solution": "import pytest\ndef test():\n    with pytest.warns(UserWarning):\n        f(1)\n",
    "the source of the solution": "import inspect\ndef test():\n    inspect.getsource(f)\n",
}


@pytest.mark.parametrize("what", UNSUPPORTED)
def test_what_cannot_be_run_is_unsupported(runner: Runner, what: str) -> None:
    verdict = runner.run(ONE, UNSUPPORTED[what])
    assert (verdict.outcome, verdict.passed) == ("unsupported", False)
    assert verdict.error


@pytest.mark.parametrize(
    ("solution", "tests", "expected"),
    [
        ("def f(:\n", TEST_ONE, "broken"),
        ("this is not Python at all", TEST_ONE, "broken"),
        ("x = 1 / 0\n", TEST_ONE, "broken"),
        ("x" * (10 << 20), TEST_ONE, "broken"),
        ("f = 1\0", TEST_ONE, "broken"),
        ("(" * 10_000, TEST_ONE, "broken"),
        ("def g(x):\n    return 1\n", TEST_ONE, "broken"),
        (ONE, "", "no_tests"),
        (ONE, "x = 1\n", "no_tests"),
        (ONE, "def test_f(:\n", "bad_tests"),
        (ONE, "1 / 0\n", "bad_tests"),
        (ONE, "import pytest\n@pytest.mark.skip\ndef test():\n    pass\n", "no_tests"),
        ("def f(x):\n    return f(x)\n", TEST_ONE, "failed"),
    ],
    ids=lambda text: text[:20].encode("unicode_escape").decode(),
)
def test_bad_input_has_one_outcome_each(runner: Runner, solution: str, tests: str, expected: str) -> None:
    assert runner.run(solution, tests).outcome == expected


def test_tests_that_never_end_are_a_timeout() -> None:
    with Runner(seconds=0.5) as quick:
        assert quick.run(ONE, "while True:\n    pass\n").outcome == "timeout"
        finished = quick.run(ONE, "def test_a():\n    assert f(1) == 2\ndef test_b():\n    while True: pass\n")
        assert (finished.outcome, [each.name for each in finished.results]) == ("timeout", ["test_a"])
        assert quick.run(ONE, TEST_ONE).passed


def test_endless_recursion_without_a_limit_is_contained() -> None:
    code = "import sys\nsys.setrecursionlimit(10**9)\ndef f(x):\n    return f(x) + 1\n"
    with Runner(seconds=1.0) as quick:
        assert quick.run(code, TEST_ONE).outcome in ("crashed", "failed", "timeout")
        assert quick.run(ONE, TEST_ONE).passed


def test_coverage_names_the_lines_of_each_test(runner: Runner) -> None:
    code = "def f(x):\n    if x > 0:\n        return 'p'\n    y = 'n'\n    return y\nZ = 1\n"
    tests = "def test_p():\n    assert f(1) == 'p'\ndef test_n():\n    assert f(-1) == 'n'\ndef test_none():\n    pass\n"
    results = runner.run(code, tests, coverage=True).results
    assert [each.lines for each in results] == [(2, 3), (2, 4, 5), ()]
    assert all(each.lines == () for each in runner.run(code, tests).results)


def test_operands_of_a_failed_assertion(runner: Runner) -> None:
    tests = (
        "def test_a():\n    x = 4\n    assert f(x) == 6\n"
        "def test_b():\n    assert abs(f(1) - 3.5) < 1e-6\n"
        "def test_c():\n    assert not f(1)\n"
        "def test_d():\n    assert f(1) == 2 and f(2) == 5\n"
    )
    results = runner.run(ONE, tests).results
    assert [(each.call, each.got, each.expected) for each in results] == [
        ("f(x)", "5", "6"),
        ("abs(f(1) - 3.5)", "1.5", "< 1e-06"),
        ("not f(1)", "False", "a true value"),
        ("f(2)", "3", "5"),
    ]


def test_the_line_of_an_error_is_the_solutions(runner: Runner) -> None:
    code = "def g(x):\n    return x / 0\ndef f(x):\n    return g(x)\n"
    [result] = runner.run(code, TEST_ONE).results
    assert (result.line, result.error) == (2, "ZeroDivisionError: division by zero")


def test_scripts_are_judged_by_their_output(runner: Runner) -> None:
    code = "a, b = map(int, input().split())\nprint(a + b)\n"
    verdict = runner.run_io(code, [("1 2\n", "3\n"), ("4 5\n", "9")])
    assert [(each.name, each.passed) for each in verdict.results] == [("case_1", True), ("case_2", True)]
    assert verdict.passed
    wrong = runner.run_io(code, [("1 2\n", "4\n"), ("x\n", "1")])
    assert (wrong.outcome, wrong.results[0].got, wrong.results[0].expected) == ("failed", "'3\\n'", "4\n")
    assert wrong.results[1].error.startswith("ValueError")
    assert runner.run_io("import os\nos._exit(0)\n", [("", "1")]).outcome == "failed"
    assert runner.run_io(code, []).outcome == "no_tests"


def test_several_workers_and_asynchronous_calls() -> None:
    jobs = [(ONE + f"# {number % 7}\n", TEST_ONE) for number in range(20)]
    with Runner(workers=2, seconds=10.0) as both:
        verdicts = both.run_all(jobs)
        assert len(verdicts) == 20 and all(verdict.passed for verdict in verdicts)

        async def ask() -> list[Verdict]:
            return await asyncio.gather(*(both.arun(ONE + f"# a{number}", TEST_ONE) for number in range(4)))

        assert all(verdict.passed for verdict in asyncio.run(ask()))
        assert len(both._servers) == 2


def test_a_job_survives_a_dead_server() -> None:
    with Runner(seconds=10.0) as runner:
        assert runner.run(ONE, TEST_ONE).passed
        [server] = runner._servers
        server._process.kill()
        assert runner.run(ONE + "# again", TEST_ONE).passed
        [other] = runner._servers
        assert other is not server


def test_every_verdict_names_its_tier(runner: Runner) -> None:
    verdict = runner.run(ONE, TEST_ONE)
    assert verdict.tier in ("namespaces", "landlock")
    with Runner(tier="none") as open_runner:
        assert open_runner.run(ONE, TEST_ONE).tier == "none"


def test_a_runner_that_is_not_closed_leaves_no_process() -> None:
    program = (
        "from text2grad.sandbox.runner import Runner\n"
        f"runner = Runner()\nassert runner.run({ONE!r}, {TEST_ONE!r}).passed\n"
        "[server] = runner._servers\nprint(server._process.pid)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    listed = subprocess.run(["ps", "-o", "pid=", "-p", done.stdout.strip()], capture_output=True, text=True)
    assert listed.stdout == ""
