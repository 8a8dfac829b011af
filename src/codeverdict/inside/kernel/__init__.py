"""The walls around a job, by the means of the kernel: Landlock, seccomp, limits, users."""
