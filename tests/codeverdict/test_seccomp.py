"""The system call filter of both kinds of machine, call by call, against the numbers of the
kernel's own headers.

An interpreter of BPF decides, so that what only ever runs on one kind of machine is checked on
every one.
"""

from __future__ import annotations

import errno
import struct

import pytest
from corpus import DATA

from codeverdict.inside import probes
from codeverdict.inside.kernel import landlock, seccomp

MACHINES = ("x86_64", "aarch64")
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # linux/audit.h: 64 bits, little end
OWN, OTHER = 4321, 4322
ALLOW, KILL, REFUSED, MISSING = 0x7FFF0000, 0x80000000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
THREAD, PROCESS = 0x3D0F00, 0x1200011  # the flags of glibc's pthread_create and fork

# fcntl.h: F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_GETLK, F_SETLK, F_SETLKW, F_DUPFD_CLOEXEC; and
# F_SETFL.
FCNTL, SETFL = (0, 1, 2, 3, 5, 6, 7, 1030), 4

# Of these, some arguments are allowed: (arguments, decision).
CHECKED = {
    "ioctl": [
        *[((1, question), ALLOW) for question in (0x5401, 0x5413)],
        *[((1, question), REFUSED) for question in (0x5412, 1 << 32 | 0x5401)],
        *[((1, signals), REFUSED) for signals in (0x5452, 0x8901, 0x8902, 0x5410)],  # FIOASYNC, FIOSETOWN ...
    ],
    "kill": [((OWN, 15), ALLOW), ((OTHER, 15), REFUSED), ((0, 15), REFUSED), ((2**64 - 1, 9), REFUSED)],
    "tgkill": [((OWN, OWN, 6), ALLOW), ((OTHER, OTHER, 6), REFUSED), ((1 << 32 | OWN, 1, 6), REFUSED)],
    "prctl": [((15,), ALLOW), ((16,), ALLOW), ((0x53564D41,), ALLOW), ((22, 2), REFUSED), ((38, 0), REFUSED)],
    "prlimit64": [((0, 7), ALLOW), ((OWN, 7), REFUSED), ((1 << 32, 7), REFUSED)],
    "socketpair": [((1, 1), ALLOW), ((1, 0x80001), ALLOW), ((1, 2), REFUSED), ((2, 1), REFUSED)],
    "sendto": [((3, 1, 1, 0, 0), ALLOW), ((3, 1, 1, 0, 0x7000), REFUSED), ((3, 1, 1, 0, 1 << 32), REFUSED)],
    "clone": [
        *[((flags,), ALLOW) for flags in (THREAD, 0x7D0F00)],
        *[((flags,), REFUSED) for flags in (PROCESS, 17, 0xFFFEFFFF, 1 << 32 | THREAD, 0x10000)],
        *[((THREAD ^ kept,), REFUSED) for kept in (0x100, 0x200, 0x400, 0x800)],  # memory, folder, files, signals
        *[((THREAD | 1 << bit,), REFUSED) for bit in (7, 17, 25, 26, 27, 28, 29, 30)],  # namespaces of its own
    ],
    "fcntl": [
        *[((9, command, 2**64 - 1), ALLOW) for command in FCNTL],
        *[((9, command), REFUSED) for command in range(2048) if command not in (*FCNTL, SETFL)],
        *[((9, command), REFUSED) for command in (2**31, 2**32 - 1, 1 << 32, 1 << 32 | 1)],
        *[((9, SETFL, flags), ALLOW) for flags in (0, 0x800, 0x400, 0x8000 | 0xC02, 0xFFFFDFFF)],
        *[((9, SETFL, flags), REFUSED) for flags in (0x2000, 0x2002, 0x2C00, 0xFFFFFFFF, 2**64 - 1)],
    ],
    "clone3": [((0, 88), MISSING)],
}
NEVER = """
    execve execveat fork vfork ptrace socket connect bind sendmsg sendmmsg mount umount2 unshare setns bpf
    io_uring_setup io_uring_enter process_vm_writev chmod fchmodat chown link linkat symlink symlinkat mknodat
    setuid setresuid capset seccomp keyctl perf_event_open userfaultfd memfd_create pidfd_open pidfd_getfd tkill
    rt_sigqueueinfo kexec_load init_module shmget msgget setrlimit personality reboot inotify_init1
    fanotify_init mq_open semget request_key add_key setpriority ioprio_set sched_setaffinity sched_setscheduler
    sched_setattr setxattr lsetxattr fsetxattr utimensat fchmod fchown fallocate pidfd_send_signal
    process_vm_readv recvmsg timer_create setpgid setsid clock_settime settimeofday swapon quotactl
    name_to_handle_at open_by_handle_at memfd_secret process_madvise chroot pivot_root syslog vmsplice splice
    io_setup mlock
"""


def read_numbers() -> dict[str, dict[str, int]]:
    """Machine -> name of a call -> its number."""
    lines = (DATA / "syscalls.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    return {
        machine: {row[0]: int(row[column]) for row in rows if row[column] != "-"}
        for column, machine in enumerate(MACHINES, start=1)
    }


NUMBERS = read_numbers()


def decision(machine: str, number: int, args: tuple[int, ...] = (), audit: int | None = None) -> int:
    """What the filter says to a call: the kernel's classic BPF, as far as the filter uses it."""
    program = seccomp.assemble(machine, OWN)
    words = [*args, *[0] * (6 - len(args))]
    data = struct.pack("<IIQ6Q", number, AUDIT[machine] if audit is None else audit, 0, *words)
    at = held = 0
    for _ in range(len(program) // 8):
        code, yes, no, value = struct.unpack_from("<HBBI", program, 8 * at)
        at += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            [held] = struct.unpack_from("<I", data, value)
        else:
            true = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
            at += yes if true else no
    raise AssertionError("the program does not end")


@pytest.mark.parametrize("column", [0, 1], ids=MACHINES)
def test_the_tables_have_the_numbers_of_the_kernels_headers(column: int) -> None:
    known = NUMBERS[MACHINES[column]]
    assert {name: numbers[column] for name, numbers in seccomp.ALLOWED.items()} == {
        name: known.get(name) for name in seccomp.ALLOWED
    }


@pytest.mark.parametrize("machine", MACHINES)
def test_every_system_call_gets_the_intended_decision(machine: str) -> None:
    for name, number in NUMBERS[machine].items():
        for args in ((), (1, 2, 3, 4, 5, 6), (2**64 - 1,) * 6):
            if name not in CHECKED:
                assert decision(machine, number, args) == (ALLOW if name in seccomp.ALLOWED else REFUSED), name
        for args, meant in CHECKED.get(name, ()):
            assert decision(machine, number, args) == meant, (name, args)


@pytest.mark.parametrize("machine", MACHINES)
def test_forbidden_calls(machine: str) -> None:
    known = NUMBERS[machine]
    assert {name: decision(machine, known[name]) for name in NEVER.split() if name in known} == {
        name: REFUSED for name in NEVER.split() if name in known
    }
    for number in (max(known.values()) + 1, 1000, 0x40000000, 0x40000000 | known["execve"], 2**32 - 1):
        assert decision(machine, number) == REFUSED, number


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_another_architecture_end_the_process(machine: str) -> None:
    other = AUDIT[MACHINES[1 - MACHINES.index(machine)]]
    for audit in (other, 0x40000003, 0x40000028):  # and 32 bits of Intel and of ARM
        assert decision(machine, NUMBERS[machine]["read"], audit=audit) == KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_the_kernel_accepts_a_program_of_this_length(machine: str) -> None:
    assert len(seccomp.assemble(machine, OWN)) // 8 <= 4096  # BPF_MAXINSNS


def test_numbers_of_direct_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")
    ours = (landlock._CREATE_RULESET, landlock._ADD_RULE, landlock._RESTRICT_SELF)
    assert [tuple(NUMBERS[machine][name] for name in names) for machine in MACHINES] == [ours, ours]
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(probes, "_call", lambda x86_64, aarch64, *args: asked.append((x86_64, aarch64)))
    tries = probes.attempts(1)
    for what in ("trace a process", "use io_uring", "load a BPF program"):
        tries[what]()
    names = ("ptrace", "io_uring_setup", "bpf")
    assert asked == [tuple(NUMBERS[machine][name] for machine in MACHINES) for name in names]
