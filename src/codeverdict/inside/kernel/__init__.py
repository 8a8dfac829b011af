"""Confine the processes of a job with Landlock, seccomp, resource limits and user ids."""
