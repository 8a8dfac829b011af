"""Restrict the system calls of a program with a filter in classic BPF; all others are refused.

The numbers are from the kernel's tables (arch/x86/entry/syscalls/syscall_64.tbl,
include/uapi/asm-generic/unistd.h).
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable

from codeverdict.inside.kernel import system

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_MODE_FILTER = 2
_OWN_NUMBER = 0x7FFFFFF1  # placeholder of the process id until it is known

_TABLE = """
read:0:63 write:1:64 open:2:- close:3:57 stat:4:- fstat:5:80 lstat:6:- poll:7:- lseek:8:62 mmap:9:222
mprotect:10:226 munmap:11:215 brk:12:214 rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139
pread64:17:67 pwrite64:18:68 readv:19:65 writev:20:66 access:21:- pipe:22:- select:23:- sched_yield:24:124
mremap:25:216 msync:26:227 mincore:27:232 madvise:28:233 dup:32:23 dup2:33:- pause:34:- nanosleep:35:101
getitimer:36:102 alarm:37:- setitimer:38:103 getpid:39:172 sendfile:40:71 recvfrom:45:207 shutdown:48:210
getsockname:51:204 getpeername:52:205 getsockopt:55:209 exit:60:93 wait4:61:260 uname:63:160 flock:73:32
fsync:74:82 fdatasync:75:83 truncate:76:45 ftruncate:77:46 getdents:78:- getcwd:79:17 chdir:80:49 fchdir:81:50
rename:82:- mkdir:83:- rmdir:84:- creat:85:- unlink:87:- readlink:89:- umask:95:166 gettimeofday:96:169
getrlimit:97:163 getrusage:98:165 sysinfo:99:179 times:100:153 getuid:102:174 getgid:104:176 geteuid:107:175
getegid:108:177 getppid:110:173 sigaltstack:131:132 statfs:137:43 fstatfs:138:44 arch_prctl:158:- gettid:186:178
futex:202:98 sched_getaffinity:204:123 epoll_create:213:- getdents64:217:61 set_tid_address:218:96
restart_syscall:219:128 fadvise64:221:223 clock_gettime:228:113 clock_getres:229:114 clock_nanosleep:230:115
exit_group:231:94 epoll_wait:232:- epoll_ctl:233:21 openat:257:56 mkdirat:258:34 newfstatat:262:79
unlinkat:263:35 renameat:264:38 readlinkat:267:78 faccessat:269:48 pselect6:270:72 ppoll:271:73
set_robust_list:273:99 epoll_pwait:281:22 eventfd2:290:19 epoll_create1:291:20 dup3:292:24 pipe2:293:59
preadv:295:69 pwritev:296:70 getcpu:309:168 renameat2:316:276 getrandom:318:278 membarrier:324:283 statx:332:291
rseq:334:293 close_range:436:436 faccessat2:439:439
"""
ALLOWED: dict[str, tuple[int | None, int | None]] = {
    name: (None if one == "-" else int(one), None if other == "-" else int(other))
    for name, one, other in (word.split(":") for word in _TABLE.split())
}
"""Numbers of each call on x86_64 and aarch64; None if the machine does not have the call."""

# Calls that are allowed only with certain arguments.
_IOCTL = (16, 29)
_FCNTL = (72, 25)
_KILL_CALL = (62, 129)
_TGKILL = (234, 131)
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_PRCTL = (157, 167)
_PRLIMIT = (302, 261)
_SOCKETPAIR = (53, 199)
_SENDTO = (44, 206)
_TERMINAL_QUESTIONS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
_THREAD_NAMES = (15, 16, 0x53564D41)
_FCNTL_COMMANDS = (0, 1, 2, 3, 5, 6, 7, 1030)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_GETLK, F_SETLK, F_SETLKW, F_DUPFD_CLOEXEC.

Excluded are the commands that make the kernel send signals (F_SETOWN, F_SETSIG, F_NOTIFY), which
before Linux 6.12 reach every process of the same user, and F_SETLEASE, which delays other openers
of a file.
"""
_F_SETFL, _O_ASYNC = 4, 0x2000
_THREADS = (0x3D0F00, 0x7D0F00)
"""Flags of clone for a thread that shares everything with its process, in glibc and musl."""
_AF_UNIX, _SOCK_STREAM_TYPES = 1, (1, 0x80001, 0x80801, 0x801)


class Filter:
    """A filter that is assembled before the fork, so that little work remains after it."""

    def __init__(self) -> None:
        """Assemble the filter.

        Raises:
            OSError: the machine has no table of system calls.
        """
        machine = system.machine()
        if machine not in _ARCHITECTURES:
            raise OSError(errno.ENOSYS, f"no table of system calls for {machine}")
        program = assemble(machine, _OWN_NUMBER)
        placeholder = _OWN_NUMBER.to_bytes(4, "little")
        self._places = [
            offset for offset in range(4, len(program), 8) if program[offset : offset + 4] == placeholder
        ]
        self._program = ctypes.create_string_buffer(program, len(program))
        header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(self._program))
        self._header = ctypes.create_string_buffer(header, len(header))
        self._address = ctypes.addressof(self._header)

    def install(self, process: int) -> None:
        """Apply the filter to this process, whose id is `process`, or raise OSError.

        The process may only signal itself.
        """
        for place in self._places:
            struct.pack_into("I", self._program, place, process)
        system.prctl(system.PR_SET_SECCOMP, _MODE_FILTER, self._address)


def supported() -> bool:
    """Return True if there is a table of system calls for this machine."""
    return system.machine() in _ARCHITECTURES


def assemble(machine: str, process: int) -> bytes:
    """Return the filter program for a machine and a process id.

    The program is a search tree over the numbers of the calls. On each installation the kernel
    translates it and evaluates it for every call, so a list of 115 comparisons takes 0.3 ms longer.
    """
    column = list(_ARCHITECTURES).index(machine)
    numbers = [pair[column] for pair in ALLOWED.values()]
    verdicts = {number: _ALLOWED for number in numbers if number is not None}
    verdicts |= {pair[column]: checks for pair, checks in _checked(process).items()}
    edges: list[int] = []
    leaves = [_REFUSED]
    for number in sorted(verdicts):
        if edges and edges[-1] == number and leaves[-2] == verdicts[number]:
            edges[-1] = number + 1
            continue
        if edges and edges[-1] == number:
            edges.pop()
            leaves.pop()
        edges += [number, number + 1]
        leaves += [verdicts[number], _REFUSED]
    program = _op(_LOAD, _ARCHITECTURE) + _op(_EQUAL, _ARCHITECTURES[machine], 1, 0) + _op(_RETURN, _KILL)
    return program + _op(_LOAD, _NUMBER) + _tree(edges, leaves)


def _tree(edges: list[int], leaves: list[bytes]) -> bytes:
    """Return a binary search; `leaves[i]` is for numbers in `range(edges[i - 1], edges[i])`."""
    if not edges:
        return leaves[0]
    middle = len(edges) // 2
    below = _tree(edges[:middle], leaves[: middle + 1])
    above = _tree(edges[middle + 1 :], leaves[middle + 1 :])
    return _op(_AT_LEAST, edges[middle], len(below) // 8, 0) + below + above


def _checked(process: int) -> dict[tuple[int, int], bytes]:
    """Return the checks of the calls that are allowed only with certain arguments."""
    return {
        _IOCTL: _only([(1, _TERMINAL_QUESTIONS)]),
        _KILL_CALL: _only([(0, (process,))]),
        _TGKILL: _only([(0, (process,))]),
        _PRCTL: _only([(0, _THREAD_NAMES)]),
        _PRLIMIT: _only([(0, (0,))]),
        _SOCKETPAIR: _only([(0, (_AF_UNIX,)), (1, _SOCK_STREAM_TYPES)]),
        _SENDTO: _only([(4, (0,))]),
        _FCNTL: _fcntl(),
        _CLONE: _only([(0, _THREADS)]),
        _CLONE3: _op(_RETURN, _ERRNO | errno.ENOSYS),
    }


def _fcntl() -> bytes:
    """Allow some commands of fcntl, and changes of a descriptor's flags without signals."""
    flags = _op(_LOAD, _argument(2)) + _op(_ANY_BIT, _O_ASYNC, 0, 1) + _REFUSED + _ALLOWED
    others = _only([(1, _FCNTL_COMMANDS)])
    return _op(_LOAD, _argument(1)) + _op(_EQUAL, _F_SETFL, 0, len(flags) // 8) + flags + others


def _argument(number: int) -> int:
    """Return the offset of the low word of an argument."""
    return _ARGUMENTS + 8 * number


def _only(tests: Iterable[tuple[int, tuple[int, ...]]]) -> bytes:
    """Allow a call if each listed argument (low and high word) has one of its accepted values."""
    checks = b""
    for argument, accepted in tests:
        checks += _op(_LOAD, _argument(argument) + 4) + _op(_EQUAL, 0, 1, 0) + _REFUSED
        checks += _op(_LOAD, _argument(argument))
        for position, value in enumerate(accepted):
            checks += _op(_EQUAL, value, len(accepted) - position, 0)
        checks += _REFUSED
    return checks + _ALLOWED


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)


_ALLOWED = _op(_RETURN, _ALLOW)
_REFUSED = _op(_RETURN, _ERRNO | errno.EPERM)
