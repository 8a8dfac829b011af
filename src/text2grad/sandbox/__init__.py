"""Run untrusted Python: verdict and solution never share a process (RELIABILITY, "Running untrusted programs")."""
