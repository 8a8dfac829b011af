"""How good a policy is: `evaluate`, and what it answers to a prompt of one's own (`sample`, `try`)."""
