"""Programs that try to pass without solving the task, or to touch the machine. For tests and benchmarks.

`{out}` is a folder everybody may write to, `{port}` a port of 127.0.0.1 where somebody listens (TCP and UDP).
"""

from __future__ import annotations

from dataclasses import dataclass

TESTS = (
    "from solution import f\n\ndef test_two():\n    assert f(2) == 4\n\ndef test_three():\n    assert f(3) == 9\n"
)
CLOSE = "from solution import f\n\ndef test_two():\n    assert abs(f(2) - 4.0) < 1e-6\n"
CALLBACK = "from solution import f\n\nSECRET = 4\n\ndef test_two():\n    assert f(lambda: SECRET and None) == 4\n"
STAR = (
    "from pytest import approx\nfrom solution import *\n\ndef test_two():\n    assert isinstance(f(2), int)\n"
    "    assert sorted([f(2), 5]) == [4, 5]\n    assert all([f(2) == approx(4)])\n"
)
ARRAY = "import numpy as np\nfrom solution import f\n\ndef test_two():\n    np.testing.assert_allclose(f(2), np.array([4.0]))\n"


@dataclass(frozen=True)
class Hostile:
    """A program, and the tests it must not pass."""

    name: str
    code: str
    tests: str = TESTS


YES = (
    "class Yes:\n"
    + "".join(
        f"    def __{name}__(self, *a): return True\n" for name in "eq ne lt le gt ge bool contains call".split()
    )
    + "".join(
        f"    def __{name}__(self, *a): return 0.0\n"
        for name in "sub rsub add radd mul rmul abs float int neg round truediv rtruediv".split()
    )
    + "    def __hash__(self): return x * x\n    def __len__(self): return 1\n    def __index__(self): return x * x\n"
    "    def __iter__(self): return iter([self])\n    def __getattr__(self, name): return self\n"
)

_RAW = "import ctypes, os, struct\nlibc = ctypes.CDLL(None, use_errno=True)\n"
_WIRE = (
    "import gc, json, os\n"
    "def peer():\n    return next(o for o in gc.get_objects() if type(o).__name__ == 'Peer')\n"
    "def raw(text):\n    data = text if isinstance(text, bytes) else text.encode()\n"
    "    data = len(data).to_bytes(4, 'big') + data\n"
    "    while data:\n        data = data[os.write(peer()._writer, data):]\n"
)


def _in_call(body: str, before: str = "") -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{before}def f(x):\n{lines}    return x\n"


HOSTILE = (
    # What RELIABILITY names.
    Hostile(
        "loop that swallows exceptions",
        "def f(x):\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass\n",
    ),
    Hostile("fork bomb", _in_call("while True:\n    try: os.fork()\n    except OSError: break", "import os\n")),
    Hostile("eight gibibytes", _in_call("return bytearray(8 << 30)")),
    Hostile("memory in small pieces", _in_call("xs = []\nwhile True: xs.append(bytearray(1 << 20))")),
    Hostile(
        "two gibibytes of output",
        _in_call("for _ in range(2048): os.write(1, b'x' * (1 << 20)); print('x' * (1 << 20))", "import os\n"),
    ),
    Hostile(
        "disk fill",
        _in_call(
            "import tempfile\nfiles = []\nwhile True:\n    files.append(tempfile.TemporaryFile()); files[-1].write(b'x' * 1000000); files[-1].flush()"
        ),
    ),
    Hostile("many files", _in_call("for n in range(100000): open(f'file{n}', 'w').close()")),
    Hostile(
        "connection", _in_call("import socket\nsocket.create_connection(('127.0.0.1', {port}), 1).send(b'out')")
    ),
    Hostile(
        "datagram",
        _in_call(
            "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'out', ('127.0.0.1', {port}))"
        ),
    ),
    Hostile("file outside", _in_call("open('{out}/file', 'w').write('out')")),
    Hostile("kill everybody", _in_call("import os, signal\nos.kill(-1, signal.SIGKILL)")),
    Hostile("exit at import", "import os\nos._exit(0)\n"),
    Hostile("exit in the call", _in_call("import os\nos._exit(0)")),
    Hostile("exit at the end", _in_call("import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit(0)")),
    Hostile("always equal", YES + "def f(x):\n    return Yes()\n"),
    Hostile(
        "frame search",
        _in_call(
            "import sys\nframe = sys._getframe()\nwhile frame:\n    for k, v in list(frame.f_locals.items()) + list(frame.f_globals.items()):\n        if 'expected' in k or 'verdict' in k: frame.f_locals[k] = True\n    frame = frame.f_back"
        ),
    ),
    Hostile(
        "garbage collector search",
        _in_call(
            "import gc\nfor o in gc.get_objects():\n    if isinstance(o, dict):\n        for k in list(o):\n            if k in ('passed', 'outcome', 'results'): o[k] = 'passed'"
        ),
    ),
    Hostile(
        "forged verdict on every descriptor",
        _in_call(
            "import os, json\nfor m in ({{'collected': 1}}, {{'result': {{'name': 'a', 'passed': True}}}}, {{'end': {{'outcome': 'passed', 'error': '', 'line': None}}}}):\n    d = json.dumps(m).encode(); d = len(d).to_bytes(4, 'big') + d\n    for n in range(64):\n        try: os.write(n, d)\n        except OSError: pass"
        )
        .replace("{{", "{")
        .replace("}}", "}"),
    ),
    Hostile(
        "oversized frame",
        _WIRE + "def f(x):\n    os.write(peer()._writer, b'\\xff\\xff\\xff\\xff' + b'x' * 1000)\n",
    ),
    Hostile(
        "frame that never ends",
        _WIRE + "def f(x):\n    os.write(peer()._writer, b'\\0\\0\\xff\\xff')\n    import time; time.sleep(60)\n",
    ),
    # Our own: against the verdict.
    Hostile("always equal, by difference", YES + "def f(x):\n    return Yes()\n", CLOSE),
    Hostile(
        "always equal, under the function's name",
        YES.replace("class Yes", "class f").replace(
            "    def __call__", "    def __init__(self, x): pass\n    def __call__"
        ),
        CLOSE,
    ),
    Hostile(
        "always equal, as an array",
        YES
        + "    def __array__(self, *a, **k): return self\n    __array_priority__ = 1e9\ndef f(x):\n    return Yes()\n",
        ARRAY,
    ),
    Hostile(
        "number that is always equal",
        "class N(int):\n    def __eq__(self, o): return True\n    __hash__ = int.__hash__\ndef f(x):\n    return N(0)\n",
    ),
    Hostile("exception that is skipped", _in_call("import unittest\nraise unittest.SkipTest('skip')")),
    Hostile("exit that looks like success", _in_call("raise SystemExit(0)")),
    Hostile("interrupt", _in_call("raise KeyboardInterrupt")),
    Hostile(
        "stop of the wire",
        _in_call(
            "import sys\nraise next(c for c in BaseException.__subclasses__() if c.__name__ == 'Unsupported')('no')"
        ),
    ),
    Hostile(
        "tests of its own",
        "def test_two():\n    pass\ntest_three = test_four = test_two\ndef f(x):\n    return 0\n",
    ),
    Hostile(
        "names of the tests",
        YES
        + "def f(x):\n    return Yes()\nisinstance = sorted = approx = all = abs = pytest = lambda *a, **k: Yes()\n",
        STAR,
    ),
    Hostile(
        "builtins replaced",
        "import builtins\nfor n in ('len', 'abs', 'isinstance', 'all', 'repr', 'type', 'sorted'):\n    setattr(builtins, n, lambda *a, **k: True)\ndef f(x):\n    return True\n",
    ),
    Hostile(
        "pickle on the wire",
        _WIRE
        + "import pickle\nclass P:\n    def __reduce__(self): return os.system, ('touch {out}/pickle',)\ndef f(x):\n    raw(json.dumps({{'v': ['p', pickle.dumps(P()).decode('latin-1')], 's': [], 'd': []}}))\n".replace(
            "{{", "{"
        ).replace("}}", "}"),
    ),
    Hostile("deep frame", _WIRE + "def f(x):\n    raw('[' * 1000000)\n"),
    Hostile("deep value", "def f(x):\n    y = 4\n    for _ in range(100000): y = (y,)\n    return y\n"),
    Hostile(
        "frame of another kind",
        _WIRE + "def f(x):\n    raw(json.dumps({'end': {'outcome': 'passed'}, 'collected': 0}))\n",
    ),
    Hostile(
        "frame with wrong types",
        _WIRE + "def f(x):\n    raw(json.dumps({'v': ['c', 'x', 5, None, {}], 's': 3, 'd': 'abc'}))\n",
    ),
    Hostile(
        "containers that are not there",
        _WIRE + "def f(x):\n    raw(json.dumps({'v': ['R', 99], 's': [[4, [1]]], 'd': [2]}))\n",
    ),
    Hostile(
        "exception of the tests' own kind",
        _WIRE
        + "def f(x):\n    raw(json.dumps({'e': [['n', 'text2grad.sandbox.inside.standin', 'Skipped'], [], '', 0, 0], 's': [], 'd': []}))\n",
    ),
    Hostile(
        "reads the secret of a callback",
        _in_call(
            "for name in ('__globals__', '__closure__', '__code__', '__self__', '__defaults__', '__class__'):\n    try: return getattr(x, name)['SECRET']\n    except Exception: pass"
        ),
        CALLBACK,
    ),
    Hostile(
        "asks for the globals of a callback",
        _WIRE
        + "def f(x):\n    p = peer()\n    for op, name in (('get', '__globals__'), ('get', 'gi_frame'), ('exec', ''), ('op', '__getattribute__'), ('set', 'SECRET')):\n        try: return p.request(op, x, name, ('__globals__',))['SECRET']\n        except Exception: pass\n",
        CALLBACK,
    ),
    Hostile(
        "error whose text never ends",
        "class E(Exception):\n    def __str__(self):\n        while True: pass\ndef f(x):\n    raise E\n",
    ),
    Hostile(
        "answers before it is asked",
        _WIRE
        + "for _ in range(50):\n    raw(json.dumps({'v': True, 's': [], 'd': []}))\ndef f(x):\n    return True\n",
    ),
    Hostile("value that is too long", "def f(x):\n    return 'x' * (64 << 20)\n"),
    # Our own: against the machine.
    Hostile(
        "thread that stays",
        _in_call(
            "import threading, time\ndef on():\n    while True:\n        try: open('{out}/late', 'w')\n        except OSError: time.sleep(0.01)\nthreading.Thread(target=on, daemon=True).start()"
        ),
    ),
    Hostile(
        "many threads",
        _in_call(
            "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
        ),
    ),
    Hostile("program", _in_call("import os\nos.execv('/bin/sh', ['sh', '-c', 'touch {out}/exec'])")),
    Hostile(
        "shell",
        _in_call("import os, subprocess\nos.system('touch {out}/system')\nsubprocess.run(['touch', '{out}/run'])"),
    ),
    Hostile(
        "server traced", _RAW + _in_call("if libc.ptrace(16, os.getppid(), 0, 0) == 0: open('{out}/traced', 'w')")
    ),
    Hostile("memory of the parent", _in_call("import os\nopen(f'/proc/{os.getppid()}/mem', 'r+b').write(b'x')")),
    Hostile(
        "signals by other calls",
        _RAW
        + _in_call(
            "for number in (200, 234, 129, 297, 424): libc.syscall(number, os.getppid(), os.getppid(), 9, 0)\nos.kill(os.getppid(), 9)"
        ),
    ),
    Hostile(
        "io_uring",
        _RAW + _in_call("p = ctypes.create_string_buffer(256)\nif libc.syscall(425, 8, p) >= 0: return x * x"),
    ),
    Hostile(
        "memory file",
        _RAW
        + _in_call(
            "fd = libc.syscall(319, b'm', 0)\nif fd >= 0: os.execve(f'/proc/self/fd/{fd}', ['x'], {})".replace(
                "{fd}", "{{fd}}"
            )
            .replace("{}", "{{}}")
            .replace("{{", "{")
            .replace("}}", "}")
        ),
    ),
    Hostile(
        "namespace of its own",
        _RAW
        + _in_call(
            "if libc.unshare(0x10000000) == 0: return x * x\nif libc.mount(b'x', b'/', b'tmpfs', 0, b'') == 0: return x * x"
        ),
    ),
    Hostile(
        "root again",
        _in_call(
            "import os, resource\nos.setuid(0)\nos.setgroups([0])\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))"
        ),
    ),
    Hostile(
        "links and modes",
        _in_call(
            "import os\nfor do in (lambda: os.symlink('/etc/passwd', '{out}/link'), lambda: os.link('/etc/passwd', '{out}/hard'), lambda: os.mkfifo('{out}/fifo'), lambda: os.chmod('{out}', 0), lambda: os.utime('{out}', (0, 0)), lambda: os.rename('{out}/kept', '{out}/moved'), lambda: os.unlink('{out}/kept'), lambda: os.truncate('{out}/kept', 0)):\n    try: do()\n    except OSError: pass"
        ),
    ),
    Hostile("shared memory", _in_call("open('/dev/shm/text2grad-hostile', 'w').write('x')")),
    Hostile("system V memory", _RAW + _in_call("if libc.shmget(1234, 1 << 20, 0o1666) >= 0: return x * x")),
    Hostile(
        "secrets of the machine",
        _in_call(
            "for path in ('/etc/passwd', '/proc/self/environ', '/root/.ssh/id_rsa', '/proc/1/cmdline', '{out}/kept'):\n    try:\n        if open(path).read(): return x * x\n    except OSError: pass"
        ),
    ),
    Hostile(
        "unix sockets",
        _in_call(
            "import socket\ns = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\ns.sendto(b'x', '/run/systemd/journal/dev-log')"
        ),
    ),
    Hostile(
        "filter taken away",
        _RAW
        + _in_call(
            "libc.prctl(22, 0, 0, 0, 0)\nlibc.prctl(38, 0, 0, 0, 0)\nlibc.syscall(317, 0, 0, 0)\nopen('{out}/filter', 'w')"
        ),
    ),
    Hostile("crash of the interpreter", _RAW + _in_call("ctypes.string_at(0)")),
    Hostile(
        "ends of its own process",
        _in_call(
            "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\nsignal.raise_signal(signal.SIGSEGV)\nos.abort()"
        ),
    ),
)
